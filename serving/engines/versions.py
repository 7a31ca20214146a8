"""The folder of published versions: publish the next one, or verify one against its manifest."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from router.errors import BadVersion
from serving.files import flush, sha256_of

MANIFEST = "manifest.json"


class VersionManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest in the folder of a version."""

    format: Literal[1] = 1
    version: str
    """`executor-000001`, …; also the folder's name."""
    kind: Literal["adapter", "weights"]
    """Adapters are loaded in addition to the base model, weights instead of it."""
    base_model: str
    """Name of the base model in its engine, or in the training."""
    base_sha256: str
    """SHA-256 of the base model's `model.safetensors`, or of its index; empty if unknown."""
    rank: int | None = None
    """Rank of an adapter."""
    recipe: dict[str, Any]
    """All options of the training."""
    data: dict[str, Any]
    """Figures and digests of the data set and its sources."""
    evaluation: dict[str, Any] | None = None
    """Results of this and the previous executor; None if it was not evaluated."""
    git_revision: str = ""
    """Revision of the training code, in versions of earlier releases."""
    created_at: str
    """Time in ISO 8601, UTC."""
    files: dict[str, str]
    """SHA-256 of every other file, by its path in the folder."""


WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_NAME = re.compile(r"executor-(\d{6,})")


def verified(folder: Path) -> VersionManifest:
    """Check the files of a version, and return its manifest. Raises `BadVersion`."""
    path = folder / MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=VersionManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadVersion(f"{path}: {error}; publish the version again.") from None
    except OSError as error:
        raise BadVersion(
            f"{path}: {error.strerror}; name the folder of a published version."
        ) from None
    if manifest.version != folder.resolve().name:
        raise BadVersion(f"{path}: describes {manifest.version}; give the folder that name.")
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
                f"{folder / name}: is not what was published; copy the version again, or "
                "publish it again."
            )
    return manifest


def base_sha256(model: Path) -> str:
    """Return the SHA-256 of a model's weights, or of their index; empty if there are none."""
    return next(
        (_sha256_of(model / name) for name in WEIGHTS if (model / name).is_file()),
        "",
    )


def next_version(folder: Path, taken: Iterable[str] = ()) -> str:
    """Return the name after the last version in the folder and in `taken`."""
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
    """Publish the files in `content` as the next version, and return its folder.

    `taken`: names in use elsewhere, which are never used again. The manifest's `version` and
    `files` are set here. Raises `BadVersion` if it cannot be written. A version appears with an
    atomic rename; leftovers of a killed call are removed by the next one.
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
            f"{where}: {error.strerror}; no version was published. Fix that and publish again."
        ) from error
    return folder / version


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, so that no other process publishes there."""
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
    """Return the paths of all files in `folder`, sorted."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )


def _sha256_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise BadVersion(f"{path}: {error.strerror}; make it readable.") from None
