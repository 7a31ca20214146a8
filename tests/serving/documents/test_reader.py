"""Reading in a child process gives the same parts within limits, and the child ends with its
parent.
"""

import gzip
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyarrow import parquet

from router.errors import BadCorpus, BadDocument, DocumentTooLarge
from serving.documents.document import CorpusRow, Part, Title
from serving.documents.reader import DocumentReader, read_parts
from tests.serving.documents.conftest import FILES, pdf

READS = """
import sys
from pathlib import Path
from serving.documents.reader import DocumentReader
with DocumentReader() as reader:
    list(reader.read(Path(sys.argv[1])))
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file with more rows than one batch."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(f'{{"id": {number}, "text": "Row {number}."}}\n' for number in range(1000))
    )
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "b.txt").write_text("b")
    return tmp_path / "b.txt"


def test_the_child_gives_the_same_parts_as_this_process(
    tmp_path: Path, rows: Path, reader: DocumentReader
) -> None:
    """Files of every kind are read."""
    (tmp_path / "a.md").write_text("# Bees\n\n" + "## Honey\n\nThey make it.\n\n" * 500)
    parquet.write_table(pa.table({"id": ["a"], "text": ["first"]}), tmp_path / "rows.parquet")
    pdf(tmp_path / "long.pdf", *(f"Page {number}." for number in range(600)))
    written = [tmp_path / name for name in ("a.md", "rows.parquet", "long.pdf")]
    for path in (rows, *written, FILES / "lighthouse.pdf"):
        assert list(reader.read(path)) == list(read_parts(path)), path


def test_errors_are_passed_on(tmp_path: Path, text: Path, reader: DocumentReader) -> None:
    """An error is raised in the parent, and the next file is read."""
    (tmp_path / "a.jsonl").write_text("{}")
    with pytest.raises(BadCorpus, match=r"a\.jsonl:1: .*lacks the required field"):
        list(reader.read(tmp_path / "a.jsonl"))
    with pytest.raises(BadDocument, match=r"c\.txt: cannot be read \(No such file"):
        list(reader.read(tmp_path / "c.txt"))
    assert next(reader.read(text)) == Title("b")


def test_a_file_that_was_given_up_halfway_is_not_mixed_into_the_next(
    rows: Path, reader: DocumentReader
) -> None:
    """Parts of an abandoned file are not returned for the next file, or for the same file again."""
    for _ in range(2):
        first = next(reader.read(rows))
        assert isinstance(first, CorpusRow)
        assert first.passage.id == "0"


@pytest.mark.parametrize("name", ["pipe.txt", "pipe.jsonl", "pipe.pdf"])
def test_a_file_that_takes_too_long_is_given_up(
    tmp_path: Path, text: Path, name: str, reader: DocumentReader
) -> None:
    """Reading a pipe without end is stopped by the time limit."""
    os.mkfifo(tmp_path / name)
    with (
        DocumentReader(seconds=0.2) as hasty,
        pytest.raises(BadDocument, match=r"takes more than 0\.2 s to read; split it"),
    ):
        list(hasty.read(tmp_path / name))
    assert len(list(reader.read(text))) == 2


def test_a_file_that_takes_too_much_memory_is_given_up(
    tmp_path: Path, text: Path, reader: DocumentReader
) -> None:
    """Text that takes four bytes a character is refused, and the next file is read."""
    with (tmp_path / "wide.txt").open("wb") as file:
        file.writelines([b"\xf0\x9f\x90\x9d"] + [b"x" * (1 << 20)] * 255)
    with pytest.raises(
        DocumentTooLarge, match=r"wide\.txt: takes more than 1024 MiB of memory to read"
    ):
        list(reader.read(tmp_path / "wide.txt"))
    assert len(list(reader.read(text))) == 2


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz"])
def test_rows_that_unpack_without_end_are_given_up(
    tmp_path: Path, reader: DocumentReader, name: str
) -> None:
    """One megabyte that unpacks to hundreds is refused."""
    path = tmp_path / name
    text = "bomb " * 200_000
    count = 300
    if name.endswith(".gz"):
        with gzip.open(path, "wb", 1) as file:
            file.writelines(
                f'{{"id": {number}, "text": "{text}"}}\n'.encode() for number in range(count)
            )
    else:
        parquet.write_table(pa.table({"id": range(count), "text": [text] * count}), path)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(
        DocumentTooLarge, match=r"unpacks to more than \d+ million characters; split it"
    ):
        for _ in reader.read(path):
            pass


def test_tiny_rows_without_end_are_given_up(tmp_path: Path, reader: DocumentReader) -> None:
    """Each row is a passage, whose id the build keeps in memory, however short its text is."""
    number_of_rows = 400_000
    with gzip.open(tmp_path / "tiny.csv.gz", "wt") as file:
        file.write("a,b\n" * number_of_rows)
    parts: list[Part] = []
    with pytest.raises(DocumentTooLarge, match=r"unpacks to more than \d+ million characters"):
        parts.extend(reader.read(tmp_path / "tiny.csv.gz"))
    assert len(parts) < number_of_rows / 2


def test_the_child_has_no_secrets(
    rows: Path, reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys in the environment are not passed to it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    parts = reader.read(rows)
    next(parts)
    (process,) = (
        child
        for child in psutil.Process().children()
        if "serving.documents.reader" in child.cmdline()
    )
    assert "OPENAI_API_KEY" not in process.environ()
    parts.close()  # type: ignore[attr-defined]
    assert not process.is_running()


def test_the_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """It ends in the middle of a file."""
    os.mkfifo(tmp_path / "pipe.txt")
    with (
        subprocess.Popen(
            [sys.executable, "-c", READS, str(tmp_path / "pipe.txt")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as waiting,
        (tmp_path / "pipe.txt").open("wb") as pipe,
    ):  # once it is read
        waiting.send_signal(signal.SIGKILL)
        unread = select.poll()
        unread.register(pipe.fileno(), 0)
        assert unread.poll(30_000) == [(pipe.fileno(), select.POLLERR)]
