import json
import subprocess
import sys

from serving.config import PriceConfig
from serving.prices import price_of
from tests.scripted_gateway import environment

ASK = """
import json, msgspec
from serving.prices import price_of
models = ("openai/gpt-4.1-mini", "gpt-4.1-mini", "no-such-model")
print(json.dumps([msgspec.to_builtins(price_of(model, {})) for model in models]))
"""


def test_the_config_s_price_comes_first() -> None:
    mine = PriceConfig(prompt=3, completion=4)

    assert price_of("openai/gpt-4.1-mini", {"openai/gpt-4.1-mini": mine}) == mine


def test_other_prices_are_litellm_s() -> None:
    """For a million tokens, with or without the provider's name; what it does not know has none, which is not zero."""
    command = [sys.executable, "-c", ASK]
    printed = subprocess.run(command, check=True, env=environment(), capture_output=True, text=True).stdout
    by_provider, plain, unknown = json.loads(printed)

    assert by_provider == plain
    assert 0 < plain["cached"] < plain["prompt"] < plain["completion"] < 100
    assert unknown is None
