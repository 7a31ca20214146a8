"""Check a configuration for problems that the types of its keys do not exclude, such as a missing
file or two keys that contradict each other.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rolegate.client.connection import is_address

from router.edge.listening import host_of
from router.errors import BadConfig
from router.trace.call import MAX_DOLLARS
from router.trace.scope import DEFAULT_INDEX, UPLOADS
from serving.config.config import FACTORY, Config, RoleConfig, place_of, visit_texts
from serving.engines.versions import MANIFEST

_NOT_EXTRA = {
    "max_tokens": "set the role's max_tokens instead.",
    "max_completion_tokens": "set the role's max_tokens instead.",
    "n": "leave it out. The gateway reads only one output per request.",
}
"""Fields that `extra_body` must not contain, because they would change how much a model may write.
The values are the advice in the error message.
"""
_MINILM_DIMENSION = 384


def problems(config: Config) -> list[str]:
    """Return one message for each problem, with the key and what to do; an empty list if the
    configuration can be used.
    """
    problem_lines = []

    def check(key: str, mark: str, text: str) -> str:
        fits, advice = _TEXTS[mark]
        if mark == "url" and fits(text):
            fits, advice = _TEXTS["path of url"]
        if not fits(text):
            problem_lines.append(f"{key}: {advice.format(text)}")
        return text

    visit_texts(config, check)
    roles: dict[str, RoleConfig | None] = {
        **config.called_roles,
        "distillation.teacher": config.distillation.teacher,
        "distillation.judge": config.distillation.judge,
        "synthesis": config.synthesis,
    }
    for key, role in roles.items():
        if role:
            problem_lines += _role(key, role, config)
    problem_lines += [
        *_server_and_tables(config),
        *_tools(config),
        *_versions(config),
        *_embedder(config),
        *_retrieval(config),
    ]
    if problem := config.answer.problem():
        problem_lines.append(f"answer.{problem}")
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
    "file": (lambda path: Path(path).is_file(), "there is no file {}; fix the path."),
    "source": (lambda path: Path(path).exists(), "there is no file or folder {}; fix the path."),
    "version": (
        lambda path: (Path(path) / MANIFEST).is_file(),
        f"{{}} contains no {MANIFEST}; name the folder of a published version.",
    ),
    "model": (_is_model, "{} contains no config.json; name the folder of a model."),
    "store": (
        _is_store,
        "must be sqlite:///FILE, or postgresql://USER:PASSWORD@HOST/DATABASE; in a password, "
        "write @ : / # as %40 %3A %2F %23.",
    ),
    "address": (is_address, "{!r} is not host:port (port 0 to 65535), such as 127.0.0.1:50551."),
    "host": (host_of, "{!r} is not a host name; write only the name, such as gateway.example."),
    "url": (
        lambda url: re.match("https?://[^?#]", url),
        "must be http:// or https:// and a host, like http://127.0.0.1:8000/v1.",
    ),
    "path of url": (
        lambda url: re.fullmatch("[^?#]*", url),
        "contains a ? or #; leave out everything after the path.",
    ),
    "variable": (
        lambda name: re.fullmatch("[A-Za-z_][A-Za-z0-9_]*|", name),
        "is not the name of an environment variable; put the key into a variable, and write the "
        "variable's name here.",
    ),
    "factory": (
        lambda factory: factory == "Flat" or FACTORY.fullmatch(factory),
        "{!r} is not supported; write Flat, or an index factory string of FAISS such as "
        "HNSW32,SQ8, IVF4096,SQ8 or IVF4096,PQ48.",
    ),
    "name": (str.strip, "is empty; write the name under which the endpoint serves the model."),
}
"""Checks of texts, by the mark of the text's type in `config.py`, such as "path". A check is a
pair: a function that returns a true value for a valid text, and the message for an invalid text.
Messages do not quote texts that may contain a secret.
"""


def _server_and_tables(config: Config) -> Iterator[str]:
    server = config.server
    if server.http == server.address and not server.address.endswith(":0"):
        yield (
            "server.http: is the same as server.address, which serves gRPC; choose another port."
        )
    for model, price in config.prices.items():
        for field in price.impossible:
            yield (
                f"prices.{model!r}.{field}: must be between 0 and {MAX_DOLLARS:,} dollars per "
                f"million tokens, got {getattr(price, field)}."
            )
    if config.table.max_rows > config.table.max_tasks:
        yield (
            f"table.max_rows: must be at most table.max_tasks ({config.table.max_tasks}), because "
            f"each row takes at least one task, got {config.table.max_rows}; change one of the two."
        )


def _role(key: str, role: RoleConfig, config: Config) -> Iterator[str]:
    """Yield the problems of a role. `key`: the role's key in the file, such as `roles.answer`."""
    hosted = role.engine is None and role.base_url is None
    urls = [url.rstrip("/") for url in (role.base_url, *role.replicas) if url]
    if role.engine not in (None, *config.engines):
        yield (f"{key}.engine: there is no table [engines.{role.engine}]; add it, or set base_url.")
    if role.engine and role.base_url:
        yield f"{key}: both engine and base_url are given; keep one."
    if role.thinking is not None and hosted:
        yield (
            f"{key}.thinking: works with engine or base_url only; for a model called through "
            "LiteLLM, set the provider's own parameter, such as extra_body = "
            '{reasoning_effort = "low"}.'
        )
    for field, advice in _NOT_EXTRA.items():
        if field in role.extra_body:
            yield (
                f"{key}.extra_body.{field}: must not be set, because the gateway sets this value "
                f"itself; {advice}"
            )
    if role.context_tokens is not None and role.context_tokens <= role.max_tokens:
        yield (
            f"{key}.context_tokens: must be more than max_tokens ({role.max_tokens}), because the "
            f"context includes the output, got {role.context_tokens}; change one of the two."
        )
    if role.replicas and hosted:
        yield (
            f"{key}.replicas: needs engine or base_url, because a model called through LiteLLM has "
            "no replicas; set one of these, or remove this key."
        )
    if len(set(urls)) < len(urls):
        yield f"{key}.replicas: contains a URL twice, or the URL of base_url; remove one."
    if role.fallbacks and not key.startswith("roles."):
        yield (f"{key}.fallbacks: this role can have no fallbacks; remove this key.")
    if key.removeprefix("roles.") in role.fallbacks:
        yield f"{key}.fallbacks: contains the role itself; remove it from the list."


