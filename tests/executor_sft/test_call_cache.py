"""Completed model calls are cached, and paid for once."""

import asyncio
from pathlib import Path

import pytest

from executor_sft.call_cache import CachedModel, CallCache, PaidCalls
from router.errors import BadConfig, UpstreamUnavailable
from router.models import Completion, Message, Prompt, Sampling, Usage
from tests.scripted_model import ScriptedModel

DOWN = UpstreamUnavailable("is down", endpoint="http://teacher")


def prompt(
    text: str = "Who?", request_id: str = "", seed: int | None = None, stop: tuple[str, ...] = ()
) -> Prompt:
    return Prompt((Message("user", text),), Sampling(seed=seed), stop, request_id)


async def test_an_equal_call_is_made_once(tmp_path: Path) -> None:
    """Neither the request id nor a restart matters."""
    model = ScriptedModel(["A"])
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        first = await cached.complete(prompt(request_id="run-0"))
        assert await cached.complete(prompt(request_id="run-1")) == first
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(ScriptedModel([]), cache, "execution")
        assert await cached.complete(prompt()) == first
        assert await cached.stream(prompt(), lambda _delta: None) == first
    assert len(model.prompts) == 1


async def test_a_different_call_is_made(tmp_path: Path) -> None:
    """It has another text, seed, stop string, model, or thinking switch."""
    model = ScriptedModel("ABCDE")
    other_model = ScriptedModel("F", "other")
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        prompts = prompt(), prompt("Where?"), prompt(seed=1), prompt(stop=("</search>",))
        replies = [(await cached.complete(prompt_)).text for prompt_ in prompts]
        replies.append(
            (
                await CachedModel(model, cache, "execution", {"thinking": True}).complete(prompt())
            ).text
        )
        replies.append((await CachedModel(other_model, cache, "execution").complete(prompt())).text)
    assert replies == list("ABCDEF")


async def test_calls_of_one_seed_do_not_share_their_noise(tmp_path: Path) -> None:
    """Each call has its own seed, which depends on its prompt; a call without a seed has none."""
    seeds: list[list[int | None]] = []
    for start in range(2):
        model = ScriptedModel("ABCD")
        with CallCache.open(tmp_path / f"calls{start}") as cache:
            cached = CachedModel(model, cache, "execution")
            for call in (prompt(seed=1), prompt("Where?", seed=1), prompt(seed=2), prompt()):
                await cached.complete(call)
        seeds.append([sent.sampling.seed for sent in model.prompts])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4
    assert seeds[0][-1] is None


async def test_concurrent_equal_calls_are_made_once(tmp_path: Path) -> None:
    """The others wait for the first call's reply."""
    model = ScriptedModel(["A"])
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        replies = await asyncio.gather(*(cached.complete(prompt()) for _ in range(5)))
    assert ([reply.text for reply in replies], len(model.prompts)) == (["A"] * 5, 1)


async def test_failed_calls_are_not_cached(tmp_path: Path) -> None:
    """Every caller that waits for a failing call makes its own."""
    model = ScriptedModel([DOWN, "A"])
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        outcomes = await asyncio.gather(
            *(cached.complete(prompt()) for _ in range(2)), return_exceptions=True
        )
        assert outcomes[0] is DOWN
        assert isinstance(outcomes[1], Completion)
    assert len(model.prompts) == 2


async def test_sums_count_each_paid_call_once(tmp_path: Path) -> None:
    """They are by role and model; calls without usage are counted as such, and not as zero."""
    unknown = Completion("B", "stop")
    known = Completion("A", "stop", usage=Usage(10, 2))
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(ScriptedModel([known, unknown]), cache, "execution")
        for text in ("Who?", "Where?", "Who?"):
            await cached.complete(prompt(text))
        await CachedModel(ScriptedModel([known], "big"), cache, "answer").complete(prompt())
    with CallCache.open(tmp_path / "calls") as cache:
        assert cache.spent == [
            PaidCalls("answer", "big", 1, 0, 10, 2),
            PaidCalls("execution", "scripted", 2, 1, 10, 2),
        ]


async def test_a_torn_line_is_dropped_and_an_unknown_line_is_named(tmp_path: Path) -> None:
    """A kill leaves half a line at the end; a whole line that cannot be read is an error."""
    path = tmp_path / "calls"
    model = ScriptedModel("AB")
    with CallCache.open(path) as cache:
        await CachedModel(model, cache, "execution").complete(prompt())
        await CachedModel(model, cache, "execution").complete(prompt("Where?"))
    path.write_bytes(path.read_bytes()[:-10])
    with CallCache.open(path) as cache:
        assert cache.spent[0].calls == 1
    path.write_bytes(path.read_bytes() + b'{"key": 7}\n')
    with pytest.raises(BadConfig, match="calls:2: "), CallCache.open(path):
        pass
