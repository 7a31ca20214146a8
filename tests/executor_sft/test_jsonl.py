"""A growing file of lines survives kills and full disks."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor_sft.jsonl import JsonlFile
from router.errors import BadConfig, StoreFailed


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    """A partial line after a kill is removed, and the next line takes its place."""
    path = tmp_path / "lines"
    path.write_bytes(b'{"a":1}\n{"b":')
    file = JsonlFile(path, dict[str, int], "look at it")
    file.append({"c": 3})
    assert list(file) == [{"a": 1}, {"c": 3}]
    file.close()
    assert path.read_bytes() == b'{"a":1}\n{"c":3}\n'


def test_a_full_disk_leaves_no_partial_line(tmp_path: Path) -> None:
    """A line that does not fit leaves nothing behind, and the next line that fits is whole."""
    file = JsonlFile(tmp_path / "lines", str, "look at it")
    file.append("one")
    with room_for(8), pytest.raises(StoreFailed, match="free some disk space"):
        file.append("a long line")
    file.append("two")
    assert list(file) == ["one", "two"]
    file.close()


def test_a_folder_is_used_by_one_command_at_a_time(tmp_path: Path) -> None:
    """Two commands would pay for the same calls twice."""

    def opened() -> JsonlFile[str]:
        return JsonlFile(tmp_path / "lines", str, "look at it")

    file = opened()
    with pytest.raises(BadConfig, match="another command uses this file"):
        opened()
    file.close()
    opened().close()
