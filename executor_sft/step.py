"""Steps of the distillation. Each has a folder, whose manifest names all that it was made of and
is written last.
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
_ADVICE = "another release may have written it; name another folder"
_MAX_CHANGES = 5
_MAX_VALUE = 80
"""Differences that an error names, and characters of each value."""


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that determines a step's result."""

    step: str
    inputs: dict[str, str]
    """SHA-256 of every input by its purpose; for a folder, that of its manifest."""
    settings: dict[str, Any]


class StepManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`manifest.json` of a finished step."""

    origin: Origin
    figures: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of every result file, by its path in the folder."""
    seconds: float
    """Duration of the last run of the step; interrupted runs are not counted."""
    finished_at: str
    """ISO 8601, UTC."""
    steps: dict[str, "StepManifest"] = {}
    """Manifests of the steps that made the inputs, by the input's name."""


class Step:
    """A step under way in its folder."""

    def __init__(self, folder: Path, origin: Origin, inputs: Mapping[str, Path]) -> None:
        self.folder = folder
        self._origin = origin
        self._inputs = inputs
        self._begun = time.monotonic()

    @classmethod
    def begin(
        cls,
        folder: Path,
        step: str,
        inputs: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> "Step":
        """Begin a step, or resume it. Raises `BadConfig` if the folder holds another step, or the
        same one with other inputs or settings.
        """
        origin = Origin(
            step, {name: digest_of(path) for name, path in inputs.items()}, dict(settings)
        )
        folder.mkdir(parents=True, exist_ok=True)
        begun = folder / _BEGUN
        if not begun.exists():
            # A killed command may have left a temporary file
            if any(not path.name.startswith(f".{_BEGUN}.") for path in folder.iterdir()):
                raise BadConfig(
                    f"{folder}: is not empty and not a step's folder; name another folder."
                )
            write_json(begun, origin)
        else:
            before = read_json(begun, dict[str, Any], _ADVICE)
            now = msgspec.json.decode(msgspec.json.encode(origin))
            if changes := list(islice(_changes(before, now), _MAX_CHANGES)):
                raise BadConfig(
                    f"{folder}: holds a step that was begun with {', '.join(changes)}; "
                    "go back, or name another folder."
                )
        return cls(folder, origin, inputs)

    @property
    def finished(self) -> StepManifest | None:
        """The manifest if the step is finished, else None."""
        return read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None

    def reopen(self) -> None:
        """Remove the manifest, so that the step can do more."""
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def finish(self, figures: Any, files: list[str]) -> StepManifest:
        """Write and return the manifest. `figures`: a struct or a dict. `files`: paths in the
        folder.
        """
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
    """Write a value as indented JSON, atomically."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _changes(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield each difference with its old and new value. An absent value equals null."""
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
    """Return the manifest of a finished step. Raises `BadConfig` if it is missing or invalid."""
    if not (folder / MANIFEST).exists():
        raise BadConfig(f"{folder}: has no {MANIFEST}; name the folder of a finished step.")
    return read_json(folder / MANIFEST, StepManifest, _ADVICE)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, or of a folder's manifest. Raises `BadConfig` if missing."""
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise BadConfig(f"{file}: is missing; finish the step that makes it first.")
    return sha256_of(file)


_PLACES = {
    "role": "prompt engine base_url api_key_env extra_body omit attempts replicas "
    "first_token_timeout_s call_timeout_s max_in_flight fallbacks structured tool_calls",
    "search": "vocabulary",
    "retrieval": "address timeout_s index embedder",
    "embedder": "engine base_url api_key_env",
}
"""Keys of a config that do not decide about a result, by the section: where and how its parts are
served. A key that is not listed does.
"""


def config_settings(
    config: Config,
    extra_roles: Mapping[str, RoleConfig | None] = {},
) -> dict[str, Any]:
    """Return the models, prompts, sampling, limits and retrieval of a config, as JSON. Raises
    `OSError`.
    """
    roles = (*config.roles.by_name.items(), *extra_roles.items())
    embedder = _deciding("embedder", config.retrieval.embedder)
    return {
        "roles": {name: _role(role) for name, role in roles if role is not None},
        "search": _deciding("search", config.search),
        "table": (config.table, config.roles.table_delegation, config.roles.table_execution),
        "retrieval": _deciding("retrieval", config.retrieval) | embedder,
    }


def _deciding(section: str, config: msgspec.Struct) -> dict[str, Any]:
    """Return the keys of a section that decide about a result."""
    ignored = _PLACES[section].split()
    fields = msgspec.to_builtins(config)
    return {key: value for key, value in fields.items() if key not in ignored}


def _role(role: RoleConfig) -> dict[str, Any]:
    """Return a role's settings; `extra_body` as a digest, as it may contain a key."""
    extra = msgspec.json.encode(role.extra_body, order="deterministic")
    return {
        **_deciding("role", role),
        "prompt_sha256": sha256_of(Path(role.prompt)),
        "extra_body_sha256": hashlib.sha256(extra).hexdigest(),
    }