def _tools(config: Config) -> Iterator[str]:
    for name, server in config.tools.items():
        if bool(server.command) == (server.url is not None):
            yield (
                f"tools.{name}: set exactly one of command (a program with its arguments) and url."
            )
        if server.env and not server.command:
            yield (f"tools.{name}.env: needs command; for a server with url, set headers instead.")
        if server.headers and server.url is None:
            yield (f"tools.{name}.headers: needs url; for a server with command, set env instead.")
    for name, manager in config.managers.items():
        for tool in manager.tools:
            if tool not in config.tools:
                yield f"managers.{name}.tools: there is no table tools.{tool}; add it."


def _versions(config: Config) -> Iterator[str]:
    executor = config.roles.execution
    engine = config.engines.get(executor.engine or "")
    if config.versions.start is None:
        return
    if executor.engine is None and executor.base_url is None:
        yield (
            "versions.start: the model of roles.execution is called through LiteLLM, which loads "
            "no adapters; set roles.execution.engine, or remove this key."
        )
    if engine and engine.adapter_rank is None:
        yield (
            f"versions.start: needs engines.{executor.engine}.adapter_rank; set it to at least the "
            "rank of the version's adapter."
        )


def _embedder(config: Config) -> Iterator[str]:
    embedder = config.retrieval.embedder
    served = embedder.engine or embedder.base_url
    for field in ("query_prefix", "passage_prefix"):
        if embedder.in_process and getattr(embedder, field):
            yield (
                f"retrieval.embedder.{field}: applies only to an embedder with engine, base_url or "
                "onnx; set one of these, or remove this key."
            )
    for field in ("model", "dimension"):
        missing = getattr(embedder, field) is None
        if not (missing or served):
            yield (
                f"retrieval.embedder.{field}: applies only to an embedder with engine or base_url; "
                "set one of these, or remove this key."
            )
        if missing and served:
            yield (
                f"retrieval.embedder.{field}: missing; embedders with engine or base_url need it."
            )
    if embedder.onnx and served:
        yield (
            "retrieval.embedder.onnx: cannot be combined with engine or base_url; keep one of them."
        )
    if embedder.engine and embedder.base_url:
        yield (
            "retrieval.embedder: set engine (the name of a table in engines) or base_url, not both."
        )
    if embedder.engine not in (None, *config.engines):
        yield (f"retrieval.embedder.engine: there is no table [engines.{embedder.engine}]; add it.")


def _retrieval(config: Config) -> Iterator[str]:
    if DEFAULT_INDEX in config.indexes:
        yield (
            f"indexes.{DEFAULT_INDEX}: is the name of the index in [retrieval]; use another name."
        )
    if UPLOADS in config.indexes:
        yield (
            f"indexes.{UPLOADS}: is the name of the index of a tenant's uploads; use another name."
        )
    folders = [index.index for index in config.all_indexes.values() if index.index]
    partitions = [index.milvus for index in config.all_indexes.values()]
    dimension = config.retrieval.embedder.dimension or _MINILM_DIMENSION
    for name, index in config.all_indexes.items():
        key = place_of(name)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            yield (
                f"{key}: is not a valid name; use 1 to 64 letters, digits, dots, underscores and "
                "hyphens, beginning with a letter or a digit."
            )
        if (index.address is None) == (index.index is None):
            yield f"{key}: set exactly one of address (a retrieval server) and index (a folder)."
        if index.documents and index.index is None:
            yield (
                f"{key}.documents: set {key}.index too, the folder to which the index is written."
            )
        shape = FACTORY.fullmatch(index.vectors)
        if shape and shape[3] and dimension % int(shape[3]):
            yield (
                f"{key}.vectors: {index.vectors} does not fit the embedder; its dimension, "
                f"{dimension}, must be a multiple of the number after PQ; choose another number."
            )
        if index.milvus and partitions.count(index.milvus) > 1:
            yield f"{key}.milvus: another index has the same partition; name another partition."
        if index.index and folders.count(index.index) > 1:
            yield f"{key}.index: another index has the same folder; name another folder."
