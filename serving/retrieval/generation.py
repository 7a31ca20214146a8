"""The generations of an index: folders of which the manifest names the one that counts."""

import fcntl
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from router.errors import BadIndex
from serving.files import flush
from serving.retrieval.embedder import Embedder
from serving.retrieval.manifest import FORMAT, MANIFEST, Manifest, describe_files, has_manifest, write_manifest
from serving.retrieval.passages import PASSAGES, PassageStore

_BUILDING = ".building-"
_DIGITS = 6


def publish(
    out: Path,
    folder: Path,
    embedder: Embedder,
    *,
    chunk_tokens: int,
    lexical: bool = False,
    metric: str = "inner_product",
) -> Manifest:
    """Make `folder`, whose files are whole, the generation of the index `out` that counts."""
    files = describe_files(folder)
    generation = f"{max((int(path.name) for path in generations(out)), default=0) + 1:0{_DIGITS}}"
    manifest = Manifest(
        format=FORMAT,
        generation=generation,
        embedder=embedder.identity,
        dimension=embedder.dimension,
        metric="l2" if metric == "l2" else "inner_product",
        passages=len(PassageStore(folder)),
        chunk_tokens=chunk_tokens,
        corpus_sha256=files[PASSAGES].sha256,
        lexical=lexical,
        files=files,
    )
    folder.rename(out / generation)
    flush(out)
    write_manifest(out, manifest)
    return manifest


def unfinished_name() -> str:
    """A new name for a folder that is being filled."""
    return f"{_BUILDING}{secrets.token_hex(4)}"


def unfinished(out: Path) -> list[Path]:
    """The folders that are being filled, or were when their build was killed."""
    return [path for path in out.iterdir() if path.name.startswith(_BUILDING)]


def generations(out: Path) -> list[Path]:
    """The finished folders."""
    return [path for path in out.iterdir() if path.name.isdecimal() and len(path.name) >= _DIGITS and path.is_dir()]


def check_place(out: Path) -> None:
    """See that nothing but an index is in the folder `out`. Raises `BadIndex`."""
    if out.exists() and not out.is_dir():
        raise BadIndex(f"{out}: is a file; name a folder for the index.")
    if out.is_dir() and not has_manifest(out):
        ours = {path.name for path in generations(out) if (path / PASSAGES).is_file()}
        known = ours | {MANIFEST} if ours else ours
        foreign = [path.name for path in out.iterdir() if not path.name.startswith(".") and path.name not in known]
        if foreign:
            raise BadIndex(f"{out}: already exists and is no index ({foreign[0]}); name another folder.")


_LOCK = ".lock"
_LOOKS_EVERY_S = 0.2


@contextmanager
def build_lock(folder: Path, *, wait: bool, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock while open; it is freed too when the process dies. Raises `BadIndex` where another build runs and
    `wait` is false; else it calls `waiting` again and again, and raises what that raises.
    """
    with (folder / _LOCK).open("wb") as file:
        while not _locked(file):
            if not wait:
                raise BadIndex(f"{folder}: another build is under way there; wait for it, or end it.")
            waiting()
            time.sleep(_LOOKS_EVERY_S)
        yield


def _locked(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
