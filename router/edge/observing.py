"""Requests, as an observer hears of them."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.rpc import code_pb2

from router.edge.status import behaviour_of, status_code, with_behaviour
from router.observer import Observer

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
