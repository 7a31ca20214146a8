"""JSON requests over HTTP to an endpoint for embeddings or reranking."""

from typing import TypeVar

import aiohttp
import msgspec

from router.errors import JSON_ERRORS
from router.models.failures import Upstream
from router.models.session import read_body

Reply = TypeVar("Reply")


class JSONEndpoint:
    """A URL at which a model is called with JSON requests."""

    def __init__(self, model: str, url: str, api_key: str | None, timeout_s: float) -> None:
        """`timeout_s`: timeout of a request in seconds, including the connection and the reply."""
        self.upstream = Upstream(model, url, api_key)
        self._url = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def post(
        self,
        session: aiohttp.ClientSession,
        fields: object,
        kind: type[Reply],
        max_bytes: int = 4 << 20,
    ) -> Reply:
        """Send `fields` as JSON over `session`, and return the reply as a value of the type `kind`.
        `max_bytes`: max size of the reply in bytes. Raises `UpstreamUnavailable`, `UpstreamRefused`
        or `UpstreamProtocolError`.
        """
        try:
            async with session.post(
                self._url, json=fields, headers=self._headers, timeout=self._timeout
            ) as response:
                body = await read_body(response, max_bytes)
        except (aiohttp.ClientError, OSError) as error:
            raise self.upstream.from_transport(error) from error
        if response.status != 200:
            text = body.decode(errors="replace")
            raise self.upstream.from_status(response.status, text, response.headers)
        try:
            return msgspec.json.decode(body, type=kind)
        except JSON_ERRORS as error:
            raise self.upstream.protocol_error(
                f"the reply is malformed: {error}; check base_url and the model"
            ) from error
