"""HTTP session for requests other than model calls, with a bound on replies."""

import aiohttp

from router.models.connection_pool import IDLE_S


def upstream_session() -> aiohttp.ClientSession:
    """Return a session with any number of connections, closed when idle for `IDLE_S`."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S))


class BodyTooLong(aiohttp.ClientError):
    """A reply's body exceeds its limit."""


async def read_body(response: aiohttp.ClientResponse, limit: int = 4 << 20) -> bytes:
    """Return the whole body. Raises `aiohttp.ClientError`, also for more than `limit` bytes after
    decompression.
    """
    body = bytearray()
    while received := await response.content.readany():
        body += received
        if len(body) > limit:
            response.close()
            raise BodyTooLong(f"a reply of more than {limit >> 10} KiB")
    return bytes(body)


async def fetch_text(session: aiohttp.ClientSession, url: str) -> str:
    """Return the body at `url` as text, under any status. Raises `OSError` if there is no reply
    within 10 seconds.
    """
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
            return (await read_body(response)).decode(errors="replace")
    except aiohttp.ClientError as error:
        raise ConnectionError(type(error).__name__) from error
