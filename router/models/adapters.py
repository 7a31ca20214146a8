"""LoRA adapters of a running vLLM engine, or an SGLang one."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import aiohttp
import msgspec

from router.errors import JSON_ERRORS, BadVersion, UpstreamUnavailable
from router.models.openai_wire import ErrorReply, FailureReply
from router.models.session import read_body

_LOADING_S = 120.0
_MOST_CHARS = 300
_RANK = re.compile(r"LoRA rank (\d+) is greater than max_lora_rank (\d+)")


class Served(msgspec.Struct):
    """A model as an endpoint lists it."""

    id: str
    parent: str | None = None
    """Of an adapter, its base model."""
    max_model_len: int | None = None
    """vLLM's: what the model reads and writes at most, in tokens."""


class _Models(msgspec.Struct):
    data: list[Served]


class Adapters:
    """Loads adapters into one engine, each under a name that is never used for another one: an
    engine keeps what it has computed with an adapter by its name.
    """

    def __init__(
        self, session: aiohttp.ClientSession, base_url: str, api_key: str | None = None
    ) -> None:
        """`base_url`: as of `OpenAIHTTP`."""
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def load(self, name: str, folder: Path) -> bool:
        """Load the adapter in `folder`; False where it was there. Raises `BadVersion` where the
        engine refuses it, and `UpstreamUnavailable`.
        """
        try:
            async with asyncio.timeout(_LOADING_S):
                if await self._knows(name):
                    return False
                wanted = {"lora_name": name, "lora_path": str(folder)}
                status, said = await self._post(self._base_url, wanted)
                if status == 404 and b"adapter" not in said:  # SGLang's stands at the root
                    status, said = await self._post(self._base_url.removesuffix("/v1"), wanted)
                # Another gateway may have been quicker
                if status != 200 and not await self._knows(name):
                    raise BadVersion(
                        f"{name}: the engine at {self._base_url} refuses it: "
                        f"{_reason(said, folder)}"
                    )
                return status == 200
        except (aiohttp.ClientError, TimeoutError, *JSON_ERRORS) as error:
            raise UpstreamUnavailable(
                f"loading {name} failed: {type(error).__name__}", endpoint=self._base_url
            ) from error

    async def _post(self, base_url: str, wanted: dict[str, str]) -> tuple[int, bytes]:
        url = f"{base_url}/load_lora_adapter"
        async with self._session.post(url, json=wanted, headers=self._headers) as reply:
            return reply.status, await read_body(reply)

    async def unload(self, name: str) -> None:
        """Let the engine forget an adapter, if it can be reached and has it."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_LOADING_S):
                url = f"{self._base_url}/unload_lora_adapter"
                async with self._session.post(
                    url, json={"lora_name": name}, headers=self._headers
                ) as reply:
                    await read_body(reply)

    async def names(self) -> list[str]:
        """Those that the engine has, whoever loaded them; none where it cannot be reached."""
        with suppress(aiohttp.ClientError, TimeoutError, *JSON_ERRORS):
            async with asyncio.timeout(_LOADING_S):
                return [model.id for model in await self.served() if model.parent is not None]
        return []

    async def served(self) -> list[Served]:
        """All models of the endpoint. Raises aiohttp's errors, and `JSON_ERRORS` for what is no
        list of them.
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
    reply = FailureReply()
    with suppress(*JSON_ERRORS):
        reply = msgspec.json.decode(body, type=FailureReply)
    if not isinstance(reply.error, ErrorReply):  # there is no such route
        return (
            "it loads no adapters while it runs; set engines.….adapter_rank, or start it "
            "with --enable-lora and "
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
        )
    message = reply.error.message
    if rank := _RANK.search(message):
        return (
            f"its rank is {rank[1]}, and the engine takes {rank[2]} at most; raise "
            "engines.….adapter_rank."
        )
    if "No adapter found" in message:
        return (
            f"it finds no adapter in {folder}; the folder must be there where the engine runs, too."
        )
    said = " ".join(message.split())[:_MOST_CHARS]
    return (
        f"its weights do not fit the model that the engine serves: {said}"
        if "size of tensor" in said
        else said
    )
