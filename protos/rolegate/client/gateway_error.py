"""The exception that the clients raise when a call fails, and its conversion from gRPC's errors."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

_TRAILER = "grpc-status-details-bin"
_DOMAIN = "rolegate"


def _error_info(trailers: Iterable[Any]) -> ErrorInfo:
    """Return the `ErrorInfo`, with reason and metadata, that the gateway sent in the trailers of an
    error. `trailers`: pairs of key and value. If the error is not from a gateway, the result is
    empty.
    """
    info = ErrorInfo()
    packed = next((value for key, value in trailers if key == _TRAILER), b"")
    for detail in Status.FromString(packed).details:
        if detail.Unpack(info) and info.domain == _DOMAIN:
            return info
    return ErrorInfo()


class GatewayError(Exception):
    """Failure of a call to a gateway. `str(error)` is a message for people that states what is
    wrong and what to do.
    """

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
        """gRPC status code. A call that failed with UNAVAILABLE may be retried; with
        INVALID_ARGUMENT, the request must be corrected first.
        """
        self.reason = reason
        """Reason that the gateway states, such as `UPSTREAM_UNAVAILABLE` (docs/errors.md lists
        them); empty if the error was not sent by a gateway.
        """
        self.role = role
        """Role whose model failed: `delegation`, `execution` or `answer`; None if no model failed.
        """
        self.retry_after_s = retry_after_s
        """Seconds after which the call may be retried; None if unknown."""

    @property
    def connection_broke(self) -> bool:
        """True if the connection to the gateway failed. Then the error does not come from the
        gateway.
        """
        return self.code is grpc.StatusCode.UNAVAILABLE and not self.reason

    @classmethod
    def of(cls, error: grpc.RpcError, address: str, run_id: str = "") -> Self:
        """Return the `GatewayError` for an error that gRPC raised in a call to the gateway at
        `address`. `run_id`: the run of the call; empty if it is not known.
        """
        code = error.code()
        details = error.details() or ""
        trailers = error.trailing_metadata() or ()
        info = _error_info(trailers)
        message = details if info.reason else _message(code, details, address, run_id)
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
def translated(address: str, run_id: Callable[[], str] = str) -> Iterator[None]:
    """Convert errors that gRPC raises inside the context, in calls to the gateway at `address`, to
    `GatewayError`. `run_id`: returns the identifier of the call's run, empty if it is not known.

    If the call was cancelled, but not the current task, gRPC raises `CancelledError` nevertheless.
    Then this error is converted, too.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise GatewayError.of(error, address, run_id()) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise GatewayError(
            "the call was cancelled before it ended; make it again to get its result.",
            grpc.StatusCode.CANCELLED,
        ) from None


def _message(code: grpc.StatusCode, details: str, address: str, run_id: str) -> str:
    """Return a message for an error that gRPC itself raised. Such an error has no message from a
    gateway.
    """
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(details, address, run_id)
        case grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"the server at {address} does not offer this call, as it is a gateway of another "
                "version, or another server; check the address, or update the gateway."
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return (
                "the deadline passed before the response arrived; pass a longer timeout "
                "(--timeout; in Python, timeout_s)."
            )
        case grpc.StatusCode.CANCELLED:
            return "the call was cancelled before it ended; make it again to get its result."
    if sizes := re.search(r"message larger than max \((\d+) vs\. (\d+)\)", details):
        return (
            f"the request has {sizes[1]} bytes, but the gateway accepts at most {sizes[2]}; send a "
            "shorter text, or fewer rows or earlier messages."
        )
    return details or code.name


def _unavailable(details: str, address: str, run_id: str) -> str:
    """Return a message about a connection that broke or could not be opened."""
    if "resolving" in details:
        return f"the host name of {address} cannot be resolved; check the address."
    if re.search("ssl|tls|certificate", details, re.IGNORECASE):
        return (
            f"TLS with {address} failed; check the certificates (ca, certificate, key): {details}"
        )
    if re.search("status: 503|no gateway is ready", details):
        return (
            f"the proxy at {address} has no gateway that is ready; try again, or ask its operator "
            "to look at /readyz of the gateways."
        )
    if "http1.x server" in details:
        return (
            f"the server at {address} does not speak gRPC; if this is the gateway's HTTP port "
            "(`server.http`), use its gRPC port (`server.address`)."
        )
    if "failed to connect" not in details:
        during = f"while run {run_id} was in progress" if run_id else "during the call"
        return (
            f"the gateway at {address} ended the connection {during}; when the gateway runs again, "
            f"use `rolegate runs resume {run_id or 'RUN'}`, or send the request again with the "
            "same request id (`--request-id`; in Python, `request_id`)."
        )
    certificate = " If the gateway uses TLS, pass its CA certificate (`--ca`; in Python, `ca`)."
    return (
        f"no gateway answers at {address}; start one with `rolegate serve`, or give another "
        "address. If the gateway is still starting, wait until it prints serve.ready."
        f"{'' if 'refused' in details else certificate}"
    )
