"""From our errors to `google.rpc.Status`: one table, one translator."""

import asyncio
import inspect
from contextlib import aclosing
from typing import Any

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from router.errors import (
    BadConfig,
    BadCorpus,
    BadDocument,
    BadIndex,
    BadRequest,
    ContextTooLong,
    NotFound,
    OutOfTime,
    RolegateError,
    StoreFailed,
    UpstreamError,
    UpstreamGarbled,
    UpstreamRefused,
    UpstreamUnavailable,
)

_log = structlog.get_logger("edge")
DOMAIN = "rolegate"

STATUS: dict[type[RolegateError], tuple[int, str]] = {
    BadRequest: (code_pb2.INVALID_ARGUMENT, "BAD_REQUEST"),
    BadConfig: (code_pb2.FAILED_PRECONDITION, "BAD_CONFIG"),
    BadIndex: (code_pb2.FAILED_PRECONDITION, "BAD_INDEX"),
    BadCorpus: (code_pb2.FAILED_PRECONDITION, "BAD_CORPUS"),
    BadDocument: (code_pb2.FAILED_PRECONDITION, "BAD_DOCUMENT"),
    NotFound: (code_pb2.NOT_FOUND, "RUN_NOT_FOUND"),
    OutOfTime: (code_pb2.DEADLINE_EXCEEDED, "OUT_OF_TIME"),
    StoreFailed: (code_pb2.UNAVAILABLE, "STORE_FAILED"),
    UpstreamUnavailable: (code_pb2.UNAVAILABLE, "UPSTREAM_UNAVAILABLE"),
    UpstreamRefused: (code_pb2.FAILED_PRECONDITION, "UPSTREAM_REFUSED"),
    ContextTooLong: (code_pb2.FAILED_PRECONDITION, "CONTEXT_TOO_LONG"),
    UpstreamGarbled: (code_pb2.INTERNAL, "UPSTREAM_GARBLED"),
}
"""Every error class that is raised (the test walks the tree), its status code and its reason."""


def status_of(error: BaseException) -> status_pb2.Status:
    """The status that a client gets; what is not ours becomes INTERNAL without a word of its text."""
    error = innermost(error)
    if not isinstance(error, RolegateError):
        return _status(code_pb2.INTERNAL, "An internal error; the gateway's log has the details.", "INTERNAL", {})
    code, reason = STATUS[type(error)]
    role = error.role if isinstance(error, UpstreamError) else None
    return _status(code, str(error), reason, {"role": role} if role else {})


def _status(code: int, message: str, reason: str, metadata: dict[str, str]) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    detail = AnyMessage()
    detail.Pack(info)
    return status_pb2.Status(code=code, message=message, details=[detail])


def logged_status(error: BaseException) -> status_pb2.Status:
    """The status for an error that ends a request, which is logged."""
    status = status_of(error)
    if status.code == code_pb2.INTERNAL:
        _log.error("edge.failed", error=str(error), exc_info=error)
    else:
        _log.warning("edge.refused", code=code_pb2.Code.Name(status.code), error=str(error))
    return status


def reason_of(status: status_pb2.Status) -> str:
    """The reason in a status of ours, such as `BAD_REQUEST`."""
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return str(info.reason)


def innermost(error: BaseException) -> BaseException:
    """What a TaskGroup wrapped: the first error inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Turns whatever a handler raises into a status."""

    async def intercept_service(self, continuation: Any, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Wrap the handler of the call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(
                _translating(handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _translating_stream(handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return handler


def _translating(behaviour: Any) -> Any:
    async def translated(request: Any, context: Any) -> Any:
        try:
            return await behaviour(request, context)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)

    return translated


def _translating_stream(behaviour: Any) -> Any:
    if inspect.iscoroutinefunction(behaviour):  # it writes to the context by itself, as health's Watch does
        return _translating(behaviour)

    async def translated(request: Any, context: Any) -> Any:
        try:
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:
            await _abort(context, error)

    return translated


async def _abort(context: Any, error: Exception) -> None:
    await context.abort_with_status(rpc_status.to_status(logged_status(error)))
