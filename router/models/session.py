"""The connections to models' endpoints, and how much of what comes over them is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aiohttp

_IDLE_S = 4.0
"""vLLM's server closes connections after 5 idle seconds; a call that is sent at that moment is lost."""


def upstream_session(most: int = 0) -> aiohttp.ClientSession:
    """Pools them, `most` at a time, 0 for any number, and leaves idle ones before the other side does."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=_IDLE_S))


class Bodies:
    """Memory for the replies that are being read, shared by all calls of a gateway."""

    def __init__(self, most: int = 256 << 20) -> None:
        """`most`: bytes that all of them may hold together, inflated."""
        self._left = most

    @contextmanager
    def reading(self) -> Iterator[Callable[[int], bool]]:
        """Read a reply. The function takes how many bytes of it are held now, and tells whether there is room."""
        held = 0

        def hold(size: int) -> bool:
            nonlocal held
            if size - held > self._left:
                return False
            self._left -= size - held
            held = size
            return True

        try:
            yield hold
        finally:
            self._left += held


async def read_body(response: aiohttp.ClientResponse, most: int = 4 << 20) -> bytes:
    """The whole body. Raises `aiohttp.ClientError`, also for one of more than `most` bytes, inflated."""
    body = bytearray()
    while received := await response.content.readany():
        body += received
        if len(body) > most:
            response.close()
            raise aiohttp.ClientPayloadError(f"a body of more than {most >> 20} MiB")
    return bytes(body)
