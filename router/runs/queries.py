"""Access of callers to their own runs: results, lists, events, cancellation, feedback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from weakref import WeakValueDictionary

from cachetools import TTLCache
from msgspec.structs import replace

from router.background import at_most, free_slowly
from router.errors import BadRequest, StoreFailed
from router.runs.archive import Archive, ExportedRun, RunFigures, RunFilter, RunPage
from router.runs.lifecycle import POLL_S, ended_run
from router.runs.live import LiveRuns
from router.trace import Event, Run
from router.trace.identity import Identity
from router.trace.run import MAX_CHARS, Feedback

_AFTER_EVENTS = 2
"""Number of messages that a stream sends after the events of a run: the usage, and the answer or
table.
"""

_LARGE = 200
"""An ended run with at least this many model calls is cached after it was loaded."""
_KEPT_S = 30.0
"""Seconds that an ended run stays in the cache."""
_USED_S = 60.0
"""After a run has left the cache, requests may still use it for this many seconds. Then the memory
of the run is freed.
"""

_PROGRESS_S = 2.0
"""Max seconds to wait for the progress of a run from the gateway that works on it."""

OnFeedback = Callable[[Feedback], Awaitable[None]]


async def _ignore(_feedback: Feedback) -> None:
    """Ignore the feedback."""


class Runs:
    """Gives callers access to the runs of their tenant, and operators to all runs. A run that the
    caller may not see is treated as if it did not exist.
    """

    def __init__(
        self,
        archive: Archive,
        live: LiveRuns,
        on_feedback: OnFeedback = _ignore,
    ) -> None:
        """`archive`: the stored runs. `live`: the runs under way in this process. `on_feedback`:
        called with each piece of feedback after it was stored; must not raise.
        """
        self._archive = archive
        self._live = live
        self._on_feedback = on_feedback
        self._ended: TTLCache[str, Run] = TTLCache(4, _KEPT_S)
        self._loading = WeakValueDictionary[str, asyncio.Lock]()
        """A lock for each run that is being loaded, so that concurrent readers load it once."""

    async def get(self, run_id: str, identity: Identity) -> Run:
        """Return a run. A run under way has the events and calls so far. If another gateway is
        running it, the events and calls of the last half second may be missing, or all of them if
        that gateway does not answer. Raises `NotFound` if there is no such run, or if the caller
        may not see it.
        """
        async with self._loading.setdefault(run_id, asyncio.Lock()):
            run = self._ended.get(run_id)
            if run is None or not identity.sees(run.tenant):
                run = await self._archive.load(run_id, identity.tenant)
                if len(run.calls) >= _LARGE and run.status not in ("running", "interrupted"):
                    self._ended[run_id] = run
                    executions = getattr(run.result, "executions", ())
                    free_slowly((*run.events, *executions), _KEPT_S + _USED_S)
        if run.status != "running":
            return run
        if live := self._live.find(run_id):
            return replace(run, events=tuple(live.events))

        async with at_most(_PROGRESS_S):
            while progress := await self._archive.progress(run_id):
                run = replace(run, **progress._asdict())
                if run.events:
                    return run
                await asyncio.sleep(POLL_S)
            return await self._archive.load(run_id)  # it has ended
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
        """Return a page of at most `size` runs that match `wanted`, newest first. `page`: the token
        of the page; empty for the first page. Raises `BadRequest` if the token is invalid.
        """
        own = _own(wanted, identity)
        return await self._archive.list(own, size, page) if own else RunPage((), "")

    async def figures(
        self, wanted: RunFilter, starts: Sequence[float], identity: Identity
    ) -> Sequence[RunFigures]:
        """Return the figures of runs for each span of time that begins at one of `starts`. See
        `Archive.figures`.
        """
        own = _own(wanted, identity)
        return await self._archive.figures(own, starts) if own else [RunFigures()] * len(starts)

    async def export(self, wanted: RunFilter, identity: Identity) -> AsyncIterator[ExportedRun]:
        """Yield all ended runs that match `wanted`, with their feedback, oldest first."""
        if own := _own(wanted, identity):
            async for exported in self._archive.export(own):
                yield exported

    async def watch(
        self,
        run_id: str,
        after: int,
        identity: Identity,
    ) -> AsyncIterator[tuple[int, Event | Run]]:
        """Yield each event of an answer or a table with its number, from number `after` + 1 on. If
        the run is under way, events are yielded as they arrive. The last item is the ended run,
        with the number of the last message of its stream (see `_AFTER_EVENTS`).

        Raises `NotFound` if there is no such run, `BadRequest` for a run of another kind and for a
        number that the run has not reached, and `StoreFailed` if the run could not be stored.
        """
        run = await self._archive.load(run_id, identity.tenant)
        if after < 0:
            raise BadRequest(
                f"after_event_number must be 0 or the number of an event, got {after}."
            )
        if run.kind not in ("answer", "table"):
            raise BadRequest(
                f"run_id {run_id!r}: is of kind {run.kind}, but only answers and tables have "
                f"events; `rolegate runs show {run_id}` shows the run."
            )
        ended: Run | None = run
        if live := self._live.find(run_id):
            async for number, event in live.watch(after):
                yield number, event
                after = number
            ended = await asyncio.shield(live.ended)
        elif run.status == "running":
            while progress := await self._archive.progress(run_id, after):
                for event in progress.events:
                    after += 1
                    yield after, event
                await asyncio.sleep(POLL_S)
            ended = await ended_run(run_id, self._archive, self._live, identity.tenant)
        if ended is None:
            raise StoreFailed(
                f"Run {run_id} could not be stored, so its answer is not returned; ask again."
            )
        run = ended
        last = len(run.events) + _AFTER_EVENTS
        if after >= last and run.status == "finished":
            raise BadRequest(
                f"after_event_number must be below {last}, the number of the last event of run "
                f"{run_id}, got {after}."
            )
        for number, event in enumerate(run.events[after:], after + 1):
            yield number, event
        yield last, run

    async def cancel(self, run_id: str, identity: Identity) -> None:
        """Cancel a run, in this process or in another one that shares the store. Does nothing if
        the run has ended. Raises `NotFound` if there is no such run, or if the caller may not see
        it.
        """
        if (live := self._live.find(run_id)) and identity.sees(live.tenant):
            live.cancel()
        elif (await self._archive.load(run_id, identity.tenant)).status == "running":
            await self._archive.request_cancel(run_id)

    async def feedback(self, feedback: Feedback, identity: Identity) -> str:
        """Store a client's feedback on a run, and return the identifier of the feedback.

        Raises `BadRequest` if the feedback is invalid or the run has too much feedback already, and
        `NotFound` if there is no such run, or if the caller may not see it.
        """
        if feedback.empty:
            raise BadRequest(
                "The feedback is empty; give a verdict, a score, a right_answer or a comment."
            )
        if feedback.score is not None and not 0 <= feedback.score <= 1:
            raise BadRequest(f"score must be between 0 and 1, got {feedback.score}.")
        for name, text in (("right_answer", feedback.right_answer), ("comment", feedback.comment)):
            if len(text) > MAX_CHARS:
                raise BadRequest(
                    f"{name} must have at most {MAX_CHARS} characters, got {len(text)}."
                )
        feedback = replace(feedback, tenant=identity.tenant)
        feedback_id = await self._archive.add_feedback(feedback)
        await self._on_feedback(feedback)
        return feedback_id


def _own(wanted: RunFilter, identity: Identity) -> RunFilter | None:
    """Return the filter, restricted to runs that the caller may see; None if the caller may see no
    run that matches it.
    """
    if wanted.tenant is not None and not identity.sees(wanted.tenant):
        return None
    return replace(wanted, tenant=identity.tenant or wanted.tenant)
