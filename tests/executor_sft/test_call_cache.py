"""Completed model calls are kept, and paid for once."""

import asyncio
from pathlib import Path

import pytest

from executor_sft.call_cache import CachedModel, CallCache, PaidCalls
from router.errors import BadConfig, UpstreamUnavailable
from router.models import Completion, Message, Prompt, Sampling, ScriptedModel, Usage

DOWN = UpstreamUnavailable("is down", endpoint="http://teacher")


def prompt(
    text: str = "Who?", request_id: str = "", seed: int | None = None, stop: tuple[str, ...] = ()
) -> Prompt:
    return Prompt((Message("user", text),), Sampling(seed=seed), stop, request_id)


async def test_the_same_call_is_made_once_for_ever(tmp_path: Path) -> None:
    """The request id does not matter, and a restart does not either."""
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


async def test_what_makes_another_call(tmp_path: Path) -> None:
    """Another text, seed, stop string, model, or thinking switch."""
    one = ScriptedModel("ABCDE")
    other = ScriptedModel("F", "other")
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(one, cache, "execution")
        asked = prompt(), prompt("Where?"), prompt(seed=1), prompt(stop=("</search>",))
        said = [(await cached.complete(each)).text for each in asked]
        said.append(
            (await CachedModel(one, cache, "execution", {"thinking": True}).complete(prompt())).text
        )
        said.append((await CachedModel(other, cache, "execution").complete(prompt())).text)
    assert said == list("ABCDEF")


async def test_calls_of_one_seed_do_not_share_their_noise(tmp_path: Path) -> None:
    """Each call has its own seed, which depends on its prompt; a call without a seed has none."""
    seeds: list[list[int | None]] = []
    for start in range(2):
        model = ScriptedModel("ABCD")
        with CallCache.open(tmp_path / f"calls{start}") as cache:
            cached = CachedModel(model, cache, "execution")
            for each in (prompt(seed=1), prompt("Where?", seed=1), prompt(seed=2), prompt()):
                await cached.complete(each)
        seeds.append([asked.sampling.seed for asked in model.prompts])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4
    assert seeds[0][-1] is None


async def test_two_at_the_same_time(tmp_path: Path) -> None:
    """The second one waits for what the first one gets."""
    model = ScriptedModel(["A"])
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        said = await asyncio.gather(*(cached.complete(prompt()) for _ in range(5)))
    assert ([each.text for each in said], len(model.prompts)) == (["A"] * 5, 1)


async def test_failed_calls_are_not_kept(tmp_path: Path) -> None:
    """Every caller that waits for a failing call makes its own."""
    model = ScriptedModel([DOWN, "A"])
    with CallCache.open(tmp_path / "calls") as cache:
        cached = CachedModel(model, cache, "execution")
        both = await asyncio.gather(
            *(cached.complete(prompt()) for _ in range(2)), return_exceptions=True
        )
        assert both[0] is DOWN
        assert isinstance(both[1], Completion)
    assert len(model.prompts) == 2


async def test_sums_count_each_paid_call_once(tmp_path: Path) -> None:
    """By role and model; calls without usage are counted as such, and not as zero."""
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


async def test_a_torn_line_is_dropped_and_a_strange_one_is_named(tmp_path: Path) -> None:
    """A kill leaves half a line at the end; a whole line that cannot be read is somebody's
    doing.
    """
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
