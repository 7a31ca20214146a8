"""Files become passages, and invalid files are refused."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.errors import BadConfig, BadCorpus, BadDocument
from router.trace.citation import cite
from serving.documents.cutter import Cutter, read_passages
from serving.documents.reader import read_parts
from serving.documents.source import SourceFile
from serving.retrieval.embedder import MiniLM
from tests.serving.documents.conftest import FILES, MAX_TOKENS, ROW_TOKENS, ReadAll

ROOT = Path(__file__).parents[3]
SUFFIXES = (
    "",
    ".txt",
    ".md",
    ".html",
    ".pdf",
    ".docx",
    ".jsonl",
    ".json",
    ".parquet",
    ".txt.gz",
    ".jsonl.gz",
)


def letters(texts: Sequence[str]) -> list[int]:
    return [-(-len(text) // 3) for text in texts]


def test_a_document_becomes_numbered_passages(tmp_path: Path, read_all: ReadAll) -> None:
    """Passages name their document and are numbered from 1, the same in every reading."""
    (tmp_path / "notes.md").write_text("# Bees\n\n" + "Honey bees live in colonies. " * 20)
    passages = read_all(tmp_path)
    name = f"{tmp_path.name}/notes.md"
    assert [passage.id for passage in passages] == [
        f"{name}#{number}" for number in range(1, len(passages) + 1)
    ]
    assert len(passages) > 2
    assert {(passage.title, passage.document, passage.page) for passage in passages} == {
        ("Bees", name, None)
    }
    assert read_all(tmp_path) == passages


def test_a_citation_names_document_page_and_sentence(read_all: ReadAll) -> None:
    """A report about the second page of a PDF is traced to that page."""
    ((citation,),) = cite(
        ["Jan Visser lived there until 1911."], read_all(FILES / "lighthouse.pdf")
    )
    assert (citation.document, citation.page, citation.title) == (
        "lighthouse.pdf",
        2,
        "The lighthouse",
    )
    assert citation.quote.split() == "The keeper, Jan Visser, lived there until 1911.".split()


def test_a_row_is_left_as_it_is_if_it_fits(
    tmp_path: Path, read_all: ReadAll, embedder: MiniLM
) -> None:
    """Rows have a separate limit; a longer row is cut into numbered passages that name the row."""
    fits = "Honey bees live in colonies. " * 16
    long = "Honey bees live in colonies. " * 40
    (tmp_path / "rows.jsonl").write_text(
        '{"id": "s", "title": "Bees", "text": "Bees  fly.\\n\\nThey do."}\n'
        f'{{"id": "m", "text": "{fits}"}}\n{{"id": 7, "text": "{long}"}}\n'
    )
    short, medium, *rest = read_all(tmp_path / "rows.jsonl")
    assert (short.title, short.text) == ("Bees", "Bees  fly.\n\nThey do.")
    assert (short.id, short.document) == ("s", "rows.jsonl#s")
    assert MAX_TOKENS < embedder.count_tokens([fits])[0] <= ROW_TOKENS
    assert medium.text == fits
    assert [passage.id for passage in rest] == [f"7#{number}" for number in range(1, len(rest) + 1)]
    assert {passage.document for passage in rest} == {"rows.jsonl#7"}
    assert max(embedder.count_tokens([passage.text for passage in rest])) <= MAX_TOKENS


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.md"])
def test_a_file_without_text_is_refused(tmp_path: Path, read_all: ReadAll, name: str) -> None:
    """Such a file is not counted as a document."""
    (tmp_path / name).write_text(" \n\n")
    with pytest.raises(BadDocument, match="contains no text; leave it out"):
        read_all(tmp_path / name)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, cutter: Cutter) -> None:
    """A missing, a too large (two gigabytes of zeros) and an unreadable file are refused."""
    with (tmp_path / "large.txt").open("wb") as file:
        file.truncate(2 << 30)
    (tmp_path / "mine.txt").write_text("text")
    (tmp_path / "mine.txt").chmod(0)
    cases = {
        "gone.txt": "cannot be read \\(No such file",
        "large.txt": "is larger than 256 MiB; split it",
        **(
            {"mine.txt": "cannot be read \\(Permission denied\\); make it readable"}
            if os.geteuid()
            else {}
        ),
    }
    for name, message in cases.items():
        with pytest.raises(BadDocument, match=f"{name}: {message}"):
            list(read_passages(SourceFile(name, str(tmp_path / name), 1, 0), cutter, read_parts))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_passages_or_a_rolegate_error(
    tmp_path: Path, suffix: str, content: bytes
) -> None:
    """Bytes are arbitrary, and so are suffixes."""
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    try:
        source = SourceFile("file", str(path), len(content), 0)
        passages = [
            passage for _, passage in read_passages(source, Cutter(16, 16, letters), read_parts)
        ]
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
        ("a.txt", "chardet", "documents"),
        ("a.parquet", "pyarrow.parquet", "datasets"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the command that installs the extra with it."""
    (tmp_path / name).write_bytes(
        ("Über den Fluß führte früher täglich eine Fähre. " * 2).encode("cp1252")
    )
    monkeypatch.setitem(sys.modules, package, None)
    message = (
        rf"needs the package {package.partition('.')[0].replace('docx', 'python-docx')}; "
        rf"run: .*{extra}"
    )
    with pytest.raises(BadConfig, match=message):
        list(read_parts(tmp_path / name))


def test_importing_loads_no_parser() -> None:
    """Each parser is loaded by the first file that needs it."""
    program = (
        "import sys, serving.documents.reader, serving.documents.source\n"
        "names = 'docx', 'lxml', 'pypdfium2', 'chardet', 'webencodings', 'markdown_it', "
        "'datasets', 'pyarrow'\n"
        "print([name for name in names if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert process.stdout == "[]\n"
