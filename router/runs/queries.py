"""Runs as their owners see them: what became of them, what happens in them, what is thought of
them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from weakref import WeakValueDictionary

import msgspec
from cachetools import TTLCache

from router.errors import BadRequest, StoreFailed
from router.runs.archive import Archive, ExportedRun, RunFilter, RunPage
from router.runs.lifecycle import ended_run
from router.runs.live import LiveRuns
from router.trace import Event, Run
from router.trace.identity import Identity
from router.trace.run import MAX_CHARS, Feedback

_AFTER_EVENTS = 2
"""What is told after a run's own events: the tokens, and the answer."""

_LARGE = 200
_KEPT_S = 30.0
"""Calls of an ended run that is kept when it was read, and how long; for those who look at it."""

Heard = Callable[[Feedback], Awaitable[None]]


async def _ignore(_feedback: Feedback) -> None:
    """Do nothing more."""


class Runs:
    """Shows everybody their own runs; others' are as if they were not there."""

    def __init__(self, archive: Archive, live: LiveRuns, heard: Heard = _ignore) -> None:
        """`heard` is told of all feedback, once it is kept; raises nothing."""
        self._archive = archive
        self._live = live
        self._heard = heard
        self._ended: TTLCache[str, Run] = TTLCache(4, _KEPT_S)
        self._loading = WeakValueDictionary[str, asyncio.Lock]()
        """Of the runs that are being read: by one, while all others who want the same wait."""

    async def get(self, run_id: str, identity: Identity) -> Run:
        """A run, ended or running, then with its events so far where that is here. Raises
        `NotFound`.
        """
        async with self._loading.setdefault(run_id, asyncio.Lock()):
            run = self._ended.get(run_id)
            if run is None or not identity.sees(run.tenant):
                run = await self._archive.load(run_id, identity.tenant)
            if len(run.calls) >= _LARGE and run.status not in ("running", "interrupted"):
                self._ended[run_id] = run
        live = self._live.find(run_id)
        return (
            msgspec.structs.replace(run, events=tuple(live.events))
            if live and run.status == "running"
            else run
        )

    async def feedback_on(self, run: Run) -> tuple[Feedback, ...]:
        """Feedback on it, oldest first."""
        return await self._archive.feedback(run.id)

    async def list(self, wanted: RunFilter, size: int, page: str, identity: Identity) -> RunPage:
        """Runs, newest first. Raises `BadRequest` for a page that there is not."""
        return (
            await self._archive.list(_own(wanted, identity), size, page)
            if _may(wanted, identity)
            else RunPage((), "")
        )

    def export(self, wanted: RunFilter, identity: Identity) -> AsyncIterator[ExportedRun]:
        """All runs that have ended, with their feedback, oldest first."""
        return (
            self._archive.export(_own(wanted, identity)) if _may(wanted, identity) else _nothing()
        )

    async def watch(
        self, run_id: str, after: int, identity: Identity
    ) -> AsyncIterator[tuple[int, Event | Run]]:
        """Events of an answer or a table, from event `after` + 1 on; the last item is the run, with
        the number of the event that tells it. Raises `NotFound`, `BadRequest` for other kinds of
        run and for numbers that there are not, and `StoreFailed`.
        """
        run = await self._archive.load(run_id, identity.tenant)
        if after < 0:
            raise BadRequest(
                f"after_event_number is {after}; it must be 0 or the number of an event."
            )
        if run.kind not in ("answer", "table"):
            raise BadRequest(
                f"run_id {run_id!r}: is no answer and no table; others have no events."
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
            raise BadRequest(f"after_event_number is {after}; run {run_id} has events 1 to {last}.")
        for number, event in enumerate(run.events[after:], after + 1):
            yield number, event
        yield last, run

    async def cancel(self, run_id: str, identity: Identity) -> None:
        """Stop a run, also one of another process; one that has ended stays as it is. Raises
        `NotFound`.
        """
        if (live := self._live.find(run_id)) and identity.sees(live.tenant):
            live.cancel()
        elif (await self._archive.load(run_id, identity.tenant)).status == "running":
            await self._archive.request_cancel(run_id)

    async def feedback(self, feedback: Feedback, identity: Identity) -> str:
        """Keep what a client thinks of a run; the feedback's identifier. Raises `BadRequest`
        and `NotFound`.
        """
        if feedback.empty:
            raise BadRequest(
                "the feedback is empty; give a verdict, a score, a right_answer or a comment."
            )
        if feedback.score is not None and not 0 <= feedback.score <= 1:
            raise BadRequest(f"score is {feedback.score}; it must be from 0 to 1.")
        for name, text in (("right_answer", feedback.right_answer), ("comment", feedback.comment)):
            if len(text) > MAX_CHARS:
                raise BadRequest(
                    f"{name} has {len(text)} characters; at most {MAX_CHARS} are kept."
                )
        feedback = msgspec.structs.replace(feedback, tenant=identity.tenant)
        feedback_id = await self._archive.add_feedback(feedback)
        await self._heard(feedback)
        return feedback_id


def _may(wanted: RunFilter, identity: Identity) -> bool:
    return wanted.tenant is None or identity.sees(wanted.tenant)


def _own(wanted: RunFilter, identity: Identity) -> RunFilter:
    return (
        wanted
        if identity.tenant is None
        else msgspec.structs.replace(wanted, tenant=identity.tenant)
    )


async def _nothing() -> AsyncIterator[ExportedRun]:
    nothing: tuple[ExportedRun, ...] = ()
    for told in nothing:
        yield told
