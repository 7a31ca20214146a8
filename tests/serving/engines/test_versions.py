"""Versions are published completely or not at all, and changed ones are refused."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from router.errors import BadVersion
from serving.engines.versions import (
    VersionManifest,
    base_sha256,
    next_version,
    verified,
    write_version,
)

MANIFEST = VersionManifest(
    version="",
    kind="adapter",
    base_model="mini-executor",
    base_sha256="",
    rank=32,
    recipe={"epochs": 3},
    data={"rows": 12},
    git_revision="",
    created_at="2026-01-01T00:00:00+00:00",
    files={},
)
NO_ROOM = """
import resource
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0}))
"""
PUBLISH = """
import sys
from pathlib import Path
import msgspec
from serving.engines.versions import VersionManifest, write_version
manifest = msgspec.json.decode(sys.argv[3], type=VersionManifest)
write_version(Path(sys.argv[1]), Path(sys.argv[2]), manifest)
"""


@pytest.fixture
def content(tmp_path: Path) -> Path:
    """The output of a training."""
    folder = tmp_path / "model"
    (folder / "more").mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 64)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "more" / "notes.txt").write_text("notes")
    return folder


@pytest.fixture
def version(tmp_path: Path, content: Path) -> Path:
    """A published version."""
    return write_version(tmp_path / "versions", content, MANIFEST)


def test_a_published_version_is_verified(version: Path) -> None:
    """The manifest lists every file of the training with its digest."""
    manifest = verified(version)
    assert (manifest.version, version.name) == ("executor-000001", "executor-000001")
    assert manifest.files.keys() == {
        "adapter_model.safetensors",
        "adapter_config.json",
        "more/notes.txt",
    }
    assert manifest.data == {"rows": 12}


def test_names_go_up(tmp_path: Path, content: Path, version: Path) -> None:
    """The next name follows the highest one, and ignores other files."""
    (version.parent / "executor-000041").mkdir()
    (version.parent / "executor-new").mkdir()
    assert write_version(version.parent, content, MANIFEST).name == "executor-000042"
    assert next_version(tmp_path / "nothing") == "executor-000001"
    assert next_version(tmp_path / "nothing", ["executor-000007", "other"]) == "executor-000008"
    assert next_version(version.parent, ["executor-000050"]) == "executor-000051"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda folder: (folder / "adapter_config.json").write_text("[]"),
            "adapter_config.json: has changed since",
        ),
        (lambda folder: (folder / "more" / "notes.txt").unlink(), "more/notes.txt: is missing"),
        (
            lambda folder: (folder / "more" / "new.py").write_text("1"),
            "more/new.py: is not in the manifest",
        ),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json: No such file"),
        (
            lambda folder: (folder / "manifest.json").write_text('{"format": 2}'),
            "manifest.json: .*format",
        ),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), "manifest.json: "),
    ],
)
def test_a_changed_version_is_refused(
    version: Path, change: Callable[[Path], object], message: str
) -> None:
    """The error names the changed, added or missing file."""
    change(version)
    with pytest.raises(BadVersion, match=message):
        verified(version)


def test_a_renamed_version_is_refused(version: Path) -> None:
    """The folder must have the name of its version."""
    with pytest.raises(BadVersion, match="is the manifest of version executor-000001"):
        verified(version.rename(version.with_name("executor-000007")))


@pytest.mark.parametrize("limit", [1_000, 10_000])
def test_a_full_disk_leaves_no_version(tmp_path: Path, content: Path, limit: int) -> None:
    """The error may come with any file or the manifest; the next publication succeeds."""
    if limit == 1_000:  # every file of the version fits, and the manifest does not
        (content / "adapter_model.safetensors").write_bytes(b"")
    manifest = msgspec.structs.replace(MANIFEST, recipe={"long": "x" * 2_000})

    program = NO_ROOM.format(limit) + PUBLISH

    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            tmp_path / "versions",
            content,
            msgspec.json.encode(manifest),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": ".:protos", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert "BadVersion" in ran.stderr and "no version was published" in ran.stderr
    assert list((tmp_path / "versions").iterdir()) == []
    assert (
        verified(write_version(tmp_path / "versions", content, manifest)).version
        == "executor-000001"
    )


def test_leftovers_of_a_kill_are_removed(version: Path, content: Path) -> None:
    """An unfinished folder is no version, and the next publication removes it."""
    left = version.with_name(".executor-000002")
    shutil.copytree(version, left)
    with pytest.raises(BadVersion):
        verified(left)
    assert write_version(version.parent, content, MANIFEST).name == "executor-000002"
    assert sorted(path.name for path in version.parent.iterdir()) == [
        "executor-000001",
        "executor-000002",
    ]


def test_the_base_is_known_by_its_weights(tmp_path: Path) -> None:
    """The digest is of one file, or of the index of several; other models have none."""
    assert base_sha256(tmp_path) == ""
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    index = base_sha256(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert index and base_sha256(tmp_path) not in ("", index)
