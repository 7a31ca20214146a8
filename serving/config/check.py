"""Problems of a configuration that no single key's type shows, each with its key and what to do."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from router.edge.listening import TLS, host_of, is_address
from router.errors import BadConfig
from router.trace.call import MOST_DOLLARS
from serving.config.config import Config, EmbedderConfig, RoleConfig, visit_texts
from serving.engines.versions import MANIFEST

_NOT_EXTRA = {
    "max_tokens": "set the role's max_tokens.",
    "max_completion_tokens": "set the role's max_tokens.",
    "n": "one output is all that is read.",
}
"""Fields of a request that decide how much is written at most."""


def problems(config: Config) -> list[str]:
    """Everything that is wrong; nothing where the configuration can be used."""
    found = []

    def check(key: str, mark: str, text: str) -> str:
        fits, advice = _TEXTS[mark]
        if not fits(text):
            found.append(f"{key}: {advice.format(text)}")
        return text

    visit_texts(config, check)
    for name, role in config.roles.by_name.items():
        found += _role(f"roles.{name}", role, config)
    others = {
        "distillation.teacher": config.distillation.teacher,
        "distillation.judge": config.distillation.judge,
        "topologies.searcher": config.topologies.searcher,
    }
    for key, other in others.items():
        found += _role(key, other, config) if other else ()
    return [*found, *_server(config), *_versions(config), *_retrieval(config)]


def _is_store(url: str) -> bool:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return False
    return parsed.get_backend_name() == "postgresql" or (
        parsed.get_backend_name() == "sqlite" and bool(parsed.database)
    )


def _is_model(path: str) -> bool:
    return not path.startswith("/") or (Path(path) / "config.json").is_file()


_TEXTS: dict[str, tuple[Callable[[str], object], str]] = {
    "path": (bool, "is empty; name a path."),
    "file": (lambda path: Path(path).is_file(), "there is no file {}."),
    "source": (lambda path: Path(path).exists(), "there is no file or folder {}."),
    "version": (
        lambda path: (Path(path) / MANIFEST).is_file(),
        f"{{}} holds no {MANIFEST}; name the folder of a published version.",
    ),
    "model": (_is_model, "{} holds no config.json; it must be a model's folder."),
    "store": (
        _is_store,
        "must be sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE; in a password, write @ : / # as %40 %3A "
        "%2F %23.",
    ),
    "address": (is_address, "{!r} is not host:port, with a port of 0 to 65535."),
    "host": (host_of, "{!r} is no name of a host, such as gateway.example."),
    "url": (
        lambda url: re.fullmatch("https?://[^?#]+", url),
        "is not an address such as http://127.0.0.1:8000/v1, without a query; a key goes into api_key_env.",
    ),
    "variable": (
        lambda name: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*|", name),
        "is no name of an environment variable; put the key into one, and name that here.",
    ),
    "name": (str.strip, "is empty; write the name under which the endpoint serves it."),
}
"""By a text's mark, what it must be, and what is said of one that is not; nothing repeats what may hold a secret."""


def _server(config: Config) -> Iterator[str]:
    server = config.server
    if server.http is not None and server.http == server.address and not server.address.endswith(":0"):
        yield "server.http: the same address as server.address, which is gRPC's; take another port."
    if server.tls:
        try:
            TLS(server.tls.certificate, server.tls.key, server.tls.client_ca).for_http()
        except BadConfig as error:
            yield str(error)
    for model, price in config.prices.items():
        for field in price.impossible:
            yield f"prices.{model!r}.{field}: must be 0 to {MOST_DOLLARS:,}, in dollars for a million tokens."


def _role(key: str, role: RoleConfig, config: Config) -> Iterator[str]:
    hosted = role.engine is None and role.base_url is None
    if role.engine is not None and role.engine not in config.engines:
        yield f"{key}.engine: no table engines.{role.engine}; add it, or name a base_url instead."
    if role.engine is not None and role.base_url is not None:
        yield f"{key}: both engine and base_url are given; keep one."
    if role.thinking is not None and hosted:
        yield (
            f"{key}.thinking: works with engine or base_url only; say it in the provider's own words in extra_body, "
            'such as extra_body = {reasoning_effort = "low"}.'
        )
    for field, advice in _NOT_EXTRA.items():
        if field in role.extra_body:
            yield f"{key}.extra_body.{field}: would undo what is counted on; {advice}"
    if role.context_tokens is not None and role.context_tokens <= role.max_tokens:
        yield f"{key}.context_tokens: must be more than max_tokens, which are a part of them."
    if role.replicas and hosted:
        yield f"{key}.replicas: needs engine or base_url; LiteLLM's models have no replicas here."
    urls = [url.rstrip("/") for url in (role.base_url, *role.replicas) if url]
    if len(set(urls)) < len(urls):
        yield f"{key}.replicas: names an address twice."
    if role.fallbacks and not key.startswith("roles."):
        yield f"{key}.fallbacks: only the roles of the search have any."
    elif key.removeprefix("roles.") in role.fallbacks:
        yield f"{key}.fallbacks: names the role itself."
    if key == "topologies.searcher" and hosted:
        yield f"{key}: needs engine or base_url; hosted models do not go on with a turn of theirs."


def _versions(config: Config) -> Iterator[str]:
    executor = config.roles.execution
    if config.versions.start is None:
        return
    if executor.engine is None and executor.base_url is None:
        yield "versions.start: a provider loads no adapters; give roles.execution an engine, or leave it out."
    if (engine := config.engines.get(executor.engine or "")) and engine.adapter_rank is None:
        yield f"versions.start: needs engines.{executor.engine}.adapter_rank, the rank of its adapter or more."


def _retrieval(config: Config) -> Iterator[str]:
    retrieval = config.retrieval
    yield from _embedder(retrieval.embedder, config)
    if (retrieval.address is None) == (retrieval.index is None):
        yield "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither."
    if retrieval.documents and retrieval.index is None:
        yield "retrieval.documents: needs retrieval.index, the folder that their index is kept in."


def _embedder(embedder: EmbedderConfig, config: Config) -> Iterator[str]:
    key = "retrieval.embedder"
    if embedder.in_process:
        for field in ("model", "dimension", "query_prefix", "passage_prefix"):
            if getattr(embedder, field):
                yield f"{key}.{field}: is for an embedder elsewhere; name its engine or base_url too."
        return
    for field in ("model", "dimension"):
        if getattr(embedder, field) is None:
            yield f"{key}.{field}: missing; an embedder elsewhere needs it."
    if embedder.engine is not None and embedder.base_url is not None:
        yield f"{key}: give either engine (a table of engines) or base_url."
    if embedder.engine is not None and embedder.engine not in config.engines:
        yield f"{key}.engine: no table engines.{embedder.engine}; add it, or name a base_url."
