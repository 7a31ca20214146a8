"""Rollouts: teacher and student on the same sub-queries, under the same backbone (TBSS 3.4)."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from executor_sft.asking import failures
from executor_sft.jsonl import JsonlFile
from executor_sft.questions import Question
from executor_sft.runtime import Runtime
from router.errors import BadConfig, OutOfTime
from router.protocol import exact_match
from router.search import Executor, FactorizedSearch, RunContext
from router.search.answerer import Judge
from router.trace import Execution, Trajectory
from serving.config.config import Config, RoleConfig
from serving.files import write_atomically


class Verdict(msgspec.Struct, frozen=True):
    """Correctness of a final answer."""

    exact_match: bool | None
    """None where no right answer is known."""
    accepted: bool | None = None
    """The judge's verdict; None where it was not asked, or its reply could not be read."""
    judged: bool = False
    """The judge was asked."""

    @property
    def correct(self) -> bool:
        """By exact match, where a right answer is known, and by the judge, where one was asked (TBSS 3.4)."""
        return self.accepted is True and self.exact_match is not False if self.judged else self.exact_match is True


class Sample(msgspec.Struct, frozen=True):
    """One executor's work on one sub-query, and the answer that it leads to in the teacher's run."""

    execution: Execution
    answer: str
    verdict: Verdict


class SubQueryRollout(msgspec.Struct, frozen=True):
    """A sub-query with all samples of it."""

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
    sub_queries: tuple[SubQueryRollout, ...] = ()
    """In order of dispatch."""


_TIME = "time ran out; allow more with server.timeout_s, or ask for less at once with --concurrency."


def check_failures(trajectory: Trajectory, first: int, context: RunContext) -> None:
    """Raise the failure that a run answered in spite of: time ran out, or an endpoint failed. `first`: the number of
    the first sub-query that was worked on in `context`.
    """
    for index, execution in enumerate(trajectory.executions[first:], first):
        check_execution(execution, index, context)
    if trajectory.outcome == "time_exhausted":
        raise OutOfTime(_TIME)


def check_execution(execution: Execution, index: int, context: RunContext) -> None:
    """Raise the failure that an execution reported in spite of. `index`: the number of its sub-query."""
    match execution.outcome:
        case "timed_out":
            raise OutOfTime(_TIME)
        case "retrieval_failed" | "model_failed":
            raise context.failures[index]


@dataclass(frozen=True, slots=True)
class RolloutWorker:
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
        """Sample `question` and its sub-queries. An executor that could not do its work is an error, not a sample:
        raises `UpstreamError`, `OutOfTime` and `StoreFailed`.
        """
        context = self.context()
        trajectory = await self.search.run(question.text, context)
        check_failures(trajectory, 0, context)
        run = Rollout(question, trajectory, await self._verdict(question, trajectory))
        rollouts: list[SubQueryRollout] = []
        for number in range(len(trajectory.rounds)):
            for place, execution in enumerate(trajectory.block(number)):
                student = await self._sample(self.student, run, number, place)
                needed = run.verdict.correct and len(execution.searches) >= 2
                capped = await self._sample(self.capped, run, number, place) if needed else None
                rollouts.append(SubQueryRollout(Sample(execution, trajectory.answer, run.verdict), student, capped))
        return msgspec.structs.replace(run, sub_queries=tuple(rollouts))

    async def _sample(self, executor: Executor, run: Rollout, number: int, place: int) -> Sample:
        """The work of `executor` on a sub-query, by its round and its place there, and where its report leads to."""
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
        check_failures(led, first + len(block), context)
        return Sample(execution, led.answer, await self._verdict(run.question, led))

    async def _verdict(self, question: Question, trajectory: Trajectory) -> Verdict:
        """The verdict on an answer; the judge is asked only where it decides."""
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


ROLLOUTS, CALLS = "rollouts.jsonl", "calls.jsonl"
ADVICE = "remove this line, and it is rolled out again"
"""For a line that is no rollout."""


def teacher_config(config: Config) -> RoleConfig:
    """The teacher's role. Raises `BadConfig` where the config names none, or one with a prompt of its own."""
    teacher, student = config.distillation.teacher, config.roles.execution
    if teacher is None:
        raise BadConfig(
            "distillation.teacher: is not set; add a table [distillation.teacher] with model, prompt and where it is "
            "served, as in [roles.execution], which is the student."
        )
    if Path(teacher.prompt).read_text("utf-8").strip() != Path(student.prompt).read_text("utf-8").strip():
        raise BadConfig(
            f"distillation.teacher.prompt: {teacher.prompt} differs from {student.prompt}; name the prompt of "
            "roles.execution, as the student learns under the one that it serves with."
        )
    return teacher


def rollout_worker(runtime: Runtime) -> RolloutWorker:
    """A worker with the config's teacher and student. Raises `BadConfig`."""
    teacher = runtime.role("execution", teacher_config(runtime.config))
    capped = runtime.executor(teacher, replace(runtime.limits, max_searches=1))
    search = runtime.search(runtime.executor(teacher))
    return RolloutWorker(search, runtime.executor(), capped, runtime.judge, runtime.context)


async def roll_out_all(
    worker: RolloutWorker, questions: Sequence[Question], path: Path, concurrency: int, on_done: Callable[[], None]
) -> dict[str, str]:
    """Roll out whatever is not in `path` yet, so many questions at once; a line for each, at the end in the order of
    the questions. Returns why questions failed, by their ids; these are not in the file. `on_done`: called for every
    question that is done, before or now, or has failed.

    Raises what `failures` raises, and `StoreFailed`; all that was done is then kept.
    """
    with closing(JsonlFile(path, Rollout, ADVICE)) as file:
        done = {rollout.question.id for rollout in file}
        for _ in done:
            on_done()

        async def one(question: Question) -> None:
            file.append(await worker.roll_out(question))

        failed = await failures(
            one,
            [question for question in questions if question.id not in done],
            concurrency,
            on_done,
            name=lambda question: question.id,
            so_far=lambda count: f"{count} of {len(questions)} questions are rolled out",
            done=len(done),
        )
        rollouts = {rollout.question.id: rollout for rollout in file}
    ordered = [rollouts[question.id] for question in questions if question.id in rollouts]
    write_atomically(path, msgspec.json.Encoder().encode_lines(ordered))  # does not tell who was quicker
    return failed
