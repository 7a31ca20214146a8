"""Questions of the operator's that no version has learnt from, asked with two versions before
one is promoted.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from router.background import task_group
from router.errors import BadVersion, ContextTooLong, OutOfTime
from router.protocol import exact_match
from router.runs import RequestOptions, RunLifecycle
from router.runs.lifecycle import OpenRun, RunRequest
from router.search import FactorizedSearch
from router.search.executor import Executes
from router.trace import Run, Trajectory
from router.versions.routing import VersionRouting
from router.versions.trials import hindered

_AT_ONCE = 4
_LEAST_KNOWN = 0.9
"""The share of questions that both versions have to come to an end with, be it right or wrong."""


class HeldOutQuestion(msgspec.Struct, frozen=True):
    """A question of the operator's that no version has learnt from; a line of a file, where
    other keys are ignored.
    """

    question: Annotated[str, Meta(min_length=1)]
    golden_answers: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Any of them is right."""


class HeldOutTest:
    """The operator's questions, which are asked with two versions."""

    def __init__(
        self,
        questions: Sequence[HeldOutQuestion],
        executors: VersionRouting,
        search: Callable[[Executes], FactorizedSearch],
        lifecycle: RunLifecycle,
    ) -> None:
        """`search`: the search loop with an executor."""
        self._questions = list(dict.fromkeys(questions))
        self._executors = executors
        self._search = search
        self._lifecycle = lifecycle
        self.size = len(self._questions)

    async def compare(self, candidate: str, active: str, since: float) -> list[tuple[bool, bool]]:
        """Whether the candidate and the active version are right on questions, each in runs of its
        own, which are the operator's; without the few that something else spoiled. Asked again with
        the same `since`, runs that are stored are not made anew. Raises `BadVersion` where the
        versions do not work here, and what `RunLifecycle.open` and the search raise.
        """
        traffic = self._executors.traffic
        if (traffic.candidate, traffic.active) != (candidate, active):
            raise BadVersion(
                f"{candidate}: is not in use here, so that held-out questions tell nothing of it."
            )
        places = asyncio.Semaphore(_AT_ONCE)

        async def both(number: int, question: HeldOutQuestion) -> tuple[bool | None, bool | None]:
            async with places:
                name = f"held-out {number} of {candidate} since {since}"
                return await self._right(question, candidate, name), await self._right(
                    question, active, name
                )

        async with task_group() as group:  # the first error cancels all other questions
            asking = [group.create_task(both(*each)) for each in enumerate(self._questions)]
        found = [task.result() for task in asking]
        known = [(one, other) for one, other in found if one is not None and other is not None]
        if len(known) < _LEAST_KNOWN * self.size:
            raise BadVersion(
                f"{candidate}: {self.size - len(known)} of {self.size} held-out "
                "questions came to nothing; see what "
                "failed (rolegate runs list), and begin its trial anew."
            )
        return known

    async def _right(self, question: HeldOutQuestion, version: str, name: str) -> bool | None:
        """Whether a version is right on a question; None where that is not known."""
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
        return (
            None
            if lost or hindered(ended)
            else exact_match(ended.result.answer, question.golden_answers)
        )
