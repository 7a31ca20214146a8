"""What a model costs: by the config, or else by the table that comes with LiteLLM."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from router.litellm_model import load_litellm
from serving.config import PriceConfig


def price_of(model: str, prices: Mapping[str, PriceConfig]) -> PriceConfig | None:
    """The price of a model; None where nobody knows it, which is not zero. May block for seconds, by an import."""
    if model in prices:
        return prices[model]
    known = litellm_entry(model)
    prompt, completion = known.get("input_cost_per_token"), known.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    cached = known.get("cache_read_input_token_cost")
    return PriceConfig(prompt=prompt * 1e6, completion=completion * 1e6, cached=cached and cached * 1e6)


def litellm_entry(model: str) -> Mapping[str, Any]:
    """What LiteLLM's table says of a model, under its name with or without a provider's; nothing without LiteLLM."""
    if importlib.util.find_spec("litellm") is None:
        return {}
    table: Mapping[str, Mapping[str, Any]] = load_litellm().model_cost
    return table.get(model) or table.get(model.partition("/")[2]) or {}
