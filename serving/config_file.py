"""Reading a configuration file, and the shipped ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from router.errors import BadConfig
from serving.config import (
    Config,
    DistillationConfig,
    RoleConfig,
    RolesConfig,
    TLSConfig,
    TopologiesConfig,
)
from serving.config_check import problems
from serving.config_error import plainly

_PACKAGE = Path(__file__).resolve().parent
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
