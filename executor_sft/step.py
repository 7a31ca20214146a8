"""Steps of the training of an executor, such as `filter` or `train`. Each step has a folder for its
results. At the end of the step, a manifest in that folder records inputs, settings and figures.
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
from router.frozen import Frozen
from serving.config.config import Config, RoleConfig
from serving.files import sha256_of, write_atomically

_BEGUN = "begun.json"
MANIFEST = "manifest.json"
_ADVICE = "name another folder, because another release may have written this file"
_MAX_CHANGES = 5
"""Max changed settings or inputs that an error message names."""
_MAX_VALUE = 80
"""Max characters of each value in the message about changes."""


class Origin(Frozen, forbid_unknown_fields=True):
    """Everything that determines a step's result. Stored as `begun.json` when the step begins."""

    step: str
    """Name of the step, such as `filter`."""
    inputs: dict[str, str]
    """SHA-256 of every input; keys are purposes, such as `questions`. If an input is the folder of
    another step, the SHA-256 is that of the other step's manifest.
    """
    settings: dict[str, Any]


class StepManifest(Frozen, forbid_unknown_fields=True):
    """`manifest.json` of a finished step."""

    origin: Origin
    figures: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of every result file; keys are paths in the step's folder."""
    seconds: float
    """Duration, in seconds, of the command that finished the step. Earlier, interrupted commands
    are not included.
    """
    finished_at: str
    """Time at which the step was finished (ISO 8601, UTC)."""
    steps: dict[str, "StepManifest"] = {}
    """Manifests of earlier steps whose results are inputs of this step; keys are purposes, as in
    `Origin.inputs`.
    """


class Step(Frozen):
    """A step that has begun: the folder of the step's results, its inputs and its settings."""

    folder: Path
    origin: Origin
    inputs: Mapping[str, Path]
    begun_s: float
    """Time at which this command began or resumed the step, in seconds of the monotonic clock."""

    @classmethod
    def begin(
        cls,
        folder: Path,
        step: str,
        inputs: Mapping[str, Path],
        settings: Mapping[str, Any],
    ) -> "Step":
        """Begin a step in `folder`, or resume it if it was begun before.

        `step`: name of the step. `inputs`: files or folders; keys are their purposes, such as
        `questions`. `settings`: everything else that determines the result. Raises `BadConfig` if
        the folder contains another step, the same step with other inputs or settings, or other
        files.
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
                    f"{folder}: contains files that this command did not write; name a new folder."
                )
            write_json(begun, origin)
        else:
            before = read_json(begun, dict[str, Any], _ADVICE)
            now = msgspec.json.decode(msgspec.json.encode(origin))
            if changes := list(islice(_changes(before, now), _MAX_CHANGES)):
                raise BadConfig(
                    f"{folder}: the work in it was begun with {', '.join(changes)}; use the old "
                    "values, or name another folder (--out)."
                )
        return cls(folder, origin, inputs, time.monotonic())

    @property
    def finished(self) -> StepManifest | None:
        """The step's manifest; None if the step is not finished."""
        return read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None

    def reopen(self) -> None:
        """Remove the manifest, so that the step counts as unfinished and can continue."""
        (self.folder / MANIFEST).unlink(missing_ok=True)

    def finish(self, figures: Any, files: list[str]) -> StepManifest:
        """Write the manifest, which makes the step finished, and return it.

        `figures`: the step's figures, a struct or a dict. `files`: paths of the result files in the
        step's folder.
        """
        manifest = StepManifest(
            self.origin,
            msgspec.to_builtins(figures),
            {name: sha256_of(self.folder / name) for name in files},
            round(time.monotonic() - self.begun_s, 3),
            datetime.now(UTC).isoformat(timespec="seconds"),
            {name: read_manifest(path) for name, path in self.inputs.items() if path.is_dir()},
        )
        write_json(self.folder / MANIFEST, manifest)
        return manifest


def write_json(path: Path, value: object) -> None:
    """Write a value to the file `path` as indented JSON; the file is replaced atomically."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _changes(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """Yield a text for each difference between two JSON values, such as `limit 10 (now 20)`. A
    missing value equals null. `name`: dotted key of the two values.
    """
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
    """Return the manifest of the finished step in `folder`. Raises `BadConfig` if the manifest is
    missing or invalid.
    """
    if not (folder / MANIFEST).exists():
        raise BadConfig(f"{folder}: has no {MANIFEST}; name the folder of a finished step.")
    return read_json(folder / MANIFEST, StepManifest, _ADVICE)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of the file `path`, or of the manifest if `path` is a step's folder.
    Raises `BadConfig` if there is no such file.
    """
    file = path / MANIFEST if path.is_dir() else path
    if not file.is_file():
        raise BadConfig(f"{file}: is missing; correct the path, or finish the step that writes it.")
    return sha256_of(file)


_PLACES = {
    "role": "prompt engine base_url api_key_env extra_body omit attempts replicas "
    "first_token_timeout_s call_timeout_s max_in_flight fallbacks structured tool_calls",
    "search": "vocabulary",
    "retrieval": "address timeout_s index embedder memory_gb",
    "embedder": "engine base_url api_key_env",
    "reranker": "base_url form api_key_env timeout_s",
}
"""Keys that cannot change a step's result, for some sections of a config: they only say where and
how models and indexes are served. All other keys of these sections can change the result.
"""


def config_settings(
    config: Config,
    extra_roles: Mapping[str, RoleConfig | None] = {},
) -> dict[str, Any]:
    """Return the parts of a config that can change a step's result: models, prompts, sampling,
    limits and retrieval. They become a part of `Origin.settings`.

    `extra_roles`: further roles by name, such as the judge; None for a role that is not set. Raises
    `OSError` if a prompt cannot be read.
    """
    roles = (*config.roles.by_name.items(), *extra_roles.items())
    embedder = _deciding("embedder", config.retrieval.embedder)
    return {
        "roles": {name: _role(role) for name, role in roles if role is not None},
        "search": _deciding("search", config.search),
        "table": (config.table, config.roles.table_delegation, config.roles.table_execution),
        "retrieval": _deciding("retrieval", config.retrieval) | embedder,
        "reranker": config.reranker and _deciding("reranker", config.reranker),
    }


def _deciding(section: str, config: msgspec.Struct) -> dict[str, Any]:
    """Return the keys and values of a section that can change a step's result."""
    ignored = _PLACES[section].split()
    fields = msgspec.to_builtins(config)
    return {key: value for key, value in fields.items() if key not in ignored}


def _role(role: RoleConfig) -> dict[str, Any]:
    """Return the settings of a role that can change a step's result. `extra_body` is replaced by
    its SHA-256, since it may contain an API key.
    """
    extra = msgspec.json.encode(role.extra_body, order="deterministic")
    return {
        **_deciding("role", role),
        "prompt_sha256": sha256_of(Path(role.prompt)),
        "extra_body_sha256": hashlib.sha256(extra).hexdigest(),
    }
