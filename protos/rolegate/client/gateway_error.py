"""Errors of a gateway: why it did not do what it was asked.

They come as `google.rpc.Status`, which is read with protobuf alone: only the fields that are needed are declared, under
names and in a pool of their own, so that they never meet those of googleapis-common-protos.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_TRAILER = "grpc-status-details-bin"
_DOMAIN = "rolegate"
_DECLARED = """
name: "rolegate_client.proto" package: "rolegate_client" syntax: "proto3"
message_type { name: "Status"
  field { name: "details" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".rolegate_client.Detail" } }
message_type { name: "Detail"
  field { name: "type_url" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_BYTES } }
message_type { name: "ErrorInfo"
  field { name: "reason" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "domain" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "metadata" number: 3 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".rolegate_client.Entry" } }
message_type { name: "Entry"
  field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_STRING } }
"""


def _error_info(trailers: Iterable[Any]) -> tuple[str, dict[str, str]]:
    """The reason and the metadata in an error's trailers, pairs of key and value; empty where it is of no gateway."""
    packed = next((value for key, value in trailers if key == _TRAILER), b"")
    for detail in _decoded("Status", packed).details:
        if detail.type_url.endswith("/google.rpc.ErrorInfo"):
            info = _decoded("ErrorInfo", detail.value)
            if info.domain == _DOMAIN:
                return info.reason, {entry.key: entry.value for entry in info.metadata}
    return "", {}


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_DECLARED, descriptor_pb2.FileDescriptorProto()))
    return pool


def _decoded(name: str, packed: bytes) -> Any:
    message = _pool().FindMessageTypeByName(f"rolegate_client.{name}")
    return message_factory.GetMessageClass(message).FromString(packed)


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
        """When another try may succeed, in seconds; None where that is not known."""

    @property
    def connection_broke(self) -> bool:
        """Whether it is of no gateway, but of a connection that is not there, or no longer."""
        return self.code is grpc.StatusCode.UNAVAILABLE and not self.reason

    @classmethod
    def of(cls, error: grpc.RpcError, address: str) -> Self:
        """The error that gRPC raised in a call of the gateway at `address`."""
        code, details, trailers = error.code(), error.details() or "", error.trailing_metadata() or ()
        reason, metadata = _error_info(trailers)
        message = details if reason else _plainly(code, details, address)
        wait_s = metadata.get("retry_after_s")
        return cls(message, code, reason, metadata.get("role"), None if wait_s is None else float(wait_s))


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
        case grpc.StatusCode.UNAVAILABLE if re.search("ssl|tls|certificate", details, re.IGNORECASE):
            return f"no gateway at {address} that these certificates fit: {details}"
        case grpc.StatusCode.UNAVAILABLE:
            return (
                f"no gateway answers at {address}; start one with `rolegate serve`, or give another address. One that "
                "encrypts answers only to who has its certificate (`--ca`), and perhaps one of their own."
            )
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"what answers at {address} is no gateway, or an older one; is it a retrieval server?"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return "the deadline passed before the answer came; give a longer timeout."
        case grpc.StatusCode.CANCELLED:
            return "the call was cancelled."
        case _:
            return details or code.name
