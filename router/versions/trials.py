"""Trials: a run that was answered is worked on once more, by the version that it is compared
with.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

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
from router.versions.book import Judgement, Side, Traffic, Trial, VersionBook, judge
from router.versions.routing import VersionRouting

_log = structlog.get_logger("trials")
_AT_ONCE = 4
_WAITING = 64
_CUT = ("time_exhausted", "budget_exhausted")
"""Outcomes of runs that ended by the client's terms, under which the other version would not
work.
"""
_HINDERED = ("budget_exhausted", "retrieval_failed")
"""Outcomes that no version can help."""
_REVIEWING_SHARE = 0.1
"""How much of the time reviews may take: each of them goes over all trials."""
_LONGEST_PAUSE_S = 5.0
"""Between two reviews: one that has asked held-out questions has taken long."""


class Trials:
    """Tries the other version after the client has its answer, and tells the gate what came of
    it.
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
        judge: Judge | None = None,
    ) -> None:
        """`search`: the search loop with an executor. `review`: looks at what trials have shown,
        and decides. `judge`: asked which answers are right where the two differ; None where there
        is none.
        """
        self._executors = executors
        self._search = search
        self._lifecycle = lifecycle
        self._book = book
        self._archive = archive
        self._review = review
        self._judging = judge
        self._waiting: asyncio.Queue[tuple[Run, Traffic]] = asyncio.Queue(_WAITING)
        self._news = asyncio.Event()
        self._news.set()  # of what was learnt before this process began
        self.dropped = 0
        """Runs that were not tried because too many waited."""

    def consider(self, run: Run) -> None:
        """Try the run soon, if there is something to compare it with, and not too many wait."""
        traffic = self._executors.traffic
        if traffic.other(run.id) is None or not _comparable(run):
            return
        try:
            self._waiting.put_nowait((run, traffic))
        except asyncio.QueueFull:
            self.dropped += 1

    async def judge(self, feedback: Feedback) -> None:
        """Learn from feedback on a run which of its answers were right."""
        with errors_logged(_log, "trial.not_judged", run_id=feedback.run_id):
            if trial := await self._book.trial(feedback.run_id):
                await self._judge(trial, feedback)

    async def work(self) -> None:
        """Try what is considered, and have it reviewed."""
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
            if traffic == self._executors.traffic:  # else who is served what has changed since
                with errors_logged(_log, "trial.given_up", run_id=run.id):
                    await self._try(run, traffic)

    async def _try(self, run: Run, traffic: Traffic) -> None:
        worked = (call for call in run.calls if call.role == "execution")
        first = min(worked, key=lambda call: call.number, default=None)
        # It worked in the run, or was to
        served = first and first.executor_version
        other = traffic.other(run.id)
        if (
            traffic.candidate is None
            or traffic.stage is None
            or other is None
            or served != traffic.serving(run.id)
        ):
            return  # it has changed since the run began
        tried = await self._run_other(run, other)
        if tried is None:
            _log.warning(
                "trial.given_up",
                run_id=run.id,
                error="A budget or something upstream was in its way.",
            )
        if tried is None or self._executors.traffic != traffic:
            return
        tried_side, right = tried
        sides = {served: _side(run.result, run.calls, served), other: tried_side}
        candidate = sides[traffic.candidate]
        active = sides[traffic.active]
        versions = traffic.candidate, traffic.active, traffic.stage, served == traffic.candidate
        trial = Trial(run.id, *versions, candidate, active, time.time())
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

    async def _run_other(
        self, run: Run, version: str
    ) -> tuple[Side, tuple[bool, bool] | None] | None:
        """What comes of the run with another version, in a run of its own, with the judge's
        verdicts on the answer that was served and on that one; None where that tells nothing of it.
        """
        assert isinstance(run.result, Trajectory)
        search = self._search(self._executors.of(version))
        opened = None
        request = RunRequest("shadow", run.request, run.id)
        try:
            async with self._lifecycle.open(request, RequestOptions(SHADOW)) as trial:
                assert isinstance(trial, OpenRun)
                opened = trial
                found = await search.again(run.request, run.result, trial.context)
                trial.context.draft.result = found
                right = await self._verdicts(run.request, (run.result, found), trial.context.ledger)
        except (ContextTooLong, OutOfTime):
            if opened is None:
                raise
            return Side("", True, _tokens(opened.context.ledger.calls)), None
        tried = trial.stored
        return None if hindered(tried) else (_side(tried.result, tried.calls, version), right)

    async def _verdicts(
        self, question: str, found: tuple[Trajectory, Trajectory], ledger: Ledger
    ) -> tuple[bool, bool] | None:
        """The judge's on two answers, each shown alone, with the evidence of both, so that nothing
        tells whose it is; None where nobody judges, they are the same, or a verdict is missing.
        """
        first, second = (each.answer for each in found)
        if self._judging is None or exact_match(second, [first]):
            return None
        points = sorted(
            {point for each in found for one in each.executions for point in one.report.evidence}
        )
        try:
            right = await self._judging.accepts(question, (), first, ledger, points)
            other = await self._judging.accepts(question, (), second, ledger, points)
        except UpstreamError as error:
            _log.warning("trial.judge_failed", error=str(error))
            return None
        return None if right is None or other is None else (right, other)

    async def _judge(self, trial: Trial, feedback: Feedback) -> None:
        if judgement := judge(trial, feedback):
            await self._book.judge(trial.run_id, judgement)
            self._news.set()


def _comparable(run: Run) -> bool:
    """Whether the run got to its end by its own executors' reports: of shared ones, others have
    the tokens.
    """
    found = run.result
    if not isinstance(found, Trajectory) or found.topology != "factorized" or not found.executions:
        return False
    shared = any(execution.shared_from for execution in found.executions)
    return not shared and found.outcome not in _CUT and not hindered(run)


def hindered(run: Run) -> bool:
    """Whether something was in the run's way that no version can help: evidence for or against
    none.
    """
    assert isinstance(run.result, Trajectory)
    executions = run.result.executions
    worked = {call.sub_query for call in run.calls}
    if any(
        one.outcome == "model_failed" and index not in worked
        for index, one in enumerate(executions)
    ):
        return True  # nobody was asked, because too many calls had failed before
    outcomes = {run.result.outcome, *(execution.outcome for execution in executions)}
    return not outcomes.isdisjoint(_HINDERED) or any(
        call.outcome == "connect_error"
        or (call.purpose == "fallback" and call.executor_version is None)
        for call in run.calls
        if call.role != "judge"
    )


def _side(result: object, calls: Iterable[Call], version: str | None) -> Side:
    """What came of a run with `version`; where another one had to step in, it has failed."""
    assert isinstance(result, Trajectory)
    failed = any(
        execution.failed or execution.executor != version for execution in result.executions
    )
    return Side(result.answer, failed, _tokens(calls))


def _tokens(calls: Iterable[Call]) -> int:
    return sum(call.usage.total_tokens for call in calls if call.role == "execution" and call.usage)
