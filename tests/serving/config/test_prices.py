"""Prices of models."""

import subprocess
import sys

import msgspec

from router.trace import Price
from serving.config.config import RoleConfig
from serving.config.file import load_config, preset
from serving.config.prices import price_of, prices_of
from tests.scripted_gateway import environment

OWN = """
import asyncio, sys
from serving.config.file import load_config, preset
from serving.config.prices import prices_of
config = load_config(preset("mini"))
print(asyncio.run(prices_of(config.roles.by_name, config.prices)), "litellm" in sys.modules)
"""
MINE = Price(prompt=3, completion=4)


def printed(code: str) -> str:
    """Return the output of `code` in another interpreter."""
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, env=environment(), capture_output=True, text=True
    ).stdout


def test_the_config_s_price_comes_first() -> None:
    role = RoleConfig(model="openai/gpt-4.1-mini", prompt="p")

    assert price_of(role, {"openai/gpt-4.1-mini": MINE}) == MINE


def test_other_prices_are_litellm_s() -> None:
    """They are for a million tokens, with or without the provider's name.

    An unknown model has no price, which is not zero.
    """
    by_provider, plain, unknown = (
        price_of(RoleConfig(model=model, prompt="p"), {})
        for model in ("openai/gpt-4.1-mini", "gpt-4.1-mini", "no-such-model")
    )

    assert by_provider == plain
    assert plain is not None
    assert plain.cached is not None
    assert 0 < plain.cached < plain.prompt < plain.completion < 100
    assert unknown is None


def test_an_engine_of_ours_has_the_config_s_price_alone() -> None:
    """This holds for any name of the model, and LiteLLM is not imported."""
    role = RoleConfig(model="gpt-4.1-mini", prompt="p", engine="e")

    assert price_of(role, {}) is None
    assert price_of(role, {"gpt-4.1-mini": MINE}) == MINE
    assert (
        price_of(
            msgspec.structs.replace(role, engine=None, base_url="http://me:key@127.0.0.1:8000/v1"),
            {},
        )
        is None
    )
    assert printed(OWN).strip() == "{'delegation': None, 'execution': None, 'answer': None} False"


async def test_every_role_has_its_model_s_price() -> None:
    config = msgspec.structs.replace(load_config(preset("mini")), prices={"mini-backbone": MINE})

    assert await prices_of(config.roles.by_name, config.prices) == {
        "delegation": MINE,
        "execution": None,
        "answer": MINE,
    }
