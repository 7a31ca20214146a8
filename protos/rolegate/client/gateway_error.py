"""Errors of a gateway, as the client raises them."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

_TRAILER = "grpc-status-details-bin"
_DOMAIN = "rolegate"


def _error_info(trailers: Iterable[Any]) -> ErrorInfo:
    """Return the gateway's reason and metadata from an error's trailers (pairs of key and value);
    empty if no gateway sent the error.
    """
    info = ErrorInfo()
    packed = next((value for key, value in trailers if key == _TRAILER), b"")
    for detail in Status.FromString(packed).details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return info
    return ErrorInfo()


class GatewayError(Exception):
    """A call failed. `str(error)` is for people: what is wrong, and what to do."""

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode,
        reason: str = "",
        role: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """Status code: UNAVAILABLE may be retried, INVALID_ARGUMENT is the caller's fault."""
        self.reason = reason
        """Reason, such as `UPSTREAM_UNAVAILABLE`; empty if no gateway sent the error."""
        self.role = role
        """Role whose model failed: `delegation`, `execution` or `answer`."""
        self.retry_after_s = retry_after_s
        """Seconds to wait before a retry; None if unknown."""

    @property
    def connection_broke(self) -> bool:
        """True if the connection failed, rather than the gateway."""
        return self.code is grpc.StatusCode.UNAVAILABLE and not self.reason

    @classmethod
    def of(cls, error: grpc.RpcError, address: str) -> Self:
        """Convert an error that gRPC raised in a call to the gateway at `address`."""
        code = error.code()
        details = error.details() or ""
        trailers = error.trailing_metadata() or ()
        info = _error_info(trailers)
        message = details if info.reason else _message(code, details, address)
        known = dict(info.metadata)
        wait_s = float(known["retry_after_s"]) if "retry_after_s" in known else None
        return cls(
            message,
            code,
            info.reason,
            known.get("role"),
            wait_s,
        )


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn gRPC's errors, in calls to the gateway at `address`, into `GatewayError`.

    gRPC raises `CancelledError` for a call that was cancelled on its own; only a cancelled task
    may see that one.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise GatewayError.of(error, address) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise GatewayError("the call was cancelled.", grpc.StatusCode.CANCELLED) from None


def _message(code: grpc.StatusCode, details: str, address: str) -> str:
    """Explain one of gRPC's own status codes."""
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            if re.search("ssl|tls|certificate", details, re.IGNORECASE):
                return f"no gateway at {address} accepts these certificates: {details}"
            help_text = (
                f"no gateway answers at {address}; start one with `rolegate serve`, or give "
                "another address."
            )
            if not re.search("refused|resolving", details):
                help_text += " If the gateway uses TLS, pass its CA certificate (`--ca`)."
            return help_text
        case grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"the server at {address} is not a gateway, or an older version; is it a "
                "retrieval server?"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "the deadline passed before the answer came; give a longer timeout."
        case grpc.StatusCode.CANCELLED:
            return "the call was cancelled."
        case _:
            return details or code.name
