"""What a gateway sends along with its errors: `google.rpc.Status`, read with protobuf alone.

Only the fields that are needed are declared, under names and in a pool of their own, so that they never meet those of
googleapis-common-protos.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

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


def error_info(trailers: Iterable[Any]) -> tuple[str, dict[str, str]]:
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
