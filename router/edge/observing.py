"""Requests, as an observer hears of them."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, Self, TypeVar

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.rpc import code_pb2

from router.edge.status import behaviour_of, status_code, with_behaviour
from router.runs.observers import Observer

_OK = code_pb2.Code.Name(code_pb2.OK)


class ObservingInterceptor(grpc.aio.ServerInterceptor):
    """Tells of every call. It hears what handlers raise, so it stands inside of whoever translates errors, and around
    whoever writes streams.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler of the call."""
        handler, method = await continuation(handler_call_details), str(handler_call_details.method)
        if handler is None or not method.startswith("/rolegate.v1."):
            return handler
        metadata = {key: str(value) for key, value in handler_call_details.invocation_metadata or ()}

        async def observed(request: Any, context: Any) -> Any:
            with self._observed(method, metadata):
                return await behaviour_of(handler)(request, context)

        return with_behaviour(handler, observed)

    @contextmanager
    def _observed(self, method: str, metadata: Mapping[str, str]) -> Iterator[None]:
        begun, code = time.monotonic(), _OK
        self._observer.request_began(method, metadata)
        try:
            yield
        except asyncio.CancelledError:
            code = code_pb2.Code.Name(code_pb2.CANCELLED)
            raise
        except Exception as error:
            code = code_pb2.Code.Name(status_code(error))
            raise
        finally:
            self._observer.request_ended(method, code, time.monotonic() - begun)


def observing(observer: Observer) -> Middleware:
    """The same for HTTP; it stands outside of whoever translates errors."""

    @web.middleware
    async def observed(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = request.match_info.route.resource
        path, begun, code = route.canonical if route else "", time.monotonic(), "499"
        observer.request_began(path, request.headers)
        try:
            response = await handler(request)
            code = str(response.status)
            return response
        finally:
            observer.request_ended(path, code, time.monotonic() - begun)

    return observed


Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST = 256
"""Items that wait for a slow reader before they are merged."""


class Running(Generic[Item, Result]):
    """Runs work in a task of its own while the context is open; leaving it cancels the work and waits for its end.

    Not a TaskGroup, because the streams yield inside it: a task that failed there would cancel whoever sends, and the
    client would get CANCELLED instead of the error (PEP 789).
    """

    def __init__(
        self,
        work: Callable[[Callable[[Item], None]], Coroutine[Any, Any, Result]],
        merged: Callable[[Iterable[Item]], Iterable[Item]] | None = None,
    ) -> None:
        """`work` is given a function to tell with, and waits for no reader. `merged`: few items that tell what many
        would have told, for a reader that is slower than work which tells much; None for work that tells little.
        """
        self._told: deque[Item] = deque()
        self._most = _MOST
        self._news = asyncio.Event()
        self._work, self._merged = work, merged

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._work(self._tell))
        self._task.add_done_callback(lambda _task: self._news.set())
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[Item]:
        """What is told, until the work ends."""
        while True:
            while self._told:
                yield self._told.popleft()
            if self._task.done():
                return
            self._news.clear()
            await self._news.wait()

    async def result(self) -> Result:
        """What the work returns; raises what it raises."""
        return await self._task

    def _tell(self, item: Item) -> None:
        if self._merged is not None and len(self._told) >= self._most:
            self._told = deque(self._merged(self._told))
            self._most = max(_MOST, 2 * len(self._told))
        self._told.append(item)
        self._news.set()
