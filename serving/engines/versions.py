"""The folder of published versions, one folder each: whole and as its manifest says, or refused."""

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
    """The manifest of a version's folder."""

    format: Literal[1] = 1
    version: str
    """`executor-000001`, …; also the folder's name."""
    kind: Literal["adapter", "weights"]
    """Loaded beside its base model, or in its place."""
    base_model: str
    """The name under which the base model is served, or was trained from."""
    base_sha256: str
    """Of the base model's `model.safetensors`, or of its index; empty where it was not at hand
    as a folder.
    """
    rank: int | None = None
    """Of an adapter."""
    recipe: dict[str, Any]
    """All options of the training."""
    data: dict[str, Any]
    """Figures and digests of the data set, and of its sources."""
    evaluation: dict[str, Any] | None = None
    """Its results beside those of the executor before it; None where it was not evaluated."""
    git_revision: str
    """Of the code that trained it; empty where that is not known."""
    created_at: str
    """ISO 8601, UTC."""
    files: dict[str, str]
    """SHA-256 of every other file, by its path in the folder."""


WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_NAME = re.compile(r"executor-(\d{6,})")


def verified(folder: Path) -> VersionManifest:
    """The manifest of a version whose files are what was published. Raises `BadVersion` naming
    what is not so.
    """
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
        raise BadVersion(f"{path}: is of {manifest.version}; give the folder that name.")
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
    """SHA-256 of the weights in a model's folder, or of their index; empty where there is
    neither.
    """
    return next((_sha256_of(model / name) for name in WEIGHTS if (model / name).is_file()), "")


def next_version(folder: Path, taken: Iterable[str] = ()) -> str:
    """The name after the last one in the folder of versions, and after those that are `taken`
    elsewhere.
    """
    names = [*taken, *(path.name for path in folder.iterdir())] if folder.is_dir() else taken
    matches = filter(None, map(_NAME.fullmatch, names))
    latest = max((int(match[1]) for match in matches), default=0)
    return f"executor-{latest + 1:06d}"


def write_version(
    folder: Path, content: Path, manifest: VersionManifest, taken: Iterable[str] = ()
) -> Path:
    """Publish the files in `content` in the folder of versions, as the next one; the new version's
    folder.

    `taken`: names that stand elsewhere, as a version keeps its name for good. The manifest's
    `version` and `files` are filled in here. Raises `BadVersion` where it cannot be written; what a
    kill leaves half-written is never taken for a version, and is removed here the next time.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            for left in folder.glob(".executor-*"):
                shutil.rmtree(left)
            version = next_version(folder, taken)
            unfinished = folder / f".{version}"
            try:
                _write(unfinished, content, msgspec.structs.replace(manifest, version=version))
                unfinished.rename(folder / version)
                flush(folder)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        where = error.filename or folder
        raise BadVersion(
            f"{where}: {error.strerror}; no version was published. Mend that and publish again."
        ) from error
    return folder / version


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else publishes there meanwhile."""
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
    """Every file's path in `folder`, in order."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()
    )


def _sha256_of(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise BadVersion(f"{path}: {error.strerror}; make it readable.") from None
