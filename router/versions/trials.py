"""Trials: after a run has been answered by one version of the executor, another version works on
the same question, and the two results are recorded for the gate.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog
from msgspec.structs import replace

from router.background import background_tasks, errors_logged
from router.errors import ContextTooLong, OutOfTime, UpstreamError
from router.ledger import Ledger
from router.protocol import exact_match
from router.runs import RequestOptions, RunLifecycle
from router.runs.archive import Archive
from router.runs.lifecycle import OpenRun, RunRequest
from router.search import FactorizedSearch
from router.search.answerer import Judge
from router.search.executor import Executes
from router.trace import Call, Run, Trajectory
from router.trace.identity import SHADOW
from router.trace.run import Feedback
from router.versions.book import (
    Judgement,
    Side,
    Traffic,
    Trial,
    VersionBook,
    judge,
)
from router.versions.routing import VersionRouting

_log = structlog.get_logger("trials")
_AT_ONCE = 4
_WAITING = 64
_CUT = ("time_exhausted", "budget_exhausted", "clarify")
"""Outcomes of runs that get no trial. Runs whose time or budget was exhausted were ended by limits
of the client, which do not apply to the other version. In a run with the outcome `clarify`, no
executor has worked.
"""
_HINDERED = ("budget_exhausted", "retrieval_failed")
"""Outcomes, of runs and of executions, for which no version is to blame."""
_REVIEWING_SHARE = 0.1
"""Max share of the time that is spent on reviews, because each review reads all trials of the
candidate.
"""
_LONGEST_PAUSE_S = 5.0
"""Max seconds between two reviews. Applies after long reviews, such as one with held-out questions.
"""


class Trials:
    """Repeats the questions of runs with the other version, after the clients have their answers,
    and records the results of both versions for the gate.
    """

    def __init__(
        self,
        executors: VersionRouting,
        search: Callable[[Executes], FactorizedSearch],
        *,
        lifecycle: RunLifecycle,
        book: VersionBook,
        archive: Archive,
        review: Callable[[], Awaitable[object]],
        judge: Judge | None,
    ) -> None:
        """`executors`: knows the versions in use, and returns the executor of each version.
        `search`: returns the search loop with a given executor. `lifecycle`: opens the runs of the
        trials. `review`: lets the gate decide on the recorded trials. `judge`: a model that judges
        the two answers of a trial if they differ; None for no judge.
        """
        self._executors = executors
        self._search = search
        self._lifecycle = lifecycle
        self._book = book
        self._archive = archive
        self._review = review
        self._judging = judge
        self._waiting = asyncio.Queue[tuple[Run, Traffic]](_WAITING)
        self._news = asyncio.Event()
        self._news.set()  # for trials that an earlier process recorded
        self.dropped = 0
        """Number of runs that have no trial because the queue was full."""

    def consider(self, run: Run) -> None:
        """Queue a run for a trial if there is a version to compare with and the queue has room."""
        traffic = self._executors.traffic
        if traffic.other(run.id) is None or not _comparable(run):
            return
        try:
            self._waiting.put_nowait((run, traffic))
        except asyncio.QueueFull:
            self.dropped += 1

    async def judge(self, feedback: Feedback) -> None:
        """Record which answers of a trial are right, according to feedback on the trial's run. Do
        nothing if the run has no trial. Errors are logged.
        """
        with errors_logged(_log, "trial.not_judged", run_id=feedback.run_id):
            if trial := await self._book.trial(feedback.run_id):
                await self._judge(trial, feedback)

    async def work(self) -> None:
        """Work on queued trials, and let the gate review the results. Never returns."""
        async with background_tasks(*(self._try_all() for _ in range(_AT_ONCE))):
            while True:
                await self._news.wait()
                self._news.clear()
                begun = time.monotonic()
                with errors_logged(_log, "trials.not_reviewed"):
                    await self._review()
                    await self._executors.refresh()
                pause_s = (time.monotonic() - begun) * (1 / _REVIEWING_SHARE - 1)
                await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    async def _try_all(self) -> None:
        while True:
            run, traffic = await self._waiting.get()
            if traffic == self._executors.traffic:  # else the candidate or its stage has changed
                with errors_logged(_log, "trial.given_up", run_id=run.id):
                    await self._try(run, traffic)

    async def _try(self, run: Run, traffic: Traffic) -> None:
        calls = (call for call in run.calls if call.role == "execution")
        first = min(calls, key=lambda call: call.number, default=None)
        served = first and first.executor_version
        other = traffic.other(run.id)
        if (
            traffic.candidate is None
            or traffic.stage is None
            or other is None
            or served != traffic.serving(run.id)
        ):
            return  # the traffic has changed since the run began
        result = await self._run_other(run, other)
        if result is None:
            error = "A used-up budget, or a failure outside the executor, ended the repeated run."
            _log.warning("trial.given_up", run_id=run.id, error=error)
        if result is None or self._executors.traffic != traffic:
            return

        other_side, right = result
        sides = {served: _side(run.result, run.calls, served), other: other_side}
        trial = Trial(
            run.id,
            traffic.candidate,
            traffic.active,
            traffic.stage,
            served == traffic.candidate,
            sides[traffic.candidate],
            sides[traffic.active],
            time.time(),
        )
        await self._book.add_trial(trial)
        if right is not None:
            by_version = dict(zip((served, other), right, strict=True))
            judgement = Judgement(
                by_version[traffic.candidate], by_version[traffic.active], "judge"
            )
            await self._book.judge(run.id, judgement)
        for feedback in await self._archive.feedback(run.id):
            await self._judge(trial, feedback)
        self._news.set()
        _log.info(
            "trial.ended",
            run_id=run.id,
            candidate=trial.candidate,
            stage=trial.stage,
            dropped=self.dropped,
        )

    async def _run_other(self, run: Run, version: str) -> tuple[Side, list[bool] | None] | None:
        """Work on a run's question with another version. Return that version's result, and the
        judge's verdicts on the client's answer and on the other answer; the verdicts are None if
        the judge gave none. Return None if the run failed for a reason that is not the version's
        fault, such as an unreachable endpoint.
        """
        assert isinstance(run.result, Trajectory)
        search = self._search(self._executors.of(version))
        opened = None
        request = RunRequest("shadow", run.question, run.id)
        identity = replace(SHADOW, indexes=run.scope.indexes)
        options = RequestOptions(identity, filter=run.scope.filter)
        try:
            async with self._lifecycle.open(request, options) as trial:
                assert isinstance(trial, OpenRun)
                opened = trial
                other = await search.again(run.question, run.result, trial.context)
                trial.context.draft.result = other
                right = await self._verdicts(
                    run.question, (run.result, other), trial.context.ledger
                )
        except (ContextTooLong, OutOfTime):
            if opened is None:
                raise
            return Side("", True, _tokens(opened.context.ledger.calls)), None
        stored = trial.stored
        return None if hindered(stored) else (_side(stored.result, stored.calls, version), right)

    async def _verdicts(
        self,
        question: str,
        trajectories: tuple[Trajectory, Trajectory],
        ledger: Ledger,
    ) -> list[bool] | None:
        """Return the judge's verdicts on two answers; None if there is no judge, if the answers are
        equal, or if a verdict is missing. The judge sees one answer at a time, with the evidence of
        both versions, so that it cannot know which version wrote the answer.
        """
        answers = [trajectory.answer for trajectory in trajectories]
        if self._judging is None or exact_match(answers[1], answers[:1]):
            return None
        executions = (*trajectories[0].executions, *trajectories[1].executions)
        points = sorted({point for execution in executions for point in execution.report.evidence})
        try:
            verdicts = [
                await self._judging.accepts(question, (), answer, ledger, points)
                for answer in answers
            ]
        except UpstreamError as error:
            _log.warning("trial.judge_failed", error=str(error))
            return None
        known = [right for right in verdicts if right is not None]
        return known if len(known) == len(answers) else None

    async def _judge(self, trial: Trial, feedback: Feedback) -> None:
        if judgement := judge(trial, feedback):
            await self._book.judge(trial.run_id, judgement)
            self._news.set()


def _comparable(run: Run) -> bool:
    """Return whether a run can have a trial: it ended normally, and its own executors wrote all its
    reports. If it took a report from another run, the tokens of the report are booked in the other
    run, so they could not be compared.
    """
    result = run.result
    if not isinstance(result, Trajectory) or result.topology != "factorized":
        return False
    if not result.executions or any(execution.shared_from for execution in result.executions):
        return False
    return result.outcome not in _CUT and not hindered(run)


def hindered(run: Run) -> bool:
    """Return whether a run had a failure that is not the fault of any version, such as a failed
    search. Such a run does not count as evidence.
    """
    assert isinstance(run.result, Trajectory)
    executions = run.result.executions
    worked = {call.sub_query_index for call in run.calls}
    if any(
        execution.outcome == "model_failed" and index not in worked
        for index, execution in enumerate(executions)
    ):
        return True  # no call was made, because too many had failed before
    outcomes = {run.result.outcome, *(execution.outcome for execution in executions)}
    return not outcomes.isdisjoint(_HINDERED) or any(
        call.outcome == "connect_error"
        or (call.purpose == "fallback" and call.executor_version is None)
        for call in run.calls
        if call.role != "judge"
    )


def _side(result: object, calls: Iterable[Call], version: str | None) -> Side:
    """Return the result of `version` in a run. The result counts as failed if an executor failed,
    or if another version worked on any of the sub-queries.
    """
    assert isinstance(result, Trajectory)
    failed = any(
        execution.failed or execution.executor != version for execution in result.executions
    )
    return Side(result.answer, failed, _tokens(calls))


def _tokens(calls: Iterable[Call]) -> int:
    return sum(call.usage.total_tokens for call in calls if call.role == "execution" and call.usage)
