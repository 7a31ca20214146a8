"""Loading and unloading of LoRA adapters on a running vLLM or SGLang engine."""

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
    """One entry of an endpoint's list of models (`GET /models`)."""

    id: str
    parent: str | None = None
    """Name of the adapter's base model; None if the entry is not an adapter."""
    max_model_len: int | None = None
    """Max tokens of prompt and output together, as vLLM reports it."""


class _Models(msgspec.Struct):
    data: list[Served]


class Adapters:
    """Loads adapters into one engine.

    An adapter must have a name that no other adapter ever had, because engines cache results by
    name.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        api_key: str | None = None,
    ) -> None:
        """`base_url`: the engine's address, such as `http://127.0.0.1:8000/v1`."""
        self._session = session
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def load(self, name: str, folder: Path) -> bool:
        """Load the adapter in `folder` under `name`. Return False if the engine already had an
        adapter of that name.

        Raises `BadVersion` if the engine refuses the adapter, and `UpstreamUnavailable` if the
        engine cannot be reached.
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
                # After an error, another gateway may have loaded the adapter in the meantime.
                if status != 200 and not await self._knows(name):
                    raise BadVersion(
                        f"{name}: the engine at {self._base_url} refuses the adapter: "
                        f"{_reason(body, folder)}"
                    )
                return status == 200
        except (aiohttp.ClientError, TimeoutError, *JSON_ERRORS) as error:
            raise UpstreamUnavailable(
                f"adapter {name} was not loaded ({type(error).__name__}); check the engine",
                endpoint=self._base_url,
                role="engine",
            ) from error

    async def unload(self, name: str) -> None:
        """Unload an adapter. Do nothing if the engine does not have it or cannot be reached."""
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
        """Return the names of the engine's adapters; none if the engine cannot be reached."""
        with suppress(aiohttp.ClientError, TimeoutError, *JSON_ERRORS):
            async with asyncio.timeout(_TIMEOUT_S):
                return [model.id for model in await self.served() if model.parent is not None]
        return []

    async def served(self) -> list[Served]:
        """Return all models that the endpoint serves, adapters included. Raises aiohttp's errors,
        and `JSON_ERRORS` if the reply is not a list of models.
        """
        async with self._session.get(f"{self._base_url}/models", headers=self._headers) as reply:
            return msgspec.json.decode(await read_body(reply), type=_Models).data

    async def _knows(self, name: str) -> bool:
        known = next((model for model in await self.served() if model.id == name), None)
        if known and known.parent is None:
            raise BadVersion(
                f"{name}: the engine at {self._base_url} already serves a base model of that name; "
                "give the adapter another name."
            )
        return known is not None


def _reason(body: bytes, folder: Path) -> str:
    """Return the reason why an engine refused the adapter in `folder`, and advice where the cause
    is known. `body`: the engine's reply.
    """
    failure = None
    with suppress(*JSON_ERRORS):
        (reply, *_) = read_replies(body)
        failure = reply.failure if isinstance(reply.error, dict) else None
    if failure is None:  # the engine has no route for loading adapters
        return (
            "it cannot load adapters at run time; set engines.NAME.adapter_rank, or start it with "
            "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
        )
    if rank := _RANK.search(failure.message):
        return (
            f"the adapter's rank is {rank[1]}, but the engine allows at most {rank[2]}; raise "
            "engines.NAME.adapter_rank."
        )
    if "No adapter found" in failure.message:
        return (
            f"it finds no adapter in {folder}; make this folder exist on the engine's machine too."
        )
    message = " ".join(failure.message.split())[:_MAX_CHARS]
    if "size of tensor" in message:
        return f"it does not fit the engine's base model ({message}); train it on that model."
    return message
