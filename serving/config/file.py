"""Reading a configuration file, and the shipped ones."""

import difflib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.inspect import DictType, StructType, Type, UnionType, type_info

from router.errors import BadConfig
from serving.config.check import problems
from serving.config.config import (
    Config,
    DistillationConfig,
    EngineConfig,
    RoleConfig,
    RolesConfig,
    TLSConfig,
    TopologiesConfig,
)

_ALIKE = 0.75
"""The least `difflib` ratio of a key and its misspelling: `kynd` and `kind`, but not `max_turns` and `max_tokens`."""


def plainly(message: str, tables: dict[str, Any]) -> str:
    """msgspec's message with the key first: `roles.execution.max_turn: unknown field; …`."""
    text, _, where = message.partition(" - at `$")
    key = place = where.strip("`").lstrip(".")
    if key.startswith("engines[...]"):
        key = key.replace("[...]", f".{_bad_engine(tables['engines'])}", 1)
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, unknown[1])))}: unknown field; {_instead(unknown[1], place, key)}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", text):
        return f"{'.'.join(filter(None, (key, missing[1])))}: missing"
    return f"{key or 'the file'}: {text}"


def _instead(unknown: str, place: str, table: str) -> str:
    """What may have been meant in `table`, or else its keys. `place`: what msgspec calls it, such as `engines[...]`."""
    inside = place.replace("[...]", ".NAME") + "." if place else ""
    every = list(_keys(type_info(Config)))
    here = [key.removeprefix(inside) for key in every if key.startswith(inside) and "." not in key.removeprefix(inside)]
    others = {key.partition(".")[2]: key for key in every if key.count(".") == 1}  # of sections; deeper ones are far
    close_by, far = (difflib.get_close_matches(unknown, keys, 1, _ALIKE) for keys in (here, others))
    if unknown not in others and close_by:
        return f"did you mean {'.'.join(filter(None, (table, close_by[0])))}?"
    return f"did you mean {others[far[0]]}?" if far else f"there are: {', '.join(here)}"


def _keys(kind: Type, table: str = "") -> Iterator[str]:
    """All keys below a table, with the tables that they are in; `NAME` stands for one that the user chooses."""
    if isinstance(kind, UnionType):  # with None, for a table that may be left out
        for one in kind.types:
            yield from _keys(one, table)
    elif isinstance(kind, DictType):
        yield from _keys(kind.value_type, f"{table}NAME.")
    elif isinstance(kind, StructType):
        for field in kind.fields:
            yield table + field.encode_name
            yield from _keys(field.type, f"{table}{field.encode_name}.")


def _bad_engine(engines: dict[str, Any]) -> str:
    """The name of the first engine that cannot be read; msgspec does not tell it."""
    for name, engine in engines.items():
        try:
            msgspec.convert(engine, EngineConfig)
        except msgspec.ValidationError:
            return name
    return "*"


_PACKAGE = Path(__file__).resolve().parents[1]
_PRESETS = _PACKAGE / "presets"
_SHIPPED = "shipped:"


def load_config(path: Path) -> Config:
    """Read and check a file; paths in it come back absolute. Raises `BadConfig` saying what, where and what to do."""
    config = read_config(path)
    for problem in problems(config):
        raise BadConfig(f"{path}: {problem}")
    return config


def read_config(path: Path) -> Config:
    """As `load_config`, but what `problems` finds in it is left to the caller. Raises `BadConfig`."""
    try:
        return parse_config(path.read_bytes(), path)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file, or a preset.") from None


def parse_config(raw: bytes, path: Path) -> Config:
    """As `read_config`, of a file that has this content or will have it."""
    try:
        tables = msgspec.toml.decode(raw)
        config = msgspec.convert(tables, Config)
    except msgspec.ValidationError as error:
        raise BadConfig(f"{path}: {plainly(str(error), tables)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    folder = path.resolve().parent
    try:
        return _resolved(config, Path.cwd() if folder == _PRESETS else folder)
    except ValueError:
        raise BadConfig(f"{path}: a path in it holds the character \\u0000, which no file's name can.") from None


def preset(name: str) -> Path:
    """The file of a shipped preset. Raises `BadConfig` for an unknown name."""
    path = _PRESETS / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in _PRESETS.glob("*.toml")))
        raise BadConfig(f"preset {name!r}: unknown; there are: {known}.")
    return path


def _expanded(path: str) -> Path:
    """`~` is the home folder; with a user who is not there it is left as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def located(base: Path, path: str) -> str:
    """A file that a config in the folder `base` names, as an absolute path."""
    if path.startswith(_SHIPPED):
        return str(_PACKAGE / path.removeprefix(_SHIPPED))
    return str((base / _expanded(path)).resolve())


def _resolved(config: Config, base: Path) -> Config:
    """The same with every path absolute."""
    absolute = partial(located, base)

    def engine_path(path: str) -> str:
        """A folder, or else a name that vLLM knows."""
        local = path.startswith((".", "/", "~", _SHIPPED)) or (base / path / "config.json").is_file()
        return absolute(path) if local else path

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
        documents=tuple(map(absolute, config.retrieval.documents)),
    )
    engines = {
        name: msgspec.structs.replace(engine, path=engine_path(engine.path)) for name, engine in config.engines.items()
    }
    teacher, judge = config.distillation.teacher, config.distillation.judge
    distillation = DistillationConfig(teacher=teacher and with_prompt(teacher), judge=judge and with_prompt(judge))
    alone, unaided = config.topologies.single_agent, config.topologies.no_retrieval
    topologies = TopologiesConfig(
        single_agent=msgspec.structs.replace(alone, prompt=alone.prompt and absolute(alone.prompt)),
        no_retrieval=msgspec.structs.replace(unaided, prompt=unaided.prompt and absolute(unaided.prompt)),
        searcher=config.topologies.searcher and with_prompt(config.topologies.searcher),
    )
    scope = config.search.scope and absolute(config.search.scope)
    search = msgspec.structs.replace(config.search, scope=scope)
    server = msgspec.structs.replace(
        config.server, store=_store(config.server.store, absolute), tls=_tls(config.server.tls, absolute)
    )
    versions = msgspec.structs.replace(
        config.versions,
        folder=absolute(config.versions.folder),
        start=config.versions.start and absolute(config.versions.start),
    )
    return msgspec.structs.replace(
        config,
        roles=roles,
        retrieval=retrieval,
        server=server,
        search=search,
        engines=engines,
        versions=versions,
        distillation=distillation,
        topologies=topologies,
    )


def _store(url: str, absolute: Callable[[str], str]) -> str:
    """Of SQLite, the file's path made absolute, and no driver: older configs name one."""
    scheme, separator, file = url.partition(":///")
    return f"sqlite:///{absolute(file)}" if separator and file and scheme.partition("+")[0] == "sqlite" else url


def _tls(tls: TLSConfig | None, absolute: Callable[[str], str]) -> TLSConfig | None:
    if tls is None:
        return None
    return TLSConfig(
        certificate=absolute(tls.certificate),
        key=absolute(tls.key),
        client_ca=tls.client_ca and absolute(tls.client_ca),
    )
