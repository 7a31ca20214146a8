"""Many questions in one file, interrupted or not."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from executor_sft.lines import LineFile
from executor_sft.memory import Memory
from executor_sft.rollouts import Rollout, roll_out_all
from router.errors import BadConfig, UpstreamRefused, UpstreamUnavailable
from router.models.model import Answer, Prompt
from tests.executor_sft.scripted_roles import ScriptedRoles, asks, questions, searches_twice

QUESTIONS = questions(6)


async def rolled_out(roles: ScriptedRoles, folder: Path, concurrency: int = 3) -> dict[str, str]:
    """As one start of the command does it."""
    with Memory.open(folder / "calls.jsonl") as memory:
        path = folder / "rollouts.jsonl"
        return await roll_out_all(roles.roller(memory), QUESTIONS, path, concurrency, lambda done: None)


def ids(folder: Path) -> list[str]:
    lines = (folder / "rollouts.jsonl").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Rollout).question.id for line in lines]


class Stop:
    """Cancels whoever runs the command, once the teacher has said something so many times."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.task: asyncio.Task[dict[str, str]] | None = None

    def __call__(self, prompt: Prompt) -> Answer:
        self.left -= 1
        if self.left == 0 and self.task:
            self.task.cancel()
        return searches_twice(prompt)


async def interrupted(folder: Path, after: int) -> ScriptedRoles:
    """What was asked before the interruption."""
    stop = Stop(after)
    roles = ScriptedRoles(teacher=stop)
    stop.task = asyncio.create_task(rolled_out(roles, folder))
    with pytest.raises(asyncio.CancelledError):
        await stop.task
    return roles


@pytest.mark.parametrize("after", [[1], [7], [20], [33], [38], [3, 3, 10, 10]])
async def test_interrupted_and_started_again(tmp_path: Path, after: list[int]) -> None:
    """Wherever it was stopped, the file is the one of an undisturbed run, and no call was made twice."""
    undisturbed = ScriptedRoles()
    (tmp_path / "whole").mkdir()
    assert await rolled_out(undisturbed, tmp_path / "whole") == {}
    whole = (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    assert ids(tmp_path / "whole") == [question.id for question in QUESTIONS]

    asked = Counter[tuple[str, Prompt]]()
    for stop in after:
        asked.update((await interrupted(tmp_path, stop)).asked)
    roles = ScriptedRoles()
    assert await rolled_out(roles, tmp_path) == {}
    asked.update(roles.asked)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == whole
    assert asked == Counter(undisturbed.asked)
    assert set(asked.values()) == {1}


async def test_a_torn_line_is_rolled_out_again(tmp_path: Path) -> None:
    """From what is remembered, so at no cost."""
    await rolled_out(ScriptedRoles(), tmp_path)
    path = tmp_path / "rollouts.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    roles = ScriptedRoles()
    await rolled_out(roles, tmp_path)
    assert (path.read_bytes(), roles.asked) == (whole, [])


async def test_a_teacher_that_dies(tmp_path: Path) -> None:
    """The command stops, says how far it came, and goes on from there once the teacher is back."""
    calls = 0

    def dies(prompt: Prompt) -> Answer:
        nonlocal calls
        calls += 1
        return UpstreamUnavailable("gone", endpoint="http://x") if calls > 25 else searches_twice(prompt)

    roles = ScriptedRoles(teacher=dies)
    with pytest.raises(
        UpstreamUnavailable, match=r"scripted://teacher.* of 6 questions are rolled out\..*same command"
    ):
        await rolled_out(roles, tmp_path, concurrency=2)
    done = len(ids(tmp_path))
    assert 0 < done < 6
    again = ScriptedRoles()
    assert await rolled_out(again, tmp_path) == {}
    assert ids(tmp_path) == [question.id for question in QUESTIONS]
    teacher = [prompt for name, prompt in (*roles.asked, *again.asked) if name == "teacher"]
    assert max(Counter(teacher).values()) <= 2, "a call that failed is made again, no other"
    assert len(teacher) - len(set(teacher)) <= 2


async def test_a_question_that_fails_for_its_own_reasons(tmp_path: Path) -> None:
    """It is told apart, not dropped, and the others are rolled out; a later start tries it again."""

    def refuses(prompt: Prompt) -> Answer:
        if "F2" in prompt.messages[1].content:
            return UpstreamRefused("unwanted content", endpoint="http://x")
        return asks(prompt)

    failed = await rolled_out(ScriptedRoles(backbone=refuses), tmp_path)
    assert list(failed) == ["q2"]
    assert "unwanted content" in failed["q2"]
    assert ids(tmp_path) == ["q0", "q1", "q3", "q4", "q5"]
    assert await rolled_out(ScriptedRoles(), tmp_path) == {}
    assert ids(tmp_path) == [question.id for question in QUESTIONS]


async def test_where_every_question_fails(tmp_path: Path) -> None:
    """A wrong key fails them all alike, so that is the end, and not six failures."""
    roles = ScriptedRoles(backbone=lambda prompt: UpstreamRefused("check the API key", endpoint="http://x"))
    with pytest.raises(UpstreamRefused, match=r"check the API key\. 0 of 6"):
        await rolled_out(roles, tmp_path)


async def test_a_line_of_another_release(tmp_path: Path) -> None:
    """Is named."""
    file = LineFile(tmp_path / "rollouts.jsonl")
    file.append(b"{}")
    file.close()
    with pytest.raises(BadConfig, match=r"rollouts.jsonl:1: .*remove this line"):
        await rolled_out(ScriptedRoles(), tmp_path)
