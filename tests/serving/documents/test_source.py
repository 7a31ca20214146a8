import os
from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.source import Source, find_sources


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with files of several kinds."""
    docs = tmp_path / "docs"
    for name in ("b.md", "a.PDF", "sub/README", "sub/z.txt", "sub/old.html.gz", ".hidden.txt", ".git/config.txt"):
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the text of {name}")
    return docs


def names(*places: Path) -> list[str]:
    return [source.name for source in find_sources(places).sources]


def test_a_folder_gives_its_files_by_name(docs: Path) -> None:
    """Names begin with the folder's own, and are sorted; what is hidden is left alone, and not counted either."""
    found = find_sources([docs])

    assert [source.name for source in found.sources] == [
        "docs/a.PDF",
        "docs/b.md",
        "docs/sub/README",
        "docs/sub/old.html.gz",
        "docs/sub/z.txt",
    ]
    assert found.passed_over == 0


def test_a_source_knows_its_file(docs: Path) -> None:
    """An absolute path, its size, and when it was changed."""
    file = docs / "b.md"
    status = file.stat()

    assert find_sources([docs]).sources[1] == Source("docs/b.md", str(file), status.st_size, status.st_mtime_ns)


def test_other_kinds_are_counted(docs: Path) -> None:
    """Pictures, packed PDFs and binaries without a suffix are passed over."""
    (docs / "picture.png").write_bytes(b"\x89PNG")
    (docs / "paper.pdf.gz").write_bytes(b"\x1f\x8b")
    (docs / "program").write_bytes(b"\x7fELF\0\0")
    (docs / "nowhere.txt").symlink_to(docs / "absent.txt")

    found = find_sources([docs])

    assert (len(found.sources), found.passed_over) == (5, 4)


def test_a_file_by_itself_is_read_whatever_its_suffix(docs: Path) -> None:
    """It goes by its own name."""
    (docs / "server.log").write_text("started")

    assert names(docs / "server.log") == ["server.log"]


def test_relative_places_are_named_like_absolute_ones(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.` has the name of the folder that it stands for."""
    monkeypatch.chdir(docs)

    assert names(Path()) == names(docs) == names(Path("sub/.."))


def test_links_that_lead_back_are_survived(docs: Path) -> None:
    """A folder is entered once, and a file is one source, however many links lead to them."""
    (docs / "sub" / "loop").symlink_to(docs)
    (docs / "sub" / "self").symlink_to("self")
    (docs / "zz.md").symlink_to(docs / "b.md")

    assert names(docs) == ["docs/a.PDF", "docs/b.md", "docs/sub/README", "docs/sub/old.html.gz", "docs/sub/z.txt"]


def test_links_are_followed(docs: Path, tmp_path: Path) -> None:
    """A linked folder is a part of the place that the link stands in."""
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "c.txt").write_text("c")
    (docs / "there").symlink_to(tmp_path / "linked")

    assert "docs/there/c.txt" in names(docs)


def test_places_that_overlap_give_each_file_once(docs: Path) -> None:
    """The first place that a file is found in names it."""
    assert len(names(docs, docs / "sub", docs / "b.md")) == 5


def test_two_files_of_one_name_are_refused(docs: Path, tmp_path: Path) -> None:
    """Both are named in the message."""
    other = tmp_path / "other" / "docs"
    other.mkdir(parents=True)
    (other / "b.md").write_text("another")

    with pytest.raises(BadDocument, match=r"both would be known as 'docs/b\.md'") as raised:
        find_sources([docs, other])

    assert str(docs / "b.md") in str(raised.value)
    assert str(other / "b.md") in str(raised.value)


def test_a_saved_data_set_is_one_source(docs: Path) -> None:
    """Its files are no documents of their own; it changes when one of them does."""
    saved = docs / "saved"
    saved.mkdir()
    (saved / "dataset_info.json").write_text("{}")
    (saved / "state.json").write_text("{}")
    (saved / "data.arrow").write_bytes(b"12345")
    os.utime(saved / "data.arrow", ns=(0, 2**62))

    (source,) = [source for source in find_sources([docs]).sources if "saved" in source.name]

    assert source == Source("docs/saved", str(saved), 9, 2**62)
    assert names(saved) == ["saved"]


def test_a_place_without_documents_is_refused(docs: Path, tmp_path: Path) -> None:
    """The message names the place, and the kinds that would be read."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "picture.png").write_bytes(b"")

    with pytest.raises(BadDocument, match=r"empty: nothing here that can be read; .*\.pdf"):
        find_sources([docs, tmp_path / "empty"])


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """The message names it."""
    with pytest.raises(BadDocument, match=r"absent: there is no such file or folder; correct"):
        find_sources([tmp_path / "absent"])


def test_a_pipe_is_no_document(tmp_path: Path) -> None:
    """Reading it would never end."""
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(BadDocument, match="nothing here"):
        find_sources([tmp_path / "pipe"])


def test_names_that_are_no_utf8_are_passed_over(docs: Path) -> None:
    """An index could not keep them."""
    Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe9.txt")).write_text("x")

    found = find_sources([docs])

    assert (len(found.sources), found.passed_over) == (5, 1)
