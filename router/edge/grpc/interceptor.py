"""Interceptor of all gRPC calls: checks keys and sizes, notifies the observer, and turns errors
into gRPC statuses.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2
from grpc_status import rpc_status
from msgspec.structs import replace

from router.access import CALLER, Access, check_scope
from router.background import at_most, in_worker
from router.edge.grpc.convert import status_to_proto
from router.edge.limits import LARGE, check_sizes
from router.edge.status import failure_of, logged_failure
from router.errors import BadRequest, OutOfTime, SlowReader
from router.runs import Observer
from router.trace.identity import KeyScope

_OURS = "/rolegate.v1."
_ENDING_S = 0.1
"""Max seconds for sending the final status to a client that does not read its stream."""
_DRAIN_S = 5.0
"""Max seconds for receiving the rest of a client's stream after its call has failed."""
_SCOPES: dict[str, KeyScope] = {
    "AdminService": "operate",
    "AnswerService": "ask",
    "CompletionService": "ask",
    "DocumentService": "documents",
    "ExecutionService": "ask",
    "ExecutorVersionService": "operate",
    "RetrievalService": "ask",
    "RunService": "ask",
    "RunService/ExportRuns": "train",
    "TableService": "ask",
    "UsageService": "ask",
    "UsageService/ReconcileUsage": "operate",
}


def needed_scope(method: str) -> KeyScope:
    """Return the scope that a key must have for a method such as `/rolegate.v1.RunService/GetRun`.
    If `_SCOPES` has no entry for the method, use the entry for the method's service.
    """
    name = method.removeprefix(_OURS)
    return _SCOPES[name if name in _SCOPES else name.partition("/")[0]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Checks the API key of each call, sets `CALLER` (the caller's identity), and cancels the call
    if the key is revoked. Also notifies the observer, writes streamed responses, and turns errors
    into gRPC statuses.

    Services outside `rolegate.v1`, such as the health service, need no key.
    """

    def __init__(
        self,
        access: Access | None = None,
        observer: Observer | None = None,
        reading_s: float = 60.0,
    ) -> None:
        """`access`: checks the keys; None to admit every caller. `observer`: None for no observer.
        `reading_s`: max seconds that a client may take to read one message of a stream.
        """
        self._access = access
        self._observer = observer
        self._reading_s = reading_s
        self._handlers = dict[str, Any]()
        """Wrapped handlers by method, so that each handler is wrapped only once."""

    async def intercept_service(
        self, continuation: Any, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Return the handler of the called method, wrapped in the checks of this class."""
        method = str(handler_call_details.method)
        if (wrapped := self._handlers.get(method)) is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None or (handler.request_streaming and handler.response_streaming):
            return handler

        async def served(request: Any, context: Any) -> Any:
            try:
                with self._observed(method, context) if observed else nullcontext():
                    if not handler.request_streaming:
                        _check_decoded(request)
                        if request.ByteSize() > LARGE:
                            await in_worker(check_sizes, request)
                        else:
                            check_sizes(request)
                    with await self._admitted(method, context) if admitted else nullcontext():
                        return await self._served(handler, request, context)
            except (grpc.aio.AbortError, asyncio.CancelledError):
                raise
            except Exception as error:
                if handler.request_streaming:
                    await _drain(request)
                await _abort(context, error)

        observed = bool(self._observer) and method.startswith(_OURS)
        admitted = self._access is not None and method.startswith(_OURS)
        kind = grpc.unary_unary_rpc_method_handler
        if handler.response_streaming:
            kind = grpc.unary_stream_rpc_method_handler
        elif handler.request_streaming:
            kind = grpc.stream_unary_rpc_method_handler
        wrapped = kind(served, _reading(handler.request_deserializer), handler.response_serializer)
        return self._handlers.setdefault(method, wrapped)

    @contextmanager
    def _observed(self, method: str, context: Any) -> Iterator[None]:
        assert self._observer is not None
        begun = time.monotonic()
        code = int(code_pb2.OK)
        self._observer.request_began(method, _metadata(context))
        try:
            yield
        except asyncio.CancelledError:
            code = code_pb2.CANCELLED
            raise
        except Exception as error:
            code = failure_of(error).code
            raise
        finally:
            self._observer.request_ended(method, code_pb2.Code.Name(code), time.monotonic() - begun)

    async def _admitted(self, method: str, context: Any) -> AbstractContextManager[None]:
        """Check the key of a call and its scope. Return a context manager that must be open while
        the call is served; see `Access.serving`.
        """
        assert self._access is not None
        identity = await self._access.identify(_metadata(context).get("authorization", ""))
        # gRPC serves each call in its own task, so only this call sees the value.
        CALLER.set(replace(identity, address=context.peer()))
        check_scope(identity, needed_scope(method))
        return self._access.serving(identity)

    async def _served(self, handler: Any, request: Any, context: Any) -> Any:
        if handler.request_streaming:
            async with aclosing(self._received(request)) as requests:
                return await handler.stream_unary(requests, context)
        if not handler.response_streaming:
            return await handler.unary_unary(request, context)
        # A coroutine, such as Watch of the health service, writes its responses itself.
        if inspect.iscoroutinefunction(handler.unary_stream):
            return await handler.unary_stream(request, context)
        async with aclosing(handler.unary_stream(request, context)) as responses:
            async for response in responses:
                try:
                    async with asyncio.timeout(self._reading_s):
                        await context.write(response)
                except TimeoutError:
                    raise SlowReader(
                        f"The client read nothing for {self._reading_s:g} s, so the gateway ended "
                        "the stream; send the request again, and read without pauses."
                    ) from None

    async def _received(self, requests: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the messages of a client's stream. Raises `OutOfTime` if the next one does not
        arrive in time.
        """
        while True:
            try:
                async with asyncio.timeout(self._reading_s):
                    request = await anext(requests)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise OutOfTime(
                    f"The client sent nothing for {self._reading_s:g} s, so the call ends; send "
                    "the request again without a pause."
                ) from None
            _check_decoded(request)
            check_sizes(request)  # on the event loop, as these messages have few fields
            yield request


def _check_decoded(request: Any) -> None:
    """Raise `request` if it is the error that `_reading` returns for invalid bytes."""
    if isinstance(request, BadRequest):
        raise request


def _metadata(context: Any) -> dict[str, str]:
    return {key: str(value) for key, value in context.invocation_metadata() or ()}


def _reading(deserialize: Any) -> Any:
    """Return a deserializer that returns a `BadRequest` for invalid bytes. A deserializer that
    raised the error would make gRPC report UNKNOWN and log a traceback.
    """

    def read(sent: bytes) -> Any:
        try:
            return deserialize(sent)
        except DecodeError:
            return BadRequest(
                "The request cannot be decoded as a message of this method; check that the client "
                "uses the proto files of this gateway."
            )

    return read


async def _drain(requests: AsyncIterator[Any]) -> None:
    """Receive and drop the rest of a client's stream. Otherwise, a client that uses Python's
    asyncio and is still sending may get an internal error of gRPC instead of the call's status.
    """
    async with at_most(_DRAIN_S):
        async for _ in requests:
            pass


async def _abort(context: Any, error: Exception) -> None:
    """Log an error, and end the call with the gRPC status of the error."""
    ending = context.abort_with_status(rpc_status.to_status(status_to_proto(logged_failure(error))))
    if isinstance(error, SlowReader):
        # the client gets the status only after unread messages
        async with at_most(_ENDING_S):
            await ending
    else:
        await ending
