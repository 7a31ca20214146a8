"""LoRA adapters of a running vLLM engine, or an SGLang one."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec

from router.errors import JSON_ERRORS, BadVersion, UpstreamUnavailable
from router.models.openai_wire import read_replies
from router.models.session import read_body

_TIMEOUT_S = 120.0
_MAX_CHARS = 300
_RANK = re.compile(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)")


class Served(msgspec.Struct):
    """Model in an endpoint's list."""

    id: str
    parent: str | None = None
    """Base model of an adapter."""
    max_model_len: int | None = None
    """Max tokens of prompt and output together, as vLLM tells."""


class _Models(msgspec.Struct):
    data: list[Served]


class Adapters:
    """Loads adapters into one engine.

    Each has a name that no other adapter ever gets, as engines cache results by name.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        api_key: str | None = None,
    ) -> None:
        """`base_url`: as for `OpenAIHTTP`."""
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def load(self, name: str, folder: Path) -> bool:
        """Load the adapter in `folder`; return False if it was loaded before.

        Raises `BadVersion` if the engine refuses it, and `UpstreamUnavailable`.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                if await self._knows(name):
                    return False
                fields = {"lora_name": name, "lora_path": str(folder)}
                status, body = await self._post(self._base_url, "load", fields)
                if status == 404 and b"adapter" not in body:  # SGLang's route has no /v1
                    root = self._base_url.removesuffix("/v1")
                    status, body = await self._post(root, "load", fields)
                # Another gateway may have loaded it meanwhile
                if status != 200 and not await self._knows(name):
                    raise BadVersion(
                        f"{name}: the engine at {self._base_url} refuses it: "
                        f"{_reason(body, folder)}"
                    )
                return status == 200
        except (aiohttp.ClientError, TimeoutError, *JSON_ERRORS) as error:
            raise UpstreamUnavailable(
                f"loading {name} failed: {type(error).__name__}", endpoint=self._base_url
            ) from error

    async def unload(self, name: str) -> None:
        """Unload an adapter; nothing happens if the engine lacks it or cannot be reached."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                await self._post(self._base_url, "unload", {"lora_name": name})

    async def _post(
        self,
        base_url: str,
        action: str,
        fields: dict[str, str],
    ) -> tuple[int, bytes]:
        url = f"{base_url}/{action}_lora_adapter"
        async with self._session.post(url, json=fields, headers=self._headers) as reply:
            return reply.status, await read_body(reply)

    async def names(self) -> list[str]:
        """Return all adapters of the engine; none if it cannot be reached."""
        with suppress(aiohttp.ClientError, TimeoutError, *JSON_ERRORS):
            async with asyncio.timeout(_TIMEOUT_S):
                return [model.id for model in await self.served() if model.parent is not None]
        return []

    async def served(self) -> list[Served]:
        """Return all models of the endpoint. Raises aiohttp's errors, and `JSON_ERRORS` for a body
        that is no list of models.
        """
        async with self._session.get(f"{self._base_url}/models", headers=self._headers) as reply:
            return msgspec.json.decode(await read_body(reply), type=_Models).data

    async def _knows(self, name: str) -> bool:
        known = next((model for model in await self.served() if model.id == name), None)
        if known and known.parent is None:
            raise BadVersion(
                f"{name}: the engine at {self._base_url} serves a model of that name already."
            )
        return known is not None


def _reason(body: bytes, folder: Path) -> str:
    """Return why an engine refuses an adapter, and what to do."""
    failure = None
    with suppress(*JSON_ERRORS):
        (reply, *_) = read_replies(body)
        failure = reply.failure if isinstance(reply.error, dict) else None
    if failure is None:  # there is no such route
        return (
            "it loads no adapters while it runs; set engines.….adapter_rank, or start it with "
            "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
        )
    if rank := _RANK.search(failure.message):
        return (
            f"its rank is {rank[1]}, and the engine takes {rank[2]} at most; raise "
            "engines.….adapter_rank."
        )
    if "No adapter found" in failure.message:
        return (
            f"it finds no adapter in {folder}; the folder must be there where the engine runs, too."
        )
    message = " ".join(failure.message.split())[:_MAX_CHARS]
    if "size of tensor" in message:
        return f"its weights do not fit the model that the engine serves: {message}"
    return message
