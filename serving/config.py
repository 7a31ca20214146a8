"""The configuration: one TOML file, decoded into frozen values that refuse unknown keys."""

import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from router.errors import BadConfig


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gRPC edge and the store."""

    address: str = "127.0.0.1:50551"
    """host:port; port 0 takes any free one."""
    store: str = "sqlite:///rolegate.db"
    """A database URL; a relative path of SQLite stands beside the config file."""
    timeout_s: float = 120.0
    """The longest a request may take, whatever the client's deadline."""
    grace_s: float = 30.0
    """How long running requests may take to finish after SIGTERM."""
    max_question_chars: int = 4000


class SearchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The search loop's budgets."""

    max_rounds: int = 4
    """Delegator decisions (T)."""
    max_sub_queries: int = 8
    """Sub-queries of one block that are dispatched."""
    max_turns: int = 3
    """Executor turns, the report included (K)."""
    max_searches: int = 2
    """Searches of one executor."""
    top_k: int = 3
    """Passages shown for each search."""
    require_evidence: bool = True
    """Without any evidence, say "not found" instead of letting the answerer guess."""
    scope: str | None = None
    """A text file of the only words and names that a question may use; for models of one small language."""


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A vLLM process that the gateway starts and stops."""

    path: str
    """The model's folder, or a name that vLLM knows."""
    arguments: tuple[str, ...] = ()
    """Further arguments of vLLM's API server."""


class RoleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One role. Its model is on an `engine` of ours, at a `base_url`, or, with neither, wherever LiteLLM finds it."""

    model: str
    """The name under which the endpoint serves it."""
    prompt: str
    """The file that holds the system prompt."""
    engine: str | None = None
    """A name of the table `engines`."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1."""
    api_key_env: str | None = None
    """The environment variable that holds the key."""
    max_tokens: int = 1024
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    thinking: bool | None = None
    """Switches a chat template's thinking on or off; absent leaves it to the template."""
    attempts: int = 3
    """How often a call is tried while its endpoint is unavailable."""


class RolesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The three roles."""

    delegation: RoleConfig
    execution: RoleConfig
    answer: RoleConfig


class EmbedderConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What turns text into vectors: MiniLM in process, or an OpenAI-compatible endpoint."""

    kind: Literal["minilm", "endpoint"] = "minilm"
    base_url: str | None = None
    model: str | None = None
    dimension: int | None = None
    api_key_env: str | None = None


class RetrievalConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where passages come from: an index in process, or a retrieval server by address."""

    address: str | None = None
    """host:port of a RetrievalService."""
    index: str | None = None
    """An index folder."""
    corpus: str | None = None
    """The corpus.jsonl that the index is built from at the start, where it is missing or of another corpus."""
    lexical: bool = False
    """Fuse lexical ranks in; the index must have been built with them."""
    embedder: EmbedderConfig = EmbedderConfig()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything."""

    roles: RolesConfig
    retrieval: RetrievalConfig
    server: ServerConfig = ServerConfig()
    search: SearchConfig = SearchConfig()
    engines: dict[str, EngineConfig] = {}


def load_config(path: Path) -> Config:
    """Read and check a file; paths in it come back absolute. Raises `BadConfig` saying what, where and what to do."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file, or a preset.") from None
    try:
        tables = msgspec.toml.decode(raw)
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {_plainly(str(error), tables)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    config = _resolved(config, path.resolve().parent)
    for problem in _problems(config):
        raise BadConfig(f"{path}: {problem}")
    return config


def preset(name: str) -> Path:
    """The file of a shipped preset. Raises `BadConfig` for an unknown name."""
    folder = Path(__file__).parent / "presets"
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise BadConfig(f"preset {name!r}: unknown; there are: {known}.")
    return path


def _plainly(message: str, tables: dict[str, Any]) -> str:
    """msgspec's message with the key first: `roles.execution.max_turn: unknown field`."""
    text, _, where = message.partition(" - at `$")
    key = where.strip("`").lstrip(".")
    if key.startswith("engines[...]"):
        key = key.replace("[...]", f".{_bad_engine(tables['engines'])}", 1)
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, unknown[1])))}: unknown field"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, missing[1])))}: missing"
    return f"{key or 'the file'}: {text}"


def _bad_engine(engines: dict[str, Any]) -> str:
    """The name of the first engine that cannot be read; msgspec does not tell it."""
    for name, engine in engines.items():
        try:
            msgspec.convert(engine, EngineConfig)
        except msgspec.ValidationError:
            return name
    return "*"


def _expanded(path: str) -> Path:
    """`~` is the home folder; with a user who is not there it is left as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _resolved(config: Config, base: Path) -> Config:
    """The same with every path absolute; `~` is the home folder, other paths stand beside the file."""

    def absolute(path: str) -> str:
        return str((base / _expanded(path)).resolve())

    def with_prompt(role: RoleConfig) -> RoleConfig:
        return msgspec.structs.replace(role, prompt=absolute(role.prompt))

    roles = RolesConfig(
        delegation=with_prompt(config.roles.delegation),
        execution=with_prompt(config.roles.execution),
        answer=with_prompt(config.roles.answer),
    )
    retrieval = msgspec.structs.replace(
        config.retrieval,
        index=config.retrieval.index and absolute(config.retrieval.index),
        corpus=config.retrieval.corpus and absolute(config.retrieval.corpus),
    )
    engines = {
        name: msgspec.structs.replace(engine, path=absolute(engine.path)) if engine.path[:1] in "./~" else engine
        for name, engine in config.engines.items()
    }
    scope = config.search.scope and absolute(config.search.scope)
    search = msgspec.structs.replace(config.search, scope=scope)
    scheme, separator, file = config.server.store.partition(":///")
    server = config.server
    if scheme == "sqlite" and separator:
        server = msgspec.structs.replace(server, store=f"sqlite+aiosqlite:///{absolute(file)}")
    return Config(roles=roles, retrieval=retrieval, server=server, search=search, engines=engines)


def _problems(config: Config) -> list[str]:
    """What no single key shows, each with its key and what to do."""
    found: list[str] = []
    for name in ("delegation", "execution", "answer"):
        role: RoleConfig = getattr(config.roles, name)
        key = f"roles.{name}"
        if role.engine is not None and role.engine not in config.engines:
            found.append(f"{key}.engine: no table engines.{role.engine}; add it, or name a base_url instead.")
        if role.engine is not None and role.base_url is not None:
            found.append(f"{key}: both engine and base_url are given; keep one.")
        if not Path(role.prompt).is_file():
            found.append(f"{key}.prompt: there is no file {role.prompt}.")
        found += [
            f"{key}.{field}: must be at least 1." for field in ("max_tokens", "attempts") if getattr(role, field) < 1
        ]
    for field in ("max_rounds", "max_sub_queries", "max_searches", "top_k"):
        if getattr(config.search, field) < 1:
            found.append(f"search.{field}: must be at least 1.")
    if config.search.max_turns < 2:
        found.append("search.max_turns: must be at least 2, one to search and one to report.")
    found += _missing_files(config)
    if (config.retrieval.address is None) == (config.retrieval.index is None):
        found.append(
            "retrieval: give either address (a retrieval server) or index (a folder), not both and not neither."
        )
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
