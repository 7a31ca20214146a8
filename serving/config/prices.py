"""Prices of models, from the config's `prices` or else from LiteLLM's table."""

import asyncio
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rolegate.client.connection import is_loopback

from router.models.litellm_client import load_litellm
from router.trace import Price
from serving.config.config import Config, RoleConfig

Name = TypeVar("Name", bound=str)


async def prices_of(
    roles: Mapping[Name, RoleConfig], prices: Mapping[str, Price]
) -> dict[Name, Price | None]:
    """Return the price of each role's model, by the name of the role; None if the price is unknown.

    `prices`: the config's prices by model. Prices are looked up in a thread, because importing
    LiteLLM may take seconds.
    """
    return await asyncio.to_thread(
        lambda: {name: price_of(role, prices) for name, role in roles.items()}
    )


async def unpriced(config: Config) -> Iterable[str]:
    """Return the models in the config without a known price. For a tenant with a limit in dollars,
    calls of these models are refused.
    """
    roles = config.roles.by_name
    prices = await prices_of(roles, config.prices)
    models = [roles[name].model for name, price in prices.items() if price is None]
    if config.reranker and config.reranker.model not in config.prices:
        models.append(config.reranker.model)
    return dict.fromkeys(models)


def price_of(role: RoleConfig, prices: Mapping[str, Price]) -> Price | None:
    """Return the price of a role's model from `prices`, or else from LiteLLM's table; None if
    neither has it. LiteLLM's table is not used for a model on this machine. May block for seconds
    while LiteLLM is imported.
    """
    host = urlsplit(role.base_url or "").netloc.rpartition("@")[2]
    ours = role.engine is not None or is_loopback(host)
    if role.model in prices or ours:
        return prices.get(role.model)
    return listed_price(role.model)


def listed_price(model: str) -> Price | None:
    """Return the price of a model in LiteLLM's table; None if the table has no valid price of the
    model. May block for seconds while LiteLLM is imported.
    """
    known = litellm_entry(model)
    prompt = known.get("input_cost_per_token")
    completion = known.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached = known.get("cache_read_input_token_cost")
    price = Price(prompt=prompt * 1e6, completion=completion * 1e6, cached=cached and cached * 1e6)
    return None if price.impossible else price


def litellm_entry(model: str) -> Mapping[str, Any]:
    """Return the entry of a model in LiteLLM's table, under the model's full name or its name
    without the provider's prefix. The entry is empty if the table has none, or if LiteLLM is not
    installed.
    """
    if importlib.util.find_spec("litellm") is None:
        return {}
    table: Mapping[str, Mapping[str, Any]] = load_litellm().model_cost
    return table.get(model) or table.get(model.partition("/")[2]) or {}
