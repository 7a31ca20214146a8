"""The runs under way in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from router.background import free_slowly
from router.errors import RunCancelled
from router.trace import Event, Run
from router.trace.values import OnEvent

_log = structlog.get_logger("gateway")

Value = TypeVar("Value")
_LARGE = 1000
"""Number of events from which on they are freed slowly."""
_USED_S = 60.0
"""Time after the end of a run in which its last watchers let go of it."""


class LiveRun:
    """A run under way: its events so far, the task that works on it, and its result."""

    def __init__(
        self,
        run_id: str,
        tenant: str,
        task: asyncio.Task[Any],
        on_event: OnEvent,
    ) -> None:
        """`task`: works on the run. `on_event`: called with each event, in addition to the
        watchers.
        """
        self.run_id = run_id
        self.tenant = tenant
        self._on_event = on_event
        self.events: list[Event] = []
        self.ended: asyncio.Future[Run | None] = asyncio.get_running_loop().create_future()
        """The stored run; None if it could not be stored."""
        self._task = task
        self._cancelled = False
        self._ending: asyncio.Future[Any] | None = None
        self._news: asyncio.Event | None = None
        """Set by the next event; None while nobody watches."""

    def on_event(self, event: Event) -> None:
        """Record an event and pass it on."""
        self.events.append(event)
        self._wake()
        self._on_event(event)

    def end(self, run: Run | None) -> None:
        """Mark the run as over."""
        if not self.ended.done():
            self.ended.set_result(run)
            if len(self.events) > _LARGE:
                free_slowly(self.events, _USED_S)
        self._wake()

    def cancel(self) -> None:
        """Cancel the work; the caller gets `RunCancelled`. Do nothing once the run is ending."""
        if not self._cancelled and not self.ended.done():
            self._cancelled = True
            self._task.cancel()

    def reason(self, cancelled: asyncio.CancelledError) -> BaseException:
        """Return the error for the caller: `RunCancelled` if the run was cancelled, and `cancelled`
        itself if the caller left.
        """
        if not self._cancelled:
            return cancelled
        self._task.uncancel()
        return RunCancelled(f"Run {self.run_id} was cancelled.")

    async def until_ended(self, ending: Coroutine[Any, Any, Value], until: float) -> Value:
        """Return the result of `ending`, even if the task is cancelled meanwhile. Raises
        `TimeoutError` at `until`, in the event loop's time; `ending` continues, and the run is over
        when it is done.
        """
        self._ending = future = asyncio.ensure_future(ending)
        loop = asyncio.get_running_loop()
        cancelled = None
        while not future.done() and (left_s := until - loop.time()) > 0:
            try:
                # Unlike awaiting the future, this never cancels it
                await asyncio.wait([future], timeout=left_s)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None and self.reason(cancelled) is cancelled:
            raise cancelled
        if not future.done():
            raise TimeoutError
        return future.result()

    def when_over(self, call: Callable[[], None]) -> None:
        """Call `call` when the run is over: now, or when its detached `ending` is done."""

        def ended(ending: asyncio.Future[Any]) -> None:
            error = None if ending.cancelled() else ending.exception()
            if error is not None:
                _log.error(
                    "run.not_stored", run_id=self.run_id, error=f"{type(error).__name__}: {error}"
                )
            call()

        if self._ending is None or self._ending.done():
            call()
        else:
            self._ending.add_done_callback(ended)

    async def watch(self, after: int) -> AsyncIterator[tuple[int, Event]]:
        """Yield the events with their numbers, from `after` + 1 on, until the run is over."""
        while True:
            self._news = news = self._news or asyncio.Event()
            while after < len(self.events):
                after += 1
                yield after, self.events[after - 1]
            if self.ended.done():
                return
            await news.wait()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None


class LiveRuns:
    """All runs under way, by identifier."""

    def __init__(self) -> None:
        self._runs: dict[str, LiveRun] = {}

    @contextmanager
    def running(
        self,
        run_id: str,
        tenant: str,
        on_event: OnEvent = lambda _event: None,
    ) -> Iterator[LiveRun]:
        """Register a run that the current task works on, while the context is open."""
        task = asyncio.current_task()
        assert task is not None
        live = self._runs[run_id] = LiveRun(run_id, tenant, task, on_event)
        try:
            yield live
        finally:
            live.when_over(lambda: self._gone(live))

    def _gone(self, live: LiveRun) -> None:
        live.end(None)
        del self._runs[live.run_id]

    def find(self, run_id: str) -> LiveRun | None:
        """Return a run that is under way here, or None."""
        return self._runs.get(run_id)

    def cancel(self, run_id: str) -> None:
        """Cancel a run; do nothing if it is not under way here."""
        if live := self.find(run_id):
            live.cancel()

    async def ended(self) -> None:
        """Wait until all runs are over."""
        if ending := [live.ended for live in self._runs.values()]:
            await asyncio.wait(ending)
