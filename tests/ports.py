"""Free ports of the loopback interface."""

import random
from socket import socket

_PORTS = range(15_000, 32_000)
"""Below the ports that Linux gives to outgoing connections, so that no connection of another test
takes the port before the test uses it.
"""


def free_port() -> int:
    """Return a port of the loopback interface on which nothing listens now."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
