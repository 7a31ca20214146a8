"""What of a config makes a step's result what it is; where models are served does not."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serving.config.config import Config, RoleConfig


def config_settings(config: Config, also: Mapping[str, RoleConfig | None] = {}) -> dict[str, Any]:
    """Models, prompts, sampling, limits and retrieval, as JSON. `also`: roles beside the three. Raises `OSError`."""
    roles: dict[str, RoleConfig] = dict(config.roles.by_name.items())
    roles |= {name: role for name, role in also.items() if role is not None}
    retrieval = msgspec.to_builtins(config.retrieval)
    embedder = {key: retrieval["embedder"][key] for key in ("model", "query_prefix", "passage_prefix")}
    return {
        "roles": {name: _role(role) for name, role in roles.items()},
        "search": {key: value for key, value in msgspec.to_builtins(config.search).items() if key != "scope"},
        "retrieval": {key: retrieval[key] for key in ("documents", "chunk_tokens", "lexical")} | embedder,
    }


def _role(role: RoleConfig) -> dict[str, Any]:
    """`extra_body` only by its digest, as there may be a key in it."""
    names = "model max_tokens temperature top_p seed thinking system_role context_tokens".split()
    extra = msgspec.json.encode(role.extra_body, order="deterministic")
    digests = {"prompt": Path(role.prompt).read_bytes(), "extra_body": extra}
    return {
        **{name: getattr(role, name) for name in names},
        **{f"{name}_sha256": hashlib.sha256(content).hexdigest() for name, content in digests.items()},
    }
