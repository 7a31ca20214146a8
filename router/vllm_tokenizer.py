"""A model's own tokenizer, where it is served by vLLM."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError

from router.errors import JSON_ERRORS
from router.upstream_session import read_body

_RENDERED = ("messages", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_NOT_THERE = frozenset({401, 403, 404, 405, 501})
_TIMEOUT = aiohttp.ClientTimeout(total=5)


class _Tokens(msgspec.Struct, frozen=True):
    count: int


class VLLMTokenizer:
    """Counts by `POST /tokenize`. An endpoint that has no such thing is not asked again."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str, model: str, headers: Mapping[str, str]) -> None:
        """`base_url`: that of the completions, such as `http://127.0.0.1:8000/v1`."""
        self._session, self._model, self._headers = session, model, headers
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/tokenize"
        self._there = True

    async def prompt_tokens(self, chat: Mapping[str, Any]) -> int | None:
        """Those of a chat completion's prompt, its template included. `chat`: the body of that request."""
        fields = {name: chat[name] for name in _RENDERED if name in chat}
        return await self._count({"add_generation_prompt": True, **fields})

    async def text_tokens(self, text: str) -> int | None:
        """Those of a text by itself."""
        return await self._count({"prompt": text, "add_special_tokens": False}) if text else 0

    async def _count(self, asked: dict[str, Any]) -> int | None:
        if not self._there:
            return None
        body = msgspec.json.encode({"model": self._model, **asked})
        with suppress(aiohttp.ClientError, HttpProcessingError, OSError, *JSON_ERRORS):
            async with self._session.post(self._url, data=body, headers=self._headers, timeout=_TIMEOUT) as response:
                self._there = response.status not in _NOT_THERE
                return msgspec.json.decode(await read_body(response), type=_Tokens).count if response.ok else None
        return None
