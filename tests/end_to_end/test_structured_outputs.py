"""Executor turns with a real engine's structured output, and a pattern that it refuses."""

import asyncio
import re

import pytest

from router.models import Completion, Message, Prompt, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.openai_client import OpenAIHTTP
from router.protocol import parse_turn
from router.protocol.tags import Malformed
from router.protocol.turns import turn_pattern
from router.search.executor import STOP

pytestmark = pytest.mark.asyncio(loop_scope="package")
ASKED = (Message("system", "You search."), Message("user", "Say hello."))


async def written(engine_url: str, pattern: str | None) -> list[Completion]:
    """Return twelve turns that the executor's model writes almost at random; every other turn is
    streamed.
    """
    async with ConnectionPool() as pool:
        model = OpenAIHTTP(pool, engine_url, "mini-executor", thinking=False)

        async def turn(seed: int) -> Completion:
            prompt = Prompt(ASKED, Sampling(60, temperature=1.8, seed=seed), STOP, pattern=pattern)
            if seed % 2 == 0:
                return await model.complete(prompt)
            return await model.stream(prompt, lambda _delta: None)

        return await asyncio.gather(*map(turn, range(12)))


def malformed(outputs: list[Completion]) -> int:
    """Return the number of malformed turns among completed ones."""
    return sum(
        isinstance(parse_turn(output.text), Malformed)
        for output in outputs
        if output.finish_reason != "length"
    )


async def test_structured_turns_are_never_malformed(engine_url: str) -> None:
    """A turn that was cut at its length is a correct beginning."""
    for searched, may_search, tags in (
        (False, True, ("search",)),
        (True, True, ("search", "answer")),
        (True, False, ("answer",)),
    ):
        pattern = turn_pattern(searched=searched, may_search=may_search)
        outputs = await written(engine_url, pattern)
        assert malformed(outputs) == 0
        for output in outputs:
            assert output.finish_reason == "length" or re.fullmatch(pattern, output.text)
            assert output.text.startswith(tuple(f"<{tag}>" for tag in tags))
    assert malformed(await written(engine_url, None)) > 0


async def test_a_refused_pattern_is_left_out(engine_url: str) -> None:
    """The model then writes freely."""
    assert malformed(await written(engine_url, r"(?=<search>)(\w)\1")) > 0
