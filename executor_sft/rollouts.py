"""Rollouts: what teacher and student made of the same sub-queries, under the same backbone (TBSS 3.4)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from executor_sft.lines import LineFile
from executor_sft.workbench import Workbench
from router.errors import BadConfig, OutOfTime, RolegateError, UpstreamError, UpstreamRefused, UpstreamUnavailable
from router.protocol.scoring import exact_match
from router.search.answerer import Judge
from router.search.context import RunContext
from router.search.executor import Executor
from router.search.loop import FactorizedSearch
from router.trace.values import Execution, Trajectory
from serving.config.config import Config, RoleConfig
from serving.files import replacing


class Question(msgspec.Struct, frozen=True):
    """A question with its right answers."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Any of them is right; none where that is left to the judge."""
    source: str = ""
    """The data set that it is from, for the composition table; empty where that was not said."""
    rejected: tuple[str, ...] = ()
    """Answers that somebody has called wrong."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a final answer is right."""

    exact_match: bool | None
    """None where no right answer is known."""
    accepted: bool | None = None
    """What the judge says; None where it was not asked, or its reply could not be read."""
    judged: bool = False
    """Whether the judge was asked."""

    @property
    def correct(self) -> bool:
        """By exact match, where a right answer is known, and by the judge, where one was asked (TBSS 3.4)."""
        return self.accepted is True and self.exact_match is not False if self.judged else self.exact_match is True


class Sample(msgspec.Struct, frozen=True):
    """One executor's work on one sub-query, and where it leads: to the answer of the run in which it stands, all else
    being the teacher's.
    """

    execution: Execution
    answer: str
    verdict: Verdict


class SubQueryRollout(msgspec.Struct, frozen=True):
    """A sub-query with everybody's work on it."""

    teacher: Sample
    student: Sample
    capped: Sample | None = None
    """The teacher's once more, with one search at most; only where it was correct with two or more."""


class Rollout(msgspec.Struct, frozen=True):
    """A question with everything that was made of it; one line of `rollouts.jsonl`."""

    question: Question
    trajectory: Trajectory
    """The teacher's run."""
    verdict: Verdict
    sub_queries: tuple[SubQueryRollout, ...]
    """In order of dispatch."""


_TIME = "time ran out; allow more with server.timeout_s, or ask for less at once with --concurrency."


def check(trajectory: Trajectory, first: int, context: RunContext) -> None:
    """Raise what a run has kept to itself: that it was cut off, or that an endpoint failed it. `first`: the number of
    the first sub-query that was worked on in `context`.
    """
    for index, execution in enumerate(trajectory.executions[first:], first):
        check_execution(execution, index, context)
    if trajectory.outcome == "time_exhausted":
        raise OutOfTime(_TIME)


def check_execution(execution: Execution, index: int, context: RunContext) -> None:
    """The same of one execution."""
    match execution.outcome:
        case "timed_out":
            raise OutOfTime(_TIME)
        case "retrieval_failed":
            raise UpstreamUnavailable("passages cannot be had", endpoint="the config's address or index")
        case "model_failed":
            calls = [call for call in context.ledger.calls if call.sub_query == index]
            last = next((call for call in reversed(calls) if call.outcome != "completed"), None)
            if last is None:  # nobody was asked
                raise UpstreamUnavailable("left alone, as its last calls failed", endpoint="the executor's endpoint")
            passing = last.outcome in ("unavailable", "unreachable")
            error = (UpstreamUnavailable if passing else UpstreamRefused)(
                f"model {last.model!r}: {last.outcome}", endpoint=last.deployment
            )
            error.role = last.role
            raise error


@dataclass(frozen=True, slots=True)
class Roller:
    """Rolls out any number of questions at once."""

    search: FactorizedSearch
    """With the teacher as executor."""
    student: Executor
    capped: Executor
    """The teacher with one search at most."""
    judge: Judge | None
    context: Callable[[], RunContext]
    """For one run."""

    async def roll_out(self, question: Question) -> Rollout:
        """Everything there is to know of `question`. An executor that could not do its work is an error, not a sample:
        raises `UpstreamError`, `OutOfTime` and `StoreFailed`.
        """
        context = self.context()
        trajectory = await self.search.run(question.text, context)
        check(trajectory, 0, context)
        verdict = await self._verdict(question, trajectory)
        run = _Run(question, trajectory, verdict)
        rollouts: list[SubQueryRollout] = []
        for number in range(len(trajectory.rounds)):
            for place, execution in enumerate(trajectory.block(number)):
                student = await self._beside(self.student, run, number, place)
                needed = verdict.correct and len(execution.searches) >= 2
                capped = await self._beside(self.capped, run, number, place) if needed else None
                rollouts.append(SubQueryRollout(Sample(execution, trajectory.answer, verdict), student, capped))
        return Rollout(question, trajectory, verdict, tuple(rollouts))

    async def _beside(self, executor: Executor, run: "_Run", number: int, place: int) -> Sample:
        """What `executor` makes of a sub-query, by its round and its place there, and where its report leads to."""
        block = list(run.trajectory.block(number))
        context, first = self.context(), sum(run.trajectory.rounds[:number])
        execution = await executor.run(block[place].sub_query, first + place, context)
        check_execution(execution, first + place, context)
        if execution.report == block[place].report:
            return Sample(execution, run.trajectory.answer, run.verdict)
        block[place] = execution
        context = self.context()
        changed = self.search.instead(run.trajectory, number, block)
        led = await self.search.proceed(run.question.text, changed, context)
        check(led, first + len(block), context)
        return Sample(execution, led.answer, await self._verdict(run.question, led))

    async def _verdict(self, question: Question, trajectory: Trajectory) -> Verdict:
        """The judge is asked only where it decides."""
        answer = trajectory.answer
        matched = exact_match(answer, question.golds) if question.golds else None
        if exact_match(answer, question.rejected) and not matched:
            return Verdict(exact_match=False)
        if self.judge is None or matched is False:
            return Verdict(matched)
        evidence = () if question.golds else [p for run in trajectory.executions for p in run.report.evidence]
        ledger = self.context().ledger
        accepted = await self.judge.accepts(question.text, question.golds, answer, ledger, evidence)
        return Verdict(matched, accepted, judged=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """The teacher's run, with what came of it."""

    question: Question
    trajectory: Trajectory
    verdict: Verdict


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
