"""Problems of a configuration that no single key's type shows, each with its key and what to do."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from router.edge.listening import host_of, is_address
from router.errors import BadConfig
from router.trace.call import MAX_DOLLARS
from serving.config.config import Config, RoleConfig, visit_texts
from serving.engines.versions import MANIFEST

_NOT_EXTRA = {
    "max_tokens": "set the role's max_tokens.",
    "max_completion_tokens": "set the role's max_tokens.",
    "n": "one output is all that is read.",
}
"""Fields of a request that decide how much is written at most."""
_NO_THINKING = (
    "works with engine or base_url only; say it in the provider's own words in extra_body, such as "
    'extra_body = {reasoning_effort = "low"}.'
)


def problems(config: Config) -> list[str]:
    """Everything that is wrong; nothing where the configuration can be used."""
    problem_lines = []

    def check(key: str, mark: str, text: str) -> str:
        fits, advice = _TEXTS[mark]
        if not fits(text):
            problem_lines.append(f"{key}: {advice.format(text)}")
        return text

    visit_texts(config, check)
    others = {
        "distillation.teacher": config.distillation.teacher,
        "distillation.judge": config.distillation.judge,
    }
    roles: dict[str, RoleConfig | None] = {**config.called_roles, **others}
    rules = [
        (wrong, key + at, problem)
        for key, role in roles.items()
        if role
        for wrong, at, problem in _role(key, role, config)
    ]
    rules += [
        *_server(config),
        *_tables(config),
        *_tools(config),
        *_versions(config),
        *_retrieval(config),
    ]
    problem_lines += [f"{key}: {problem}" for wrong, key, problem in rules if wrong]
    if tls := config.server.tls:
        try:
            tls.for_http()
        except BadConfig as error:
            problem_lines.append(str(error))
    return problem_lines


def _is_store(url: str) -> bool:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

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
        "must be sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE; in a "
        "password, write @ : / # as %40 %3A "
        "%2F %23.",
    ),
    "address": (is_address, "{!r} is not host:port, with a port of 0 to 65535."),
    "host": (host_of, "{!r} is no name of a host, such as gateway.example."),
    "url": (
        lambda url: re.fullmatch("https?://[^?#]+", url),
        (
            "is not an address such as http://127.0.0.1:8000/v1, without a query; a key goes "
            "into api_key_env."
        ),
    ),
    "variable": (
        lambda name: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*|", name),
        "is no name of an environment variable; put the key into one, and name that here.",
    ),
    "name": (str.strip, "is empty; write the name under which the endpoint serves it."),
}
"""By a text's mark, what it must be, and what is said of one that is not; nothing repeats what
may hold a secret.
"""


_Rules = Iterator[tuple[object, str, str]]
"""Whether something is wrong with a key, the key, and what is said of it then."""


def _server(config: Config) -> _Rules:
    server = config.server
    alike = (
        server.http is not None
        and server.http == server.address
        and not server.address.endswith(":0")
    )
    yield (
        alike,
        "server.http",
        "the same address as server.address, which is gRPC's; take another port.",
    )
    for model, price in config.prices.items():
        for field in price.impossible:
            problem = f"must be 0 to {MAX_DOLLARS:,}, in dollars for a million tokens."
            yield True, f"prices.{model!r}.{field}", problem


def _role(key: str, role: RoleConfig, config: Config) -> _Rules:
    """Keys are given from the role's own on."""
    hosted = role.engine is None and role.base_url is None
    known = role.engine in (None, *config.engines)
    urls = [url.rstrip("/") for url in (role.base_url, *role.replicas) if url]
    yield (
        not known,
        ".engine",
        f"no table engines.{role.engine}; add it, or name a base_url instead.",
    )
    yield role.engine and role.base_url, "", "both engine and base_url are given; keep one."
    yield role.thinking is not None and hosted, ".thinking", _NO_THINKING
    for field, advice in _NOT_EXTRA.items():
        yield (
            field in role.extra_body,
            f".extra_body.{field}",
            f"would undo what is counted on; {advice}",
        )
    full = role.context_tokens is not None and role.context_tokens <= role.max_tokens
    yield full, ".context_tokens", "must be more than max_tokens, which are a part of them."
    yield (
        role.replicas and hosted,
        ".replicas",
        "needs engine or base_url; LiteLLM's models have no replicas here.",
    )
    yield len(set(urls)) < len(urls), ".replicas", "names an address twice."
    yield (
        role.fallbacks and not key.startswith("roles."),
        ".fallbacks",
        "only the roles of the search have any.",
    )
    yield key.removeprefix("roles.") in role.fallbacks, ".fallbacks", "names the role itself."


def _tables(config: Config) -> _Rules:
    problem = (
        "a table of so many rows could not be filled; it takes one of table.max_tasks for "
        "each, or more."
    )
    yield config.table.max_rows > config.table.max_tasks, "table.max_rows", problem


def _tools(config: Config) -> _Rules:
    for name, server in config.tools.items():
        key = f"tools.{name}"
        alike = bool(server.command) == (server.url is not None)
        yield (
            alike,
            key,
            "give either command (a program with its arguments) or url, not both and not neither.",
        )
        yield (
            server.env and not server.command,
            f"{key}.env",
            "is for a command; an address has headers.",
        )
        yield (
            server.headers and server.url is None,
            f"{key}.headers",
            "is for an address; a command has env.",
        )
    for name, manager in config.managers.items():
        for tool in manager.tools:
            yield (
                tool not in config.tools,
                f"managers.{name}.tools",
                f"no table tools.{tool}; add it.",
            )


def _versions(config: Config) -> _Rules:
    executor = config.roles.execution
    start = "versions.start"
    hosted = executor.engine is None and executor.base_url is None
    engine = config.engines.get(executor.engine or "")
    if config.versions.start is not None:
        yield (
            hosted,
            start,
            "a provider loads no adapters; give roles.execution an engine, or leave it out.",
        )
        problem = f"needs engines.{executor.engine}.adapter_rank, the rank of its adapter or more."
        yield engine and engine.adapter_rank is None, start, problem


def _retrieval(config: Config) -> _Rules:
    retrieval = config.retrieval
    embedder = config.retrieval.embedder
    key = "retrieval.embedder"
    for field in (
        ("model", "dimension", "query_prefix", "passage_prefix") if embedder.in_process else ()
    ):
        value = getattr(embedder, field)
        yield (
            value,
            f"{key}.{field}",
            "is for an embedder elsewhere; name its engine or base_url too.",
        )
    for field in () if embedder.in_process else ("model", "dimension"):
        yield (
            getattr(embedder, field) is None,
            f"{key}.{field}",
            "missing; an embedder elsewhere needs it.",
        )
    yield (
        embedder.engine and embedder.base_url,
        key,
        "give either engine (a table of engines) or base_url.",
    )
    known = embedder.engine in (None, *config.engines)
    problem = f"no table engines.{embedder.engine}"
    yield not known, f"{key}.engine", f"{problem}; add it, or name a base_url."
    alike = (retrieval.address is None) == (retrieval.index is None)
    yield (
        alike,
        "retrieval",
        "give either address (a retrieval server) or index (a folder), not both and not neither.",
    )
    lacks = retrieval.documents and retrieval.index is None
    yield (
        lacks,
        "retrieval.documents",
        "needs retrieval.index, the folder that their index is kept in.",
    )
