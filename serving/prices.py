"""What models cost: by the config, or else by the table that comes with LiteLLM."""

import asyncio
import importlib.util
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from router.call import RoleName
from router.edge.listening import is_loopback
from router.litellm_model import load_litellm
from router.price import Price
from serving.config import Config, RoleConfig


async def prices_of(config: Config) -> dict[RoleName, Price | None]:
    """What each role's model costs; None where nobody knows it, which is not zero. May take seconds, in a thread."""
    return await asyncio.to_thread(
        lambda: {name: price_of(role, config.prices) for name, role in config.roles.by_name.items()}
    )


def price_of(role: RoleConfig, prices: Mapping[str, Price]) -> Price | None:
    """The price of a role's model. What runs on this machine has no other price than the config's. May block for
    seconds, by an import.
    """
    host = urlsplit(role.base_url or "").netloc.rpartition("@")[2]
    ours = role.engine is not None or is_loopback(host)
    if role.model in prices or ours:
        return prices.get(role.model)
    known = litellm_entry(role.model)
    prompt, completion = known.get("input_cost_per_token"), known.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached = known.get("cache_read_input_token_cost")
    return Price(prompt=prompt * 1e6, completion=completion * 1e6, cached=cached and cached * 1e6)


def litellm_entry(model: str) -> Mapping[str, Any]:
    """What LiteLLM's table says of a model, under its name with or without a provider's; nothing without LiteLLM."""
    if importlib.util.find_spec("litellm") is None:
        return {}
    table: Mapping[str, Mapping[str, Any]] = load_litellm().model_cost
    return table.get(model) or table.get(model.partition("/")[2]) or {}
