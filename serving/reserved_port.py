"""A port that several processes are going to listen on, kept for them."""

import socket

from router.errors import BadConfig


def reserved(address: str, setting: str) -> tuple[socket.socket, str]:
    """A socket that keeps `host:port` (port 0: any free one) for whoever reuses ports, until it is closed, and the
    address. Raises `BadConfig`, naming `setting`, where somebody else listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(place)
        kept = socket.socket(family, kind)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the server before may still wait
        kept.bind(place)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # so that nobody else can keep the port as well
    except (OSError, ValueError, OverflowError) as error:
        raise BadConfig(
            f"{setting}: cannot listen on {address}; is the port in use? Name another one, or port 0 for any ({error})."
        ) from None
    return kept, f"{host}:{kept.getsockname()[1]}"
