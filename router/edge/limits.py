"""Limits on the load that one client can put on a server."""

from dataclasses import dataclass

from google.protobuf.message import Message

from router.errors import BadRequest

_LONGEST_NAME = 1024
_MAX_REPEATED = 1024
_MAX_ENTRIES = {"rows": 10_000, "values": 64}
"""Max given rows, and values per row."""
LARGE = 1 << 16
"""Size in bytes from which a request is checked in a thread, so as not to block the event loop."""
_TEXTS = frozenset(
    {"question", "sub_query", "content", "queries", "stop", "comment", "right_answer"}
)
"""Fields that have their own limits; all other strings are names or cell values."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the gRPC and HTTP servers."""

    connections: int = 4096
    """Max open connections; further ones are closed."""
    connections_per_address: int = 1024
    """Max HTTP connections of one address; an IPv6 /64 network counts as one."""
    opening_s: float = 20.0
    """Timeout of the TLS and HTTP/2 handshake, and of an HTTP request's head and body."""
    reading_s: float = 60.0
    """Max time a client takes to read one message of a stream."""

    @property
    def grpc_options(self) -> dict[str, int]:
        """The limits as gRPC channel arguments."""
        return {
            "grpc.max_receive_message_length": 3 << 19,
            # Calls on one connection
            "grpc.max_concurrent_streams": 1000,
            "grpc.max_allowed_incoming_connections": self.connections,
            # Calls that wait for the event loop, over all connections. Above these, gRPC drops
            # random new calls without an error, and after its default of 30 s.
            "grpc.server.max_pending_requests": 10_000,
            "grpc.server.max_pending_requests_hard_limit": 10_000,
            "grpc.server_max_unrequested_time_in_server": 600,
            "grpc.server_handshake_timeout_ms": int(self.opening_s * 1000),
            # More frequent pings of a client end its connection.
            "grpc.http2.min_ping_interval_without_data_ms": 10_000,
            "grpc.keepalive_permit_without_calls": 1,
            # An idle client is pinged, and without an answer its connection is closed.
            "grpc.keepalive_time_ms": 60_000,
            # New calls need a new connection, so that clients spread over added gateways.
            "grpc.max_connection_age_ms": 3_600_000,
        }


def check_sizes(message: Message, at: str = "") -> None:
    """Raise `BadRequest` if a field of a request is larger than any valid one. `at`: the path of
    the message in the request.
    """
    for field, value in message.ListFields():
        name = f"{at}{field.name}"
        limit = _MAX_ENTRIES.get(field.name, _MAX_REPEATED)
        if field.is_repeated and len(value) > limit:
            raise BadRequest(f"{name} has {len(value)} entries; at most {limit} are allowed.")
        if field.message_type is not None:
            for position, item in enumerate(value if field.is_repeated else [value]):
                check_sizes(item, f"{name}[{position}]." if field.is_repeated else f"{name}.")
        elif field.type == field.TYPE_STRING and field.name not in _TEXTS:
            length = max(map(len, value if field.is_repeated else [value]))
            if length > _LONGEST_NAME:
                raise BadRequest(
                    f"{name} has {length} characters; at most {_LONGEST_NAME} are allowed."
                )
