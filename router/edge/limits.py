"""Limits on what one client may do to a server."""

from dataclasses import dataclass

from google.protobuf.message import Message

from router.errors import BadRequest

_LONGEST_NAME = 1024
_MOST_REPEATED = 1024
_MOST = {"rows": 10_000, "values": 64}
"""Entries of given rows, and of one of them."""
LARGE = 1 << 16
"""Bytes of a request that is checked in a thread, as its many fields take longer than others
should have to wait.
"""
_TEXTS = frozenset(
    {"question", "sub_query", "content", "queries", "stop", "comment", "right_answer"}
)
"""Fields with limits of their own; all other strings are names of something, or values of cells."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of gRPC and of HTTP."""

    message_bytes: int = 3 << 19
    """Of a gRPC request."""
    streams: int = 1000
    """Calls under way on one gRPC connection."""
    pending: int = 10_000
    """Calls that have come and that the event loop has not got to yet, on all gRPC connections."""
    accepting_s: float = 600.0
    """Until the event loop has got to a gRPC call; after 30 seconds, gRPC would drop it without
    a word.
    """
    connections: int = 4096
    """At a time; further ones are closed."""
    connections_per_address: int = 1024
    """Of HTTP; those of one IPv6 network of 64 bits count together."""
    opening_s: float = 20.0
    """Until a connection has brought its TLS and HTTP/2 opening, or an HTTP request its head or
    its body.
    """
    ping_s: float = 10.0
    """Between keepalive pings at least; clients that go on sending more are cut off."""
    silent_s: float = 60.0
    """After which a client that says nothing is pinged; one that does not answer is gone."""
    age_s: float = 3600.0
    """After which a gRPC connection takes no new calls, so that clients spread over gateways
    that were added.
    """
    reading_s: float = 60.0
    """Time that the reader of a stream has for one message."""

    @property
    def grpc_options(self) -> dict[str, int]:
        """Limits as gRPC takes them."""
        return {
            "grpc.max_receive_message_length": self.message_bytes,
            "grpc.max_concurrent_streams": self.streams,
            "grpc.max_allowed_incoming_connections": self.connections,
            # Above these, gRPC cuts off calls that have just come, at random and without a word to
            # anybody.
            "grpc.server.max_pending_requests": self.pending,
            "grpc.server.max_pending_requests_hard_limit": self.pending,
            "grpc.server_max_unrequested_time_in_server": int(self.accepting_s),
            "grpc.server_handshake_timeout_ms": _ms(self.opening_s),
            "grpc.http2.min_ping_interval_without_data_ms": _ms(self.ping_s),
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.keepalive_time_ms": _ms(self.silent_s),
            "grpc.max_connection_age_ms": _ms(self.age_s),
        }


def check_sizes(message: Message, at: str = "") -> None:
    """See that no field of a request holds more than anything that is meant could. Raises
    `BadRequest`. `at`: where the message stands in the request.
    """
    for field, value in message.ListFields():
        name = f"{at}{field.name}"
        most = _MOST.get(field.name, _MOST_REPEATED)
        if field.is_repeated and len(value) > most:
            raise BadRequest(f"{name} has {len(value)} entries; at most {most} are allowed.")
        if field.message_type is not None:
            for position, each in enumerate(value if field.is_repeated else [value]):
                check_sizes(each, f"{name}[{position}]." if field.is_repeated else f"{name}.")
        elif field.type == field.TYPE_STRING and field.name not in _TEXTS:
            length = max(map(len, value if field.is_repeated else [value]))
            if length > _LONGEST_NAME:
                raise BadRequest(
                    f"{name} has {length} characters; at most {_LONGEST_NAME} are allowed."
                )


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
