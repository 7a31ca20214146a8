"""Test of a candidate with held-out questions from the operator. The candidate and the active
version answer these questions before the gate promotes the candidate.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

from msgspec import Meta

from router.background import task_group
from router.errors import BadVersion, ContextTooLong, OutOfTime
from router.frozen import Frozen
from router.protocol import exact_match
from router.runs import RequestOptions, RunLifecycle
from router.runs.lifecycle import OpenRun, RunRequest
from router.search import FactorizedSearch
from router.search.executor import Executes
from router.trace import Run, Trajectory
from router.versions.routing import VersionRouting
from router.versions.trials import hindered

_AT_ONCE = 4
_MIN_KNOWN = 0.9
"""Min share of the questions that must have a result for both versions; otherwise the test fails.
"""


class HeldOutQuestion(Frozen):
    """A question on which no version was trained: one line of a JSONL file, as a JSON object. Other
    keys of the object are ignored.
    """

    question: Annotated[str, Meta(min_length=1)]
    golden_answers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Right answers; an answer that matches any of them counts as right."""


class HeldOutTest:
    """Lets two versions answer the operator's held-out questions, and compares their answers."""

    def __init__(
        self,
        questions: Sequence[HeldOutQuestion],
        executors: VersionRouting,
        search: Callable[[Executes], FactorizedSearch],
        lifecycle: RunLifecycle,
    ) -> None:
        """`executors`: returns the executor of each version. `search`: returns the search loop with
        a given executor. `lifecycle`: opens the runs in which the questions are answered.
        """
        self._questions = list(dict.fromkeys(questions))
        self._executors = executors
        self._search = search
        self._lifecycle = lifecycle
        self.size = len(self._questions)

    async def compare(
        self,
        candidate: str,
        active: str,
        since: float,
    ) -> list[tuple[bool, bool]]:
        """Return for each question whether the candidate is right, and whether the active version
        is right. Questions that failed for reasons other than the versions are left out.

        Each version answers each question in a separate run, which is booked to the operator.
        `since`: start of the trial; a repeated call with the same value reuses stored runs.

        Raises `BadVersion` if these versions are not in use at this gateway, or if too many
        questions failed. Also raises the errors of `RunLifecycle.open` and of the search.
        """
        traffic = self._executors.traffic
        if (traffic.candidate, traffic.active) != (candidate, active):
            raise BadVersion(
                f"{candidate}: is not on trial at this gateway, so it cannot be tested; if its "
                "trial has not ended, search the gateway's log for version.not_loaded."
            )
        places = asyncio.Semaphore(_AT_ONCE)

        async def both(number: int, question: HeldOutQuestion) -> tuple[bool | None, bool | None]:
            async with places:
                name = f"held-out {number} of {candidate} since {since}"
                candidate_right = await self._right(question, candidate, name)
                return candidate_right, await self._right(question, active, name)

        async with task_group() as group:  # the first error cancels all other questions
            asking = [group.create_task(both(*item)) for item in enumerate(self._questions)]
        results = [task.result() for task in asking]
        known = [
            (candidate_right, active_right)
            for candidate_right, active_right in results
            if candidate_right is not None and active_right is not None
        ]
        if len(known) < _MIN_KNOWN * self.size:
            raise BadVersion(
                f"{candidate}: {self.size - len(known)} of {self.size} held-out questions failed; "
                "find the cause with `rolegate runs list --kind shadow`, and then restart the "
                f"trial with `rolegate versions shadow {candidate}`."
            )
        return known

    async def _right(
        self,
        question: HeldOutQuestion,
        version: str,
        name: str,
    ) -> bool | None:
        """Return whether a version answers a question correctly; None after a failure that is not
        the version's fault. `name`: the beginning of the run's `request_id`.
        """
        request = RunRequest("shadow", question.question, (version, question.question))
        begun = False
        try:
            async with self._lifecycle.open(
                request, RequestOptions(request_id=f"{name} with {version}")
            ) as run:
                begun = True
                if isinstance(run, OpenRun):
                    search = self._search(self._executors.of(version))
                    run.context.draft.result = await search.run(question.question, run.context)
        except (ContextTooLong, OutOfTime):
            return False if begun else None
        ended = run if isinstance(run, Run) else run.stored
        assert isinstance(ended.result, Trajectory)
        lost = any(execution.outcome == "model_failed" for execution in ended.result.executions)
        if lost or hindered(ended):
            return None
        return exact_match(ended.result.answer, question.golden_answers)
