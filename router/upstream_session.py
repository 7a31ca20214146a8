"""The connections to models' endpoints."""

import aiohttp

_IDLE_S = 4.0
"""vLLM's server closes connections after 5 idle seconds; a call that is sent at that moment is lost."""


def upstream_session(most: int = 0) -> aiohttp.ClientSession:
    """Pools them, `most` at a time, 0 for any number, and leaves idle ones before the other side does."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=_IDLE_S))
