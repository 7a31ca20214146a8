from pathlib import Path

import pytest

from router.errors import BadCorpus
from router.passage import Passage
from serving.retrieval.corpus import read_corpus

GOOD = b'{"id": "a", "title": "A", "text": "first"}\n'


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    return path


def test_rows_become_passages_in_order(tmp_path: Path) -> None:
    """A title may be missing, blank lines are skipped, further fields are left alone."""
    path = written(tmp_path, GOOD + b'\n{"id": "b", "text": "second \xe2\x80\x93 row", "source": "x"}')

    assert list(read_corpus(path)) == [Passage("a", "A", "first"), Passage("b", "", "second \u2013 row")]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"{not json}", "not JSON"),
        (b'["a", "first"]', "expected `object`"),
        (b'{"title": "A", "text": "first"}', "missing required field `id`"),
        (b'{"id": "b", "title": "A"}', "missing required field `text`"),
        (b'{"id": 7, "text": "first"}', "expected `str`, got `int` - at `$.id`"),
        (b'{"id": "b", "text": ""}', "text is empty"),
        (b'{"id": "b", "text": " \\n"}', "text is empty"),
        (b'{"id": "", "text": "first"}', "id is empty"),
        (b'{"id": "a", "text": "again"}', "id 'a' is already in line 1"),
        (b'{"id": "b", "text": "caf\xe9"}', "not UTF-8 at byte 25"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path: Path, row: bytes, said: str) -> None:
    """The message names the file and the line, says what is wrong, and what to do after that."""
    path = written(tmp_path, GOOD + b"\n" + row + b"\n")

    with pytest.raises(BadCorpus) as raised:
        list(read_corpus(path))

    message = str(raised.value).lower()
    assert message.startswith(f"{path}:3: ".lower())
    assert said.lower() in message
    assert ";" in message


def test_a_corpus_without_rows_is_refused(tmp_path: Path) -> None:
    """An empty file is a mistake, not an empty corpus."""
    with pytest.raises(BadCorpus, match="no rows"):
        list(read_corpus(written(tmp_path, b"\n")))


def test_a_missing_corpus_is_refused(tmp_path: Path) -> None:
    """A path that cannot be read is named."""
    with pytest.raises(BadCorpus, match=r"absent\.jsonl: cannot be read \(No such file"):
        list(read_corpus(tmp_path / "absent.jsonl"))
