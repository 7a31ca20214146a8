"""Runs as their owners see them: results, events, feedback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from weakref import WeakValueDictionary

import msgspec
from cachetools import TTLCache

from router.background import free_slowly
from router.errors import BadRequest, StoreFailed
from router.runs.archive import Archive, ExportedRun, RunFilter, RunPage
from router.runs.lifecycle import ended_run
from router.runs.live import LiveRuns
from router.trace import Event, Run
from router.trace.identity import Identity
from router.trace.run import MAX_CHARS, Feedback

_AFTER_EVENTS = 2
"""Messages that follow a run's own events: the tokens, and the answer."""

_LARGE = 200
"""Number of calls from which on an ended run is cached."""
_KEPT_S = 30.0
"""How long it is cached."""
_USED_S = 60.0
"""How long it may be used after that."""

OnFeedback = Callable[[Feedback], Awaitable[None]]


async def _ignore(_feedback: Feedback) -> None:
    """Do nothing more."""


class Runs:
    """Shows callers their own runs; other tenants' runs are treated as missing."""

    def __init__(
        self,
        archive: Archive,
        live: LiveRuns,
        on_feedback: OnFeedback = _ignore,
    ) -> None:
        """`on_feedback`: called with all feedback once it is stored; raises nothing."""
        self._archive = archive
        self._live = live
        self._on_feedback = on_feedback
        self._ended: TTLCache[str, Run] = TTLCache(4, _KEPT_S)
        self._loading = WeakValueDictionary[str, asyncio.Lock]()
        """A lock for each run that is being loaded, so that concurrent readers load it once."""

    async def get(self, run_id: str, identity: Identity) -> Run:
        """Return a run. One that runs in this process has its events so far. Raises `NotFound`."""
        async with self._loading.setdefault(run_id, asyncio.Lock()):
            run = self._ended.get(run_id)
            if run is None or not identity.sees(run.tenant):
                run = await self._archive.load(run_id, identity.tenant)
                if len(run.calls) >= _LARGE and run.status not in ("running", "interrupted"):
                    self._ended[run_id] = run
                    executions = getattr(run.result, "executions", ())
                    free_slowly((*run.events, *executions), _KEPT_S + _USED_S)
        live = self._live.find(run_id)
        if live and run.status == "running":
            return msgspec.structs.replace(run, events=tuple(live.events))
        return run

    async def feedback_on(self, run: Run) -> tuple[Feedback, ...]:
        """Return the feedback on a run, oldest first."""
        return await self._archive.feedback(run.id)

    async def list(
        self,
        wanted: RunFilter,
        size: int,
        page: str,
        identity: Identity,
    ) -> RunPage:
        """Return a page of runs, newest first. Raises `BadRequest` for an unknown `page` token."""
        if not _may(wanted, identity):
            return RunPage((), "")
        return await self._archive.list(_own(wanted, identity), size, page)

    def export(self, wanted: RunFilter, identity: Identity) -> AsyncIterator[ExportedRun]:
        """Yield all ended runs with their feedback, oldest first."""
        if not _may(wanted, identity):
            return _nothing()
        return self._archive.export(_own(wanted, identity))

    async def watch(
        self,
        run_id: str,
        after: int,
        identity: Identity,
    ) -> AsyncIterator[tuple[int, Event | Run]]:
        """Yield the events of an answer or a table with their numbers, from `after` + 1 on. The
        last item is the run, with the number of its final message.

        Raises `NotFound`, `BadRequest` for another kind of run and for an unknown number, and
        `StoreFailed`.
        """
        run = await self._archive.load(run_id, identity.tenant)
        if after < 0:
            raise BadRequest(
                f"after_event_number must be 0 or the number of an event, got {after}."
            )
        if run.kind not in ("answer", "table"):
            raise BadRequest(
                f"run_id {run_id!r}: is of kind {run.kind}; only answers and tables have events."
            )
        ended: Run | None = run
        if live := self._live.find(run_id):
            async for number, event in live.watch(after):
                yield number, event
                after = number
            ended = await asyncio.shield(live.ended)
        elif run.status == "running":
            ended = await ended_run(run_id, self._archive, self._live, identity.tenant)
        if ended is None:
            raise StoreFailed(f"Run {run_id} could not be stored, so its answer is withheld.")
        run = ended
        last = len(run.events) + _AFTER_EVENTS
        if after >= last:
            raise BadRequest(
                f"after_event_number must be below {last}, the end of run {run_id}, got {after}."
            )
        for number, event in enumerate(run.events[after:], after + 1):
            yield number, event
        yield last, run

    async def cancel(self, run_id: str, identity: Identity) -> None:
        """Cancel a run, also one of another process; do nothing if it has ended. Raises
        `NotFound`.
        """
        if (live := self._live.find(run_id)) and identity.sees(live.tenant):
            live.cancel()
        elif (await self._archive.load(run_id, identity.tenant)).status == "running":
            await self._archive.request_cancel(run_id)

    async def feedback(self, feedback: Feedback, identity: Identity) -> str:
        """Store a client's feedback on a run and return its identifier. Raises `BadRequest` and
        `NotFound`.
        """
        if feedback.empty:
            raise BadRequest(
                "the feedback is empty; give a verdict, a score, a right_answer or a comment."
            )
        if feedback.score is not None and not 0 <= feedback.score <= 1:
            raise BadRequest(f"score must be between 0 and 1, got {feedback.score}.")
        for name, text in (("right_answer", feedback.right_answer), ("comment", feedback.comment)):
            if len(text) > MAX_CHARS:
                raise BadRequest(
                    f"{name} must have at most {MAX_CHARS} characters, got {len(text)}."
                )
        feedback = msgspec.structs.replace(feedback, tenant=identity.tenant)
        feedback_id = await self._archive.add_feedback(feedback)
        await self._on_feedback(feedback)
        return feedback_id


def _may(wanted: RunFilter, identity: Identity) -> bool:
    return wanted.tenant is None or identity.sees(wanted.tenant)


def _own(wanted: RunFilter, identity: Identity) -> RunFilter:
    if identity.tenant is None:
        return wanted
    return msgspec.structs.replace(wanted, tenant=identity.tenant)


async def _nothing() -> AsyncIterator[ExportedRun]:
    for run in tuple[ExportedRun, ...]():
        yield run
