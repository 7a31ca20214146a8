"""A session for all that is asked of endpoints beside their models' calls, and bounds for what
comes.
"""

import aiohttp

from router.models.connection_pool import IDLE_S


def upstream_session() -> aiohttp.ClientSession:
    """Pools any number of them, and leaves idle ones before the other side does."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S))


class BodyTooLong(aiohttp.ClientError):
    """A body that does not end where it should."""


async def read_body(response: aiohttp.ClientResponse, most: int = 4 << 20) -> bytes:
    """The whole body. Raises `aiohttp.ClientError`, also for one of more than `most` bytes,
    inflated.
    """
    body = bytearray()
    while received := await response.content.readany():
        body += received
        if len(body) > most:
            response.close()
            raise BodyTooLong(f"a reply of more than {most >> 10} KiB")
    return bytes(body)


async def fetch_text(session: aiohttp.ClientSession, url: str) -> str:
    """Return the body at `url` as text, whatever its status. Raises `OSError` if there is no reply
    within 10 seconds.
    """
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=10)) as response:
            return (await read_body(response)).decode(errors="replace")
    except aiohttp.ClientError as error:
        raise ConnectionError(type(error).__name__) from error
