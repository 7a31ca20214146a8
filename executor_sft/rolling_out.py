"""Many questions rolled out into one file, however often that is interrupted."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from executor_sft.line_file import LineFile
from executor_sft.roller import Roller
from executor_sft.rollouts import Question, Rollout
from executor_sft.workbench import Workbench
from router.errors import BadConfig, OutOfTime, RolegateError, UpstreamError, UpstreamUnavailable
from serving.config.config import Config, RoleConfig
from serving.files import replacing

ROLLOUTS, CALLS = "rollouts.jsonl", "calls.jsonl"
_HOPELESS = 5
"""So many questions that fail before any is done are no accident."""
_AGAIN = "What was paid for is kept; start the same command again to go on."
Progress = Callable[[int], None]
"""Hears how many questions are done."""


def teacher_of(config: Config) -> RoleConfig:
    """The model that teaches. Raises `BadConfig` where the config names none, or one with a prompt of its own."""
    teacher = config.distillation.teacher
    if teacher is None:
        raise BadConfig(
            "distillation.teacher: is not set; add a table [distillation.teacher] with model, prompt and where it is "
            "served, as in [roles.execution], which is the student."
        )
    if _read(teacher.prompt) != _read(config.roles.execution.prompt):
        raise BadConfig(
            f"distillation.teacher.prompt: {teacher.prompt} differs from {config.roles.execution.prompt}; name the "
            "prompt of roles.execution, as the student learns under the one that it serves with."
        )
    return teacher


def _read(prompt: str) -> str:
    return Path(prompt).read_text("utf-8").strip()


def roller_of(bench: Workbench) -> Roller:
    """A roller with the config's teacher and student. Raises `BadConfig`."""
    teacher = bench.role("execution", teacher_of(bench.config))
    student = bench.role("execution", bench.config.roles.execution)
    capped = bench.executor(teacher, replace(bench.limits, max_searches=1))
    search = bench.search(bench.executor(teacher))
    return Roller(search, bench.executor(student), capped, bench.judge, bench.context)


async def roll_out_all(
    roller: Roller, questions: Sequence[Question], path: Path, concurrency: int, progress: Progress
) -> dict[str, str]:
    """Roll out whatever is not in `path` yet, so many questions at once; a line for each, at the end in the order of
    the questions. Returns why questions failed, by their ids; these are not in the file.

    Raises `UpstreamUnavailable` once an endpoint is gone, `UpstreamError` or `OutOfTime` where every question fails,
    and `StoreFailed`; all that was done is then kept.
    """
    file, failed = LineFile(path), dict[str, str]()
    try:
        done = {_id(line, path, number) for number, line in enumerate(file.lines(), 1)}
        progress(len(done))
        gate = asyncio.Semaphore(concurrency)

        async def one(question: Question) -> None:
            async with gate:
                try:
                    rollout = await roller.roll_out(question)
                except (UpstreamError, OutOfTime) as error:
                    failed[question.id] = str(error)
                    hopeless = not done and len(failed) >= min(_HOPELESS, len(questions))
                    if hopeless or isinstance(error, UpstreamUnavailable):
                        raise
                else:
                    file.append(msgspec.json.encode(rollout))
                    done.add(question.id)
                progress(len(done) + len(failed))

        async with asyncio.TaskGroup() as group:
            for question in questions:
                if question.id not in done:
                    group.create_task(one(question))
    except ExceptionGroup as group_failed:
        raise _stopped(group_failed.exceptions[0], len(done), len(questions)) from None
    finally:
        file.close()
    _put_in_order(path, {question.id: number for number, question in enumerate(questions)})
    return failed


def _stopped(error: Exception, done: int, of: int) -> Exception:
    """The same error; one that is raised on purpose says how far it came."""
    if isinstance(error, RolegateError):
        error.args = (f"{error.args[0].rstrip('.')}. {done} of {of} questions are rolled out. {_AGAIN}",)
    return error


def _id(line: bytes, path: Path, number: int) -> str:
    try:
        return msgspec.json.decode(line, type=Rollout).question.id
    except msgspec.DecodeError as error:
        raise BadConfig(f"{path}:{number}: {error}; remove this line, and it is rolled out again.") from None


def _put_in_order(path: Path, order: Mapping[str, int]) -> None:
    """Sort the lines, so that the file does not tell who was quicker; one is read at a time."""
    places: list[tuple[int, int, int]] = []
    with path.open("rb") as file:
        start = 0
        for number, line in enumerate(file, 1):
            places.append((order[_id(line, path, number)], start, len(line)))
            start += len(line)
        if places == sorted(places):
            return
        with replacing(path) as unfinished, unfinished.open("wb") as output:
            for _, start, length in sorted(places):
                file.seek(start)
                output.write(file.read(length))
