"""What no single key of a configuration shows, each with its key and what to do."""

import re
from pathlib import Path

from serving.config import Config, EmbedderConfig, RetrievalConfig, RoleConfig, SearchConfig, ServerConfig

_MOST_PASSAGES = 100


def problems(config: Config) -> list[str]:
    """Everything that is wrong, in the order of the sections; nothing where the configuration can be used."""
    roles = {name: getattr(config.roles, name) for name in ("delegation", "execution", "answer")}
    return [
        *_server(config.server),
        *_search(config.search),
        *(problem for name, role in roles.items() for problem in _role(f"roles.{name}", role, config)),
        *_missing_files(config),
        *_retrieval(config.retrieval),
    ]


def _server(server: ServerConfig) -> list[str]:
    found: list[str] = []
    if not re.fullmatch(r".+:\d{1,5}", server.address):
        found.append(f"server.address: {server.address!r} is not host:port.")
    if not 0 < server.timeout_s <= 86_400:
        found.append("server.timeout_s: must be more than 0 and at most 86400 seconds.")
    if not 0 <= server.grace_s <= 86_400:
        found.append("server.grace_s: must be 0 to 86400 seconds.")
    if server.max_question_chars < 1:
        found.append("server.max_question_chars: must be at least 1.")
    return found


def _search(search: SearchConfig) -> list[str]:
    counts = ("max_rounds", "max_sub_queries", "max_searches", "top_k")
    found = [f"search.{field}: must be at least 1." for field in counts if getattr(search, field) < 1]
    if search.max_turns < 2:
        found.append("search.max_turns: must be at least 2, one to search and one to report.")
    if search.top_k > _MOST_PASSAGES:
        found.append(f"search.top_k: must be at most {_MOST_PASSAGES}.")
    return found


def _role(key: str, role: RoleConfig, config: Config) -> list[str]:
    found: list[str] = []
    if role.engine is not None and role.engine not in config.engines:
        found.append(f"{key}.engine: no table engines.{role.engine}; add it, or name a base_url instead.")
    if role.engine is not None and role.base_url is not None:
        found.append(f"{key}: both engine and base_url are given; keep one.")
    if role.base_url is not None and not role.base_url.startswith(("http://", "https://")):
        found.append(f"{key}.base_url: {role.base_url!r} is not an address such as http://127.0.0.1:8000/v1.")
    if role.thinking is not None and role.engine is None and role.base_url is None:
        found.append(f"{key}.thinking: works with engine or base_url only; remove it.")
    if not Path(role.prompt).is_file():
        found.append(f"{key}.prompt: there is no file {role.prompt}.")
    found += [f"{key}.{field}: must be at least 1." for field in ("max_tokens", "attempts") if getattr(role, field) < 1]
    if not 0 <= role.temperature <= 2:
        found.append(f"{key}.temperature: must be 0 to 2.")
    if not 0 < role.top_p <= 1:
        found.append(f"{key}.top_p: must be more than 0 and at most 1.")
    return found


def _missing_files(config: Config) -> list[str]:
    found = [
        f"engines.{name}.path: {engine.path} holds no config.json; it must be a model's folder."
        for name, engine in config.engines.items()
        if engine.path.startswith("/") and not (Path(engine.path) / "config.json").is_file()
    ]
    files = {"retrieval.corpus": config.retrieval.corpus, "search.scope": config.search.scope}
    found += [f"{key}: there is no file {path}." for key, path in files.items() if path and not Path(path).is_file()]
    return found


def _retrieval(retrieval: RetrievalConfig) -> list[str]:
    found = _embedder(retrieval.embedder)
    if (retrieval.address is None) == (retrieval.index is None):
        found.append(
            "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither."
        )
    return found


def _embedder(embedder: EmbedderConfig) -> list[str]:
    keys = ("base_url", "model", "dimension")
    given = [key for key in keys if getattr(embedder, key) is not None]
    if embedder.kind == "minilm":
        return [f'retrieval.embedder.{key}: is for kind "endpoint" only.' for key in given]
    missing = [key for key in keys if key not in given]
    return [f'retrieval.embedder.{key}: missing; kind "endpoint" needs it.' for key in missing]
