"""Needs of a configuration where it is served: keys in the environment, and LiteLLM."""

import importlib.util
import os
from collections.abc import Mapping

from serving.config.config import Config, RoleConfig
from serving.dependencies import missing_extra


def missing(config: Config, also: Mapping[str, RoleConfig] = {}) -> list[str]:
    """Things that lack, each with its key and what to do; nothing is called. `also`: further roles by their keys."""
    found: list[str] = []
    for key, role in {**config.called_roles, **also}.items():
        found += key_problems(key, role.api_key_env)
        if role.engine is None and role.base_url is None and importlib.util.find_spec("litellm") is None:
            found.append(f"{key}: hosted models need the package litellm; run: {missing_extra('litellm', 'hosted')}")
    return [*found, *key_problems("retrieval.embedder", config.retrieval.embedder.api_key_env)]


def api_key(variable: str | None) -> str | None:
    """The key that an environment variable holds, without blanks and breaks at its ends; None for none."""
    return os.environ.get(variable or "", "").strip() or None


def key_problems(where: str, variable: str | None) -> list[str]:
    """Problems of a key in an environment variable that keep it from being sent, without the key."""
    if variable is None:
        return []
    if (key := api_key(variable)) is None:
        return [f"{where}.api_key_env: the environment variable {variable} is not set; export it."]
    if key.isascii() and key.isprintable():
        return []
    return [
        f"{where}.api_key_env: the environment variable {variable} holds characters that no key has, such as a line "
        "break; see that it is whole, and nothing but the key."
    ]
