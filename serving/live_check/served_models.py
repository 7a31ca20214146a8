"""Which models an OpenAI-compatible endpoint serves, by its own word."""

from collections.abc import Mapping

import aiohttp
import msgspec

from router.errors import JSON_ERRORS
from router.models.session import read_body


class _Model(msgspec.Struct, frozen=True):
    id: str
    max_model_len: int | None = None
    """vLLM's: what the model reads and writes at most, in tokens."""


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


Served = Mapping[str, int | None] | None


async def served_models(session: aiohttp.ClientSession, base_url: str, key: str | None) -> Served:
    """The context of each model, by name, in tokens, where it is told; None where the endpoint keeps no such list."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=10)
    try:
        async with session.get(f"{base_url.rstrip('/')}/models", headers=headers, timeout=timeout) as response:
            models = msgspec.json.decode(await read_body(response), type=_Models)
    except (aiohttp.ClientError, OSError, ValueError, *JSON_ERRORS):
        return None
    return {model.id: model.max_model_len for model in models.data}
