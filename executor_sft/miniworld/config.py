"""The preset `mini` over another world than the demo's."""

from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from serving.config.config import Config
from serving.files import write_atomically


def over(config: Config, world: Path) -> Config:
    """The same models over the world whose files are in the folder `world`; its index, its runs and the versions that
    are made of these are kept there.
    """
    retrieval = msgspec.structs.replace(
        config.retrieval, documents=(str(world / "corpus.jsonl"),), index=str(world / "index"), address=None
    )
    search = msgspec.structs.replace(config.search, scope=config.search.scope and str(world / "scope.txt"))
    server = msgspec.structs.replace(config.server, store=f"sqlite:///{world}/runs.db")
    versions = msgspec.structs.replace(config.versions, folder=str(world / "versions"))
    return msgspec.structs.replace(config, retrieval=retrieval, search=search, server=server, versions=versions)


def write_config(config: msgspec.Struct, file: Path) -> None:
    """Write it as TOML: a gateway's, or another kind."""
    write_atomically(file, tomlkit.dumps(_without_none(msgspec.to_builtins(config))).encode())


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
