"""Errors of a gateway: why it did not do what it was asked."""

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
    """The reason and the metadata in an error's trailers, pairs of key and value; empty where
    it is of no gateway.
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
        """UNAVAILABLE is worth another try; INVALID_ARGUMENT is the caller's to mend."""
        self.reason = reason
        """Such as `UPSTREAM_UNAVAILABLE`; empty where the error is of no gateway."""
        self.role = role
        """The role whose model failed: `delegation`, `execution` or `answer`."""
        self.retry_after_s = retry_after_s
        """The pause after which another try may succeed, in seconds; None where that is not
        known.
        """

    @property
    def connection_broke(self) -> bool:
        """True where it is of no gateway, but of a connection that is not there, or no longer."""
        return self.code is grpc.StatusCode.UNAVAILABLE and not self.reason

    @classmethod
    def of(cls, error: grpc.RpcError, address: str) -> Self:
        """The error that gRPC raised in a call of the gateway at `address`."""
        code = error.code()
        details = error.details() or ""
        trailers = error.trailing_metadata() or ()
        info = _error_info(trailers)
        message = details if info.reason else _plainly(code, details, address)
        known = dict(info.metadata)
        wait_s = float(known["retry_after_s"]) if "retry_after_s" in known else None
        return cls(message, code, info.reason, known.get("role"), wait_s)


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn errors of gRPC, in calls of the gateway at `address`, into `GatewayError`."""
    try:
        yield
    except grpc.RpcError as error:
        raise GatewayError.of(error, address) from error


def _plainly(code: grpc.StatusCode, details: str, address: str) -> str:
    """The meaning of one of gRPC's own codes."""
    match code:
        case grpc.StatusCode.UNAVAILABLE if re.search(
            "ssl|tls|certificate", details, re.IGNORECASE
        ):
            return f"no gateway at {address} that these certificates fit: {details}"
        case grpc.StatusCode.UNAVAILABLE:
            more = (
                " One that encrypts answers only to who has its certificate (`--ca`), and "
                "perhaps one of their own."
            )
            nobody = re.search("refused|resolving", details)  # listens there
            return (
                f"no gateway answers at {address}; start one with `rolegate serve`, or "
                "give another address."
                f"{'' if nobody else more}"
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return (
                f"what answers at {address} is no gateway, or an older one; is it a "
                "retrieval server?"
            )
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "the deadline passed before the answer came; give a longer timeout."
        case grpc.StatusCode.CANCELLED:
            return "the call was cancelled."
        case _:
            return details or code.name
