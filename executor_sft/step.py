"""Steps of the distillation: a folder for each, whose manifest says what it was made of, and is
written last.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any

import msgspec

from executor_sft.jsonl import read_json
from router.errors import BadConfig
from serving.config.config import Config, RoleConfig
from serving.files import sha256_of, write_atomically

_BEGUN = "begun.json"
MANIFEST = "manifest.json"
_ADVICE = "was it written by another release? Name another folder"
_MAX_CHANGES = 5
_MAX_VALUE = 80
"""Differences that a refusal names, and characters of each."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that decides about a step's result."""

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
    """Duration of the last run of the step; one that was interrupted took longer."""
    finished_at: str
    """ISO 8601, UTC."""
    steps: dict[str, "StepManifest"] = {}
    """Manifests of the steps that the inputs came from, by the input's name."""


class Step:
    """A step under way, in a folder of its own."""

    def __init__(self, folder: Path, origin: Origin, inputs: Mapping[str, Path]) -> None:
        self.folder = folder
        self._origin = origin
        self._inputs = inputs
        self._begun = time.monotonic()

    @classmethod
    def begin(
        cls, folder: Path, step: str, inputs: Mapping[str, Path], settings: Mapping[str, Any]
    ) -> "Step":
        """Begin, or go on. Raises `BadConfig` where the folder holds another step, or one made
        of something else.
        """
        origin = Origin(
            step, {name: digest_of(path) for name, path in inputs.items()}, dict(settings)
        )
        folder.mkdir(parents=True, exist_ok=True)
        begun = folder / _BEGUN
        if not begun.exists():
            # Left by a kill
            if any(not path.name.startswith(f".{_BEGUN}.") for path in folder.iterdir()):
                raise BadConfig(
                    f"{folder}: is not empty, and no step began there; name another folder."
                )
            write_json(begun, origin)
        else:
            changes = _changes(
                read_json(begun, dict[str, Any], _ADVICE),
                msgspec.json.decode(msgspec.json.encode(origin)),
            )
            if changed := list(islice(changes, _MAX_CHANGES)):
                raise BadConfig(
                    f"{folder}: holds a step that was begun with {', '.join(changed)}; "
                    "go back, or name another folder."
                )
        return cls(folder, origin, inputs)

    @property
    def finished(self) -> StepManifest | None:
        """The manifest, where everything was done before."""
        return read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None

    def reopen(self) -> None:
        """Remove the manifest, as there is more to do."""
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def finish(self, figures: Any, files: list[str]) -> StepManifest:
        """Write the manifest. `figures`: a struct or a dict; `files`: paths in the folder."""
        manifest = StepManifest(
            self._origin,
            msgspec.to_builtins(figures),
            {name: sha256_of(self.folder / name) for name in files},
            round(time.monotonic() - self._begun, 3),
            datetime.now(UTC).isoformat(timespec="seconds"),
            {name: read_manifest(path) for name, path in self._inputs.items() if path.is_dir()},
        )
        write_json(self.folder / MANIFEST, manifest)
        return manifest


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, whole or not at all."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _changes(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Differences, each with the old value and the new one; an absent value is as good as null."""
    if before == now:
        return
    if not isinstance(before, dict) or not isinstance(now, dict):
        shown = (
            "absent" if value is None else msgspec.json.encode(value).decode()
            for value in (before, now)
        )
        old, new = (shorten(value, _MAX_VALUE, placeholder="…") for value in shown)
        yield f"{name} {old} (now {new})"
        return
    for key in dict.fromkeys((*before, *now)):
        yield from _changes(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))


def read_manifest(folder: Path) -> StepManifest:
    """The manifest of a finished step. Raises `BadConfig` where there is none, or where it
    cannot be read.
    """
    if not (folder / MANIFEST).exists():
        raise BadConfig(f"{folder}: has no {MANIFEST}; is this the folder of a finished step?")
    return read_json(folder / MANIFEST, StepManifest, _ADVICE)


def digest_of(path: Path) -> str:
    """SHA-256 of a file, or of a folder's manifest. Raises `BadConfig` where it is not there."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise BadConfig(f"{file}: is not there; finish the step that makes it first.")
    return sha256_of(file)


def config_settings(
    config: Config, extra_roles: Mapping[str, RoleConfig | None] = {}
) -> dict[str, Any]:
    """Models, prompts, sampling, limits and retrieval of a config, as JSON. Raises `OSError`."""
    named = (*config.roles.by_name.items(), *extra_roles.items())
    roles = {name: role for name, role in named if role is not None}
    search, retrieval = msgspec.to_builtins((config.search, config.retrieval))
    embedder = {
        key: retrieval["embedder"][key] for key in ("model", "query_prefix", "passage_prefix")
    }
    return {
        "roles": {name: _role(role) for name, role in roles.items()},
        "search": {key: value for key, value in search.items() if key != "vocabulary"},
        "table": (config.table, config.roles.table_delegation, config.roles.table_execution),
        "retrieval": {key: retrieval[key] for key in ("documents", "chunk_tokens", "lexical")}
        | embedder,
    }


def _role(role: RoleConfig) -> dict[str, Any]:
    """`extra_body` only by its digest, as there may be a key in it."""
    names = "model max_tokens temperature top_p seed thinking system_role context_tokens".split()
    extra = msgspec.json.encode(role.extra_body, order="deterministic")
    return {
        **{name: getattr(role, name) for name in names},
        "prompt_sha256": sha256_of(Path(role.prompt)),
        "extra_body_sha256": hashlib.sha256(extra).hexdigest(),
    }
