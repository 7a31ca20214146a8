"""Publish versions of the executor in a folder, and verify the files of a version against its
manifest.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from router.errors import JSON_ERRORS, BadVersion
from router.frozen import Frozen
from serving.files import flush, sha256_of

MANIFEST = "manifest.json"


class VersionManifest(Frozen, kw_only=True, forbid_unknown_fields=True):
    """The manifest of a published version: its kind, its training, and its files."""

    format: Literal[1] = 1
    version: str
    """Name of the version and of its folder, such as `executor-000001`."""
    kind: Literal["adapter", "weights"]
    """`adapter`: a LoRA adapter, which an engine loads in addition to the base model. `weights`:
    a whole model, which is served instead of the base model.
    """
    base_model: str
    """Name of the base model: the `model` of roles.execution in the config."""
    base_sha256: str
    """SHA-256 of the base model's `model.safetensors`, or of `model.safetensors.index.json` if the
    weights are in several files. Empty if unknown.
    """
    rank: int | None = None
    """Rank of an adapter; None for weights."""
    recipe: dict[str, Any]
    """All options of the training."""
    data: dict[str, Any]
    """Manifest of the command that made the training data. It contains the manifests of the earlier
    commands whose output this command used.
    """
    evaluation: dict[str, Any] | None = None
    """Comparison of this version with the previous version (`evaluation.json`); None if they were
    not compared.
    """
    git_revision: str = ""
    """Git revision of the training code. Set only in versions that were published by earlier
    releases.
    """
    created_at: str
    """Time of the publication in ISO 8601, UTC."""
    files: dict[str, str]
    """SHA-256 of each file of the version except the manifest, by the file's path in the folder."""


WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_NAME = re.compile(r"executor-(\d{6,})")


def verified(folder: Path) -> VersionManifest:
    """Return the manifest of the version in `folder`. Raises `BadVersion` if the manifest cannot be
    read, or if the files in the folder are not exactly those in the manifest.
    """
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=VersionManifest)
    except JSON_ERRORS as error:
        raise BadVersion(
            f"{path}: is not a valid manifest ({error}); publish the version again."
        ) from None
    except OSError as error:
        raise BadVersion(
            f"{path}: {error.strerror}; name the folder of a published version."
        ) from None
    if manifest.version != folder.resolve().name:
        raise BadVersion(
            f"{path}: is the manifest of version {manifest.version}; give the folder that name."
        )
    present = set(_files(folder)) - {MANIFEST}
    for name in sorted(manifest.files.keys() | present):
        if name not in manifest.files:
            raise BadVersion(
                f"{folder / name}: is not in the manifest; remove it, or publish the version again."
            )
        if name not in present:
            raise BadVersion(
                f"{folder / name}: is missing; copy the version again, or publish it again."
            )
        if _sha256_of(folder / name) != manifest.files[name]:
            raise BadVersion(
                f"{folder / name}: has changed since it was published; copy the version again, or "
                "publish it again."
            )
    return manifest


def base_sha256(model: Path) -> str:
    """Return the SHA-256 of `model.safetensors` in a model's folder, or of
    `model.safetensors.index.json` if the weights are in several files. Empty if the folder has
    neither file.
    """
    return next(
        (_sha256_of(model / name) for name in WEIGHTS if (model / name).is_file()),
        "",
    )


def next_version(folder: Path, taken: Iterable[str] = ()) -> str:
    """Return the name of the next version. Its number is one more than the highest number of the
    versions in `folder` and in `taken`.
    """
    names = [*taken, *(path.name for path in folder.iterdir())] if folder.is_dir() else taken
    matches = filter(None, map(_NAME.fullmatch, names))
    latest = max((int(match[1]) for match in matches), default=0)
    return f"executor-{latest + 1:06d}"


def write_version(
    folder: Path,
    content: Path,
    manifest: VersionManifest,
    taken: Iterable[str] = (),
) -> Path:
    """Publish the files in `content` as the next version in `folder`, and return the version's
    folder.

    `manifest`: manifest of the version; `version` and `files` are filled in. `taken`: names that
    are registered in a database already, and must not be used again. The version is written to a
    hidden folder, which is then renamed. So a version in `folder` is never incomplete. If the
    process is killed, the next call removes the hidden folder. Raises `BadVersion` if the version
    cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            for leftover in folder.glob(".executor-*"):
                shutil.rmtree(leftover)
            version = next_version(folder, taken)
            unfinished = folder / f".{version}"
            try:
                _write(
                    unfinished,
                    content,
                    msgspec.structs.replace(manifest, version=version),
                )
                unfinished.rename(folder / version)
                flush(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        where = error.filename or folder
        raise BadVersion(
            f"{where}: {error.strerror}, so no version was published; check permissions and disk."
        ) from error
    return folder / version


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder while the context is open, so that no other process publishes a version in
    it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(target: Path, content: Path, manifest: VersionManifest) -> None:
    shutil.copytree(content, target, copy_function=shutil.copyfile)
    (target / MANIFEST).unlink(missing_ok=True)
    files = {name: sha256_of(target / name) for name in _files(target)}
    for name in files:
        flush(target / name)
    encoded = msgspec.json.encode(msgspec.structs.replace(manifest, files=files))
    (target / MANIFEST).write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
    flush(target / MANIFEST)
    for path in (target, *target.rglob("*")):
        if path.is_dir():
            flush(path)


def _files(folder: Path) -> list[str]:
    """Return the paths of all files below `folder`, relative to `folder` and sorted."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )


def _sha256_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise BadVersion(
            f"{path}: cannot be read ({error.strerror}); correct its path or permissions."
        ) from None
