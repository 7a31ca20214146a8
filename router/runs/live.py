"""The runs under way in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog

from router.background import free_slowly
from router.errors import RolegateError, RunCancelled, RunInterrupted
from router.trace import Event, Run
from router.trace.values import OnEvent

_log = structlog.get_logger("gateway")

Value = TypeVar("Value")
_LARGE = 1000
"""If a run has more events than this, their memory is freed in small steps (`free_slowly`), so that
the event loop is not blocked.
"""
_USED_S = 60.0
"""The events of a run are kept for this many seconds after its end, so that watchers can read
them.
"""


class LiveRun:
    """A run under way in this process: its events so far, the task that works on it, and, once it
    has ended, the stored run. Requests that watch or cancel the run use it.
    """

    def __init__(
        self,
        run_id: str,
        tenant: str,
        task: asyncio.Task[Any],
        on_event: OnEvent,
    ) -> None:
        """`task`: the task that works on the run. `on_event`: the callback of the request that
        started the run; called with each event.
        """
        self.run_id = run_id
        self.tenant = tenant
        self._on_event = on_event
        self.events = list[Event]()
        self.ended = asyncio.Future[Run | None]()
        """Done when the run has ended. Its result is the stored run; None if the run could not be
        stored.
        """
        self._task = task
        self._reason: RolegateError | None = None
        """The error with which the run's request ends after `cancel` was called; None before that.
        """
        self._ending: asyncio.Future[Any] | None = None
        self._news: asyncio.Event | None = None
        """Set when the next event arrives or the run ends; None while no request watches the
        run.
        """

    def on_event(self, event: Event) -> None:
        """Record an event, and pass it to the callback and to all watchers."""
        self.events.append(event)
        self._wake()
        self._on_event(event)

    def end(self, run: Run | None) -> None:
        """Mark the run as ended. `run`: the stored run; None if it could not be stored."""
        if not self.ended.done():
            self.ended.set_result(run)
            if len(self.events) > _LARGE:
                free_slowly(self.events, _USED_S)
        self._wake()

    def cancel(self, reason: RolegateError | None = None) -> None:
        """Cancel the work on the run; the request that started it gets `reason`, by default
        `RunCancelled`. Has no effect if the run was already cancelled, is being stored, or has
        ended.
        """
        if self._reason is None and not self.ended.done():
            self._reason = reason or RunCancelled(
                f"Run {self.run_id} was cancelled on request; ask again to get an answer."
            )
            self._task.cancel()

    def reason(self, cancelled: asyncio.CancelledError) -> BaseException:
        """Return the error with which a request ends after its task got `cancelled`: the argument
        `reason` of `cancel`, or `cancelled` itself if the client disconnected.
        """
        if self._reason is None:
            return cancelled
        self._task.uncancel()
        return self._reason

    async def until_ended(self, ending: Coroutine[Any, Any, Value], until: float) -> Value:
        """Wait for `ending`, the coroutine that stores the run, and return its result. Cancelling
        the current task does not interrupt `ending`.

        Raises `TimeoutError` at `until`, in the event loop's time. Then `ending` continues in the
        background, and the run is over when `ending` is done. Raises `CancelledError`, after
        `ending` is done or at `until`, if the client disconnected meanwhile.
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
        """Call `call` when the run is over. If `until_ended` has timed out, and its coroutine is
        still storing the run in the background, the run is over when the coroutine is done.
        Otherwise, `call` is called immediately.
        """

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
        """Yield each event together with its number, from number `after` + 1 on, as the events
        arrive. Ends when the run is over.
        """
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
    """Registry of the runs under way in this process, by identifier."""

    def __init__(self) -> None:
        self._runs = dict[str, LiveRun]()
        self._stopping = False

    @contextmanager
    def running(
        self,
        run_id: str,
        tenant: str,
        on_event: OnEvent = lambda _event: None,
    ) -> Iterator[LiveRun]:
        """Register a run on which the current task works. It stays registered until the context is
        left and the run is stored.
        """
        task = asyncio.current_task()
        assert task is not None
        live = self._runs[run_id] = LiveRun(run_id, tenant, task, on_event)
        if self._stopping:  # the request was in the queue when the other runs were interrupted
            live.cancel(RunInterrupted.of(run_id))
        try:
            yield live
        finally:
            live.when_over(lambda: self._gone(live))

    def _gone(self, live: LiveRun) -> None:
        live.end(None)
        del self._runs[live.run_id]

    def find(self, run_id: str) -> LiveRun | None:
        """Return a run that is under way in this process; None if there is no such run."""
        return self._runs.get(run_id)

    def cancel(self, run_id: str) -> None:
        """Cancel a run. Does nothing if it is not under way in this process."""
        if live := self.find(run_id):
            live.cancel()

    def stop(self, grace_s: float) -> None:
        """Log that the gateway stops. After `grace_s` seconds, interrupt all runs."""
        _log.info("serve.stopping", runs=len(self._runs), grace_s=grace_s)
        asyncio.get_running_loop().call_later(grace_s, self._interrupt)

    def _interrupt(self) -> None:
        self._stopping = True
        for live in self._runs.values():
            live.cancel(RunInterrupted.of(live.run_id))

    async def ended(self) -> None:
        """Wait until all runs that are now under way have ended."""
        if ending := [live.ended for live in self._runs.values()]:
            await asyncio.wait(ending)
