import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from router.errors import BadCorpus
from router.protocol import Passage
from serving.documents.rows import read_rows

GOOD = b'{"id": "a", "title": "A", "text": "first"}\n'
COLUMNS = {"id": ["a", "b"], "title": ["A", None], "text": ["first", "second"], "score": [1, 2]}
ROWS = [Passage("a", "A", "first"), Passage("b", "", "second")]


def passages_of(path: Path) -> list[Passage]:
    """Return the rows without their metadata."""
    return [Passage(row.id, row.title, row.text) for _, row in read_rows(path)]


def written(tmp_path: Path, content: bytes, name: str = "corpus.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_rows_become_passages_in_order(tmp_path: Path) -> None:
    """Titles are optional, blank lines are skipped, unknown fields are ignored, and an id may be a
    number.
    """
    path = written(
        tmp_path,
        b"\xef\xbb\xbf"
        + GOOD
        + b'\n{"id": 7, "text": "second \xe2\x80\x93 row", "title": null, "source": {"x": 1}}',
    )

    assert passages_of(path) == [
        Passage("a", "A", "first"),
        Passage("7", "", "second \u2013 row"),
    ]


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        (
            r"\"Blue whale\"\nThe largest animal.\nIt sings.",
            "Blue whale",
            "The largest animal.\nIt sings.",
        ),
        (r"Blue whale\nThe largest animal.", "Blue whale", "The largest animal."),
        (r"The largest animal.", "", "The largest animal."),
        (r"The largest animal.\n ", "", "The largest animal.\n "),
    ],
)
def test_rows_of_flashrag_are_read(tmp_path: Path, contents: str, title: str, text: str) -> None:
    """The first line of `contents` is the title, if there is a second one."""
    path = written(tmp_path, f'{{"id": 0, "contents": "{contents}"}}\n'.encode())

    assert passages_of(path) == [Passage("0", title, text)]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (b"{not json}", "JSON is malformed"),
        (b'["a", "first"]', "a list, not an object"),
        (b"7", "must be an object"),
        (b'{"title": "A", "text": "first"}', "lacks the required field `id`"),
        (b'{"id": "b", "title": "A"}', "lacks the required field `text`"),
        (b'{"id": [7], "text": "first"}', "id: must be a whole number or text, got a list"),
        (b'{"id": "b", "text": ""}', "text is empty"),
        (b'{"id": "b", "text": " \\n"}', "text is empty"),
        (b'{"id": "b", "contents": "\\n"}', "text is empty"),
        (b'{"id": "", "text": "first"}', "id is empty"),
        (b'{"id": "b", "text": "caf\xe9"}', "is not UTF-8 at byte offset 24 (save it as UTF-8)"),
        (b'{"id": "b", "text": "' + b"x" * (16 << 20), "longer than 16 MiB"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path: Path, row: bytes, error: str) -> None:
    """The message names the file and line, and says what is wrong and what to do."""
    path = written(tmp_path, GOOD + b"\n" + row + b"\n")

    with pytest.raises(BadCorpus) as raised:
        passages_of(path)

    message = str(raised.value).lower()
    assert message.startswith(f"{path}:3: ".lower())
    assert error.lower() in message
    assert ";" in message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'\n[\n  {"id": "a", "text": "first"}\n]\n',
            r"rows\.json:2: is a list, not an object; write one",
        ),
        (b"\n", "no rows"),
        (None, r"rows\.json: cannot be read \(No such file"),
    ],
)
def test_a_file_without_lines_of_rows_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    """A list over several lines, an empty file and a missing file are refused."""
    if content is not None:
        written(tmp_path, content, "rows.json")
    with pytest.raises(BadCorpus, match=message):
        passages_of(tmp_path / "rows.json")


def test_every_container_has_the_same_columns(tmp_path: Path) -> None:
    """JSON lines and Parquet give the same rows; other columns are ignored."""
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(GOOD))
    parquet.write_table(pa.table(COLUMNS), tmp_path / "rows.parquet")
    assert passages_of(tmp_path / "rows.jsonl.gz") == ROWS[:1]
    assert passages_of(tmp_path / "rows.parquet") == ROWS


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["a", "b"], "text": ["first", None]}, ":2: lacks the required field `text`"),
        (
            {"question": ["a"], "answer": ["b"]},
            ": its columns are question, answer; rename two to id and text",
        ),
    ],
)
def test_a_bad_table_is_refused(
    tmp_path: Path, columns: dict[str, list[str]], message: str
) -> None:
    """Rows of Parquet are counted from 1, like lines."""
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    with pytest.raises(BadCorpus, match=f"rows.parquet{message}"):
        passages_of(tmp_path / "rows.parquet")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, suffix: str) -> None:
    """Reading 100 MB of rows takes less than half of that."""
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        with path.open("wb") as file:
            file.writelines(
                b'{"id": %d, "text": "%s"}\n' % (number, b"word " * 2000)
                for number in range(10_000)
            )
    else:
        with parquet.ParquetWriter(
            path, pa.schema({"id": pa.int64(), "text": pa.string()})
        ) as writer:
            for start in range(0, 10_000, 500):
                texts = [f"{number} " + "word " * 2000 for number in range(start, start + 500)]
                writer.write_table(pa.table({"id": range(start, start + 500), "text": texts}))
    program = (
        "import sys, resource; from pathlib import Path; from serving.documents.rows "
        "import read_rows\n"
        "import pyarrow.parquet; peak = lambda: "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); rows = sum(1 for _ in read_rows(Path(sys.argv[1]))); "
        "print(rows, peak() - before)"
    )
    root = Path(__file__).parents[3]
    process = subprocess.run(
        [sys.executable, "-c", program, path], cwd=root, capture_output=True, check=True, text=True
    )
    rows, kilobytes = map(int, process.stdout.split())

    assert rows == 10_000
    assert kilobytes < 50_000
