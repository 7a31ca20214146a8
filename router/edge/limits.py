"""Limits on the load that a single client can cause: connections, message sizes, reading times."""

from google.protobuf.message import Message

from router.errors import BadRequest
from router.frozen import Frozen

_LONGEST_NAME = 1024
MAX_REPEATED = 1024
_MAX_ENTRIES = {"rows": 10_000, "values": 64}
"""Max entries of repeated fields, by the field's name: `rows` contains the given rows of a table,
`values` the values of a row. Other repeated fields may have `MAX_REPEATED` entries.
"""
LARGE = 1 << 16
"""Size in bytes above which a request is checked in a thread, so that the check does not block the
event loop.
"""
_TEXTS = frozenset(
    {
        "question",
        "sub_query",
        "content",
        "queries",
        "stop",
        "comment",
        "right_answer",
        "instructions",
    }
)
"""String fields whose lengths are limited elsewhere. All other strings are names or cell values,
and may have at most `_LONGEST_NAME` characters.
"""


class Limits(Frozen):
    """Limits of the gRPC and HTTP servers."""

    connections: int = 4096
    """Max open connections; further connections are closed."""
    connections_per_address: int = 1024
    """Max HTTP connections from one address; an IPv6 /64 network counts as one address."""
    opening_s: float = 20.0
    """Max seconds for the TLS and HTTP/2 handshake, and for an HTTP request's head and body."""
    reading_s: float = 60.0
    """Max seconds that a client may take to read one message of a stream."""

    @property
    def grpc_options(self) -> dict[str, int]:
        """The limits as gRPC channel arguments."""
        return {
            "grpc.max_receive_message_length": 3 << 19,
            # Max concurrent calls on one connection.
            "grpc.max_concurrent_streams": 1000,
            "grpc.max_allowed_incoming_connections": self.connections,
            # Max calls that wait for the event loop, over all connections, and max seconds that
            # they wait. Beyond these limits, gRPC drops calls without an error. Its defaults are
            # lower: it drops random new calls when many wait, and calls that have waited for 30 s.
            "grpc.server.max_pending_requests": 10_000,
            "grpc.server.max_pending_requests_hard_limit": 10_000,
            "grpc.server_max_unrequested_time_in_server": 600,
            "grpc.server_handshake_timeout_ms": int(self.opening_s * 1000),
            # If a client sends pings at shorter intervals, its connection is closed.
            "grpc.http2.min_ping_interval_without_data_ms": 10_000,
            "grpc.keepalive_permit_without_calls": 1,
            # The server pings idle clients, and closes the connection if there is no answer.
            "grpc.keepalive_time_ms": 60_000,
            # After an hour, clients must open a new connection for new calls. So clients behind a
            # load balancer spread over gateways that were added meanwhile.
            "grpc.max_connection_age_ms": 3_600_000,
        }


DEFAULT_LIMITS = Limits()


def check_sizes(message: Message, at: str = "") -> None:
    """Raise `BadRequest` if a string or a repeated field of a request is too large. `at`: the path
    of `message` within the request, for the error message.
    """
    for field, value in message.ListFields():
        name = f"{at}{field.name}"
        limit = _MAX_ENTRIES.get(field.name, MAX_REPEATED)
        if field.is_repeated and len(value) > limit:
            raise BadRequest(
                f"{name} has {len(value)} entries; at most {limit} are allowed; omit some."
            )
        if field.message_type is not None:
            for position, item in enumerate(value if field.is_repeated else [value]):
                check_sizes(item, f"{name}[{position}]." if field.is_repeated else f"{name}.")
        elif field.type == field.TYPE_STRING and field.name not in _TEXTS:
            length = max(map(len, value if field.is_repeated else [value]))
            if length > _LONGEST_NAME:
                raise BadRequest(
                    f"{name} has {length} characters; the limit is {_LONGEST_NAME}; shorten it."
                )
