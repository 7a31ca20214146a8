"""HTTP session for requests other than model calls, and functions that read replies up to a max
size.
"""

import aiohttp

from router.models.connection_pool import IDLE_S


def upstream_session() -> aiohttp.ClientSession:
    """Return a session without a limit on its number of connections. A connection is closed after
    `IDLE_S` seconds without use.
    """
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S))


class BodyTooLong(aiohttp.ClientError):
    """Raised when a reply's body exceeds the size limit."""


async def read_body(response: aiohttp.ClientResponse, limit: int = 4 << 20) -> bytes:
    """Return the whole body. Raises `BodyTooLong` if it has more than `limit` bytes after
    decompression, and other kinds of `aiohttp.ClientError` if the connection fails.
    """
    body = bytearray()
    while received := await response.content.readany():
        body += received
        if len(body) > limit:
            response.close()
            raise BodyTooLong(f"the reply has more than {limit >> 10} KiB; check the address")
    return bytes(body)


async def fetch_text(session: aiohttp.ClientSession, url: str) -> str:
    """Return the body of a GET of `url` as text, regardless of the reply's status. Raises `OSError`
    if the request fails or takes longer than 10 seconds.
    """
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
            return (await read_body(response)).decode(errors="replace")
    except aiohttp.ClientError as error:
        raise ConnectionError(type(error).__name__) from error
