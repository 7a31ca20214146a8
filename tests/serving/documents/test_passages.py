import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import BadCorpus, BadDocument
from router.protocol.evidence import Passage
from router.trace.citation import cite
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reading import read_parts
from serving.documents.source import Source
from serving.retrieval.embedder import MiniLM
from tests.serving.documents.conftest import MAX_TOKENS, ROW_TOKENS, ReadAll

FILES = Path(__file__).parent / "files"
ROOT = Path(__file__).parents[3]
SUFFIXES = ("", ".txt", ".md", ".html", ".pdf", ".docx", ".jsonl", ".json", ".parquet", ".txt.gz", ".jsonl.gz")


def letters(texts: Sequence[str]) -> list[int]:
    return [-(-len(text) // 3) for text in texts]


def test_a_document_becomes_numbered_passages(tmp_path: Path, read_all: ReadAll) -> None:
    """They know their document, and are numbered from 1."""
    (tmp_path / "notes.md").write_text("# Bees\n\n" + "Honey bees live in colonies. " * 20)

    passages = read_all(tmp_path)

    assert [passage.id for passage in passages] == [
        f"{tmp_path.name}/notes.md#{n}" for n in range(1, len(passages) + 1)
    ]
    assert len(passages) > 2
    assert {(passage.title, passage.document, passage.page) for passage in passages} == {
        ("Bees", f"{tmp_path.name}/notes.md", None)
    }


def test_a_citation_names_document_page_and_sentence(read_all: ReadAll) -> None:
    """What a report says about the second page of a PDF is traced to it."""
    ((citation,),) = cite(["Jan Visser lived there until 1911."], read_all(FILES / "lighthouse.pdf"))

    assert (citation.document, citation.page, citation.title) == ("lighthouse.pdf", 2, "The lighthouse")
    assert citation.quote.split() == "The keeper, Jan Visser, lived there until 1911.".split()


def test_a_row_is_left_as_it_is_if_it_fits(tmp_path: Path, read_all: ReadAll, embedder: MiniLM) -> None:
    """A longer one is cut, and its passages are numbered; both know the row that they are of."""
    short, long = "Bees  fly.\n\nThey do.", "Honey bees live in colonies. " * 40
    (tmp_path / "rows.jsonl").write_text(
        f'{{"id": "s", "title": "Bees", "text": "Bees  fly.\\n\\nThey do."}}\n{{"id": 7, "text": "{long}"}}\n'
    )

    first, *rest = read_all(tmp_path / "rows.jsonl")

    assert first == Passage("s", "Bees", short, document="rows.jsonl#s")
    assert [passage.id for passage in rest] == [f"7#{number}" for number in range(1, len(rest) + 1)]
    assert {passage.document for passage in rest} == {"rows.jsonl#7"}
    assert max(embedder.count_tokens([passage.text for passage in rest])) <= MAX_TOKENS


def test_a_row_may_be_longer_than_a_passage(tmp_path: Path, read_all: ReadAll, embedder: MiniLM) -> None:
    """Rows have a limit of their own."""
    text = "Honey bees live in colonies. " * 16
    (tmp_path / "rows.jsonl").write_text(f'{{"id": "a", "text": "{text}"}}\n')

    assert MAX_TOKENS < embedder.count_tokens([text])[0] <= ROW_TOKENS
    assert [passage.text for passage in read_all(tmp_path / "rows.jsonl")] == [text]


def test_the_same_files_give_the_same_passages(tmp_path: Path, read_all: ReadAll) -> None:
    """In the same order."""
    for name in ("b.txt", "a.html", "c/d.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n\n" + f"The text of {name} is here. " * 30)

    assert read_all(tmp_path) == read_all(tmp_path)


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md"])
def test_a_file_without_text_is_refused(tmp_path: Path, read_all: ReadAll, name: str) -> None:
    """Rather than counted as a document that nothing will ever be found in."""
    (tmp_path / name).write_text(" \n\n")

    with pytest.raises(BadDocument, match="holds no text; leave it out"):
        read_all(tmp_path / name)


def test_a_large_file_is_refused_unread(tmp_path: Path, read_all: ReadAll) -> None:
    """Two gigabytes of nothing, which take no room on the disk."""
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2 << 30)

    with pytest.raises(BadDocument, match=r"large\.txt: larger than 256 MB; split it"):
        read_all(tmp_path / "large.txt")


def test_a_file_that_has_vanished_is_refused(tmp_path: Path, cutter: Cutter) -> None:
    """Between being found and being read."""
    path = str(tmp_path / "gone.txt")

    with pytest.raises(BadDocument, match=r"gone\.txt: cannot be read \(No such file"):
        list(read_passages(Source("gone.txt", path, 1, 0), cutter, read_parts))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path, read_all: ReadAll) -> None:
    """With the reason that the system gives."""
    (tmp_path / "mine.txt").write_text("text")
    (tmp_path / "mine.txt").chmod(0)

    with pytest.raises(BadDocument, match=r"mine\.txt: cannot be read \(Permission denied\); make it readable"):
        read_all(tmp_path / "mine.txt")


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_passages_or_an_error_of_ours(tmp_path: Path, suffix: str, content: bytes) -> None:
    """Whatever a file of whatever kind holds."""
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)

    try:
        source = Source("file", str(path), len(content), 0)
        passages = [passage for _, passage in read_passages(source, Cutter(16, 16, letters), read_parts)]
    except (BadDocument, BadCorpus) as error:
        assert str(path) in str(error)
    else:
        assert all(passage.text.strip() and passage.text.encode() for passage in passages)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("a.pdf", "pypdfium2", "documents"),
        ("a.docx", "docx", "documents"),
        ("a.html", "lxml", "documents"),
        ("a.md", "markdown_it", "documents"),
        ("a.txt", "charset_normalizer", "documents"),
        ("a.parquet", "pyarrow", "datasets"),
    ],
)
def test_a_missing_package_is_named(tmp_path: Path, name: str, package: str, extra: str) -> None:
    """With the extra that brings it."""
    (tmp_path / name).write_bytes(("Über den Fluß führte früher täglich eine Fähre. " * 2).encode("cp1252"))
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from pathlib import Path; from router.errors import BadConfig\n"
        "from serving.documents.passages import Cutter, read_passages; from serving.documents.source import Source\n"
        "from serving.documents.reading import read_parts\n"
        "source = Source('a', sys.argv[1], 1, 0)\n"
        "try: list(read_passages(source, Cutter(9, 9, lambda texts: [1] * len(texts)), read_parts))\n"
        "except BadConfig as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / name], cwd=ROOT, capture_output=True, check=True, text=True
    )

    assert f"needs the package {package}" in done.stdout
    assert f"install the extra rolegate[{extra}]" in done.stdout


def test_importing_loads_no_parser() -> None:
    """Each is loaded by the first file that needs it."""
    program = (
        "import sys, serving.documents.reader, serving.documents.source\n"
        "names = 'docx', 'lxml', 'pypdfium2', 'charset_normalizer', 'markdown_it', 'datasets', 'pyarrow'\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)

    assert done.stdout == "[]\n"
