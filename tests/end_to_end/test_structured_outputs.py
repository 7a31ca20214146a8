"""Executor turns that a real engine holds to their form, and a form that it cannot hold them to."""

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
    """Twelve turns that the executor's model writes almost at random, every other one streamed."""
    async with ConnectionPool() as pool:
        model = OpenAIHTTP(pool, engine_url, "mini-executor", thinking=False)

        async def turn(seed: int) -> Completion:
            prompt = Prompt(ASKED, Sampling(60, temperature=1.8, seed=seed), STOP, pattern=pattern)
            if seed % 2 == 0:
                return await model.complete(prompt)
            return await model.stream(prompt, lambda _delta: None)

        return await asyncio.gather(*map(turn, range(12)))


def malformed(outputs: list[Completion]) -> int:
    """How many are, of those that came to their end."""
    return sum(
        isinstance(parse_turn(one.text), Malformed)
        for one in outputs
        if one.finish_reason != "length"
    )


async def test_what_is_held_is_never_malformed(engine_url: str) -> None:
    """Whatever the model would rather write; what was cut at its length began as it should, too."""
    for searched, may_search, tags in (
        (False, True, ("search",)),
        (True, True, ("search", "answer")),
        (True, False, ("answer",)),
    ):
        pattern = turn_pattern(searched=searched, may_search=may_search)
        outputs = await written(engine_url, pattern)
        assert malformed(outputs) == 0
        for one in outputs:
            assert one.finish_reason == "length" or re.fullmatch(pattern, one.text)
            assert one.text.startswith(tuple(f"<{tag}>" for tag in tags))
    assert malformed(await written(engine_url, None)) > 0


async def test_a_pattern_that_the_engine_refuses(engine_url: str) -> None:
    """The model then writes freely."""
    assert malformed(await written(engine_url, r"(?=<search>)(\w)\1")) > 0
