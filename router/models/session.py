"""Connections to models' endpoints, and bounds for what comes over them."""

import aiohttp

_IDLE_S = 4.0
"""vLLM's server closes connections after 5 idle seconds; a call that is sent at that moment is lost."""


def upstream_session(most: int = 0) -> aiohttp.ClientSession:
    """Pools them, `most` at a time, 0 for any number, and leaves idle ones before the other side does."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=_IDLE_S))


class BodyTooLong(aiohttp.ClientError):
    """A body that does not end where it should."""


async def read_body(response: aiohttp.ClientResponse, most: int = 4 << 20) -> bytes:
    """The whole body. Raises `aiohttp.ClientError`, also for one of more than `most` bytes, inflated."""
    body = bytearray()
    while received := await response.content.readany():
        body += received
        if len(body) > most:
            response.close()
            raise BodyTooLong(f"a reply of more than {most >> 10} KiB")
    return bytes(body)
