"""A step of the distillation: its folder, what it was made of, and what came of it."""

import hashlib
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec

from router.errors import BadConfig
from serving.config.config import Config, RoleConfig
from serving.files import sha256_of, write_atomically

_BEGUN, MANIFEST = "begun.json", "manifest.json"
_MOST_TOLD, _LONGEST_TOLD = 5, 80
"""Differences, and characters of each."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What makes a step's result what it is."""

    step: str
    inputs: dict[str, str]
    """SHA-256 of every input, by what it is for; of a folder, that of its manifest."""
    settings: dict[str, Any]


class StepManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`manifest.json` of a finished step."""

    origin: Origin
    figures: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of every file of the result, by its path in the folder."""
    seconds: float
    """How long the last run of the step took; one that was interrupted took longer."""
    finished_at: str
    """ISO 8601, UTC."""


class Step:
    """A step under way, in a folder of its own."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.folder, self._origin, self._begun = folder, origin, time.monotonic()

    @classmethod
    def begin(cls, folder: Path, step: str, inputs: Mapping[str, Path], settings: Mapping[str, Any]) -> "Step":
        """Begin, or go on. Raises `BadConfig` where the folder holds another step, or one made of something else."""
        origin = Origin(step, {name: digest_of(path) for name, path in inputs.items()}, dict(settings))
        folder.mkdir(parents=True, exist_ok=True)
        begun, encoded = folder / _BEGUN, msgspec.json.format(msgspec.json.encode(origin), indent=2) + b"\n"
        if not begun.exists():
            if any(not path.name.startswith(f".{_BEGUN}.") for path in folder.iterdir()):  # left by a kill
                raise BadConfig(f"{folder}: is not empty, and no step began there; name another folder.")
            write_atomically(begun, encoded)
        elif changed := list(islice(_changes(_read(begun), msgspec.json.decode(encoded)), _MOST_TOLD)):
            raise BadConfig(
                f"{folder}: holds a step that was begun with {', '.join(changed)}; go back, or name another folder."
            )
        return cls(folder, origin)

    @property
    def finished(self) -> StepManifest | None:
        """The manifest, where everything was done before."""
        return read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None

    def reopen(self) -> None:
        """There is more to do."""
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def finish(self, figures: Mapping[str, Any], files: list[str]) -> StepManifest:
        """Write the manifest. `files`: paths in the folder."""
        manifest = StepManifest(
            self._origin,
            dict(figures),
            {name: sha256_of(self.folder / name) for name in files},
            round(time.monotonic() - self._begun, 3),
            datetime.now(UTC).isoformat(timespec="seconds"),
        )
        encoded = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        write_atomically(self.folder / MANIFEST, encoded + b"\n")
        return manifest


def _read(begun: Path) -> Any:
    try:
        return msgspec.json.decode(begun.read_bytes())
    except msgspec.DecodeError as error:
        raise BadConfig(f"{begun}: {error}; name another folder.") from None


def _changes(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """What differs, with what it was and what it is; what is not there is as good as null."""
    if before == now:
        return
    if not isinstance(before, dict) or not isinstance(now, dict):
        yield f"{name} {_shown(before)} (now {_shown(now)})"
        return
    for key in dict.fromkeys((*before, *now)):
        yield from _changes(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))


def _shown(value: Any) -> str:
    return shorten("absent" if value is None else msgspec.json.encode(value).decode(), _LONGEST_TOLD, placeholder="…")


def read_manifest(folder: Path) -> StepManifest:
    """The manifest of a finished step. Raises `BadConfig` where there is none, or where it cannot be read."""
    path = folder / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepManifest)
    except FileNotFoundError:
        raise BadConfig(f"{folder}: has no {MANIFEST}; is this the folder of a finished step?") from None
    except msgspec.DecodeError as error:
        raise BadConfig(f"{path}: {error}; was it written by another release?") from None


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of a folder's manifest. Raises `BadConfig` where it is not there."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise BadConfig(f"{file}: is not there; finish the step that makes it first.")
    return sha256_of(file)


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
