"""Files are found below folders, each once; links are followed only within their place."""

import os
from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.source import SourceFile, find_sources

ALL = ["docs/a.PDF", "docs/b.md", "docs/sub/README", "docs/sub/old.html.gz", "docs/sub/z.txt"]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with files of several kinds."""
    docs = tmp_path / "docs"
    for name in (
        "b.md",
        "a.PDF",
        "sub/README",
        "sub/z.txt",
        "sub/old.html.gz",
        ".hidden.txt",
        ".git/config.txt",
    ):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        (docs / name).write_text(f"the text of {name}")
    return docs


def names(*places: Path) -> list[str]:
    return [source.name for source in find_sources(places).sources]


def test_a_folder_gives_its_files_by_name(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names begin with the folder's name and are sorted; hidden files are ignored."""
    assert names(docs) == names(docs, docs / "sub", docs / "b.md") == ALL
    assert find_sources([docs]).passed_over == ()
    status = (docs / "b.md").stat()
    assert find_sources([docs]).sources[1] == SourceFile(
        "docs/b.md", f"{docs}/b.md", status.st_size, status.st_mtime_ns
    )
    monkeypatch.chdir(docs)
    assert names(Path()) == names(Path("sub/..")) == ALL


def test_other_kinds_are_passed_over(docs: Path) -> None:
    """Pictures, packed PDFs, binaries without a suffix and pipes are not read, except as places
    themselves.
    """
    (docs / "picture.gif").write_bytes(b"\x89PNG")
    (docs / "paper.pdf.gz").write_bytes(b"\x1f\x8b")
    (docs / "program").write_bytes(b"\x7fELF\0\0")
    os.mkfifo(docs / "pipe")
    os.mkfifo(docs / "pipe.txt")
    sources = find_sources([docs])
    assert [source.name for source in sources.sources] == ALL
    others = ("paper.pdf.gz", "picture.gif", "pipe", "pipe.txt", "program")
    assert sorted(sources.passed_over) == [f"{docs}/{name}" for name in others]
    (docs / "server.log").write_text("started")
    assert names(docs / "server.log") == ["server.log"]


def test_links_to_files_below_their_place_are_followed(docs: Path, tmp_path: Path) -> None:
    """Links to hidden files are followed, as Kubernetes mounts them, and a place may be a link."""
    (docs / ".data").mkdir()
    (docs / ".data" / "c.txt").write_text("c")
    (docs / "..now").symlink_to(".data")
    (docs / "c.md").symlink_to("..now/c.txt")
    (tmp_path / "link").symlink_to(docs)
    assert names(docs) == sorted([*ALL, "docs/c.md"])
    (docs / "zz.md").symlink_to(docs / "b.md")
    assert len(names(docs)) == len(ALL) + 1
    assert find_sources([docs]).links == ()
    assert names(tmp_path / "link") == [name.replace("docs", "link") for name in names(docs)]


def test_other_links_are_not_followed(docs: Path, tmp_path: Path) -> None:
    """Links to files elsewhere, direct or indirect, and to folders are reported."""
    outside = tmp_path / "docs-private"
    outside.mkdir()
    (outside / "key.txt").write_text("key")
    (docs / ".hop").symlink_to(outside)
    for name, target in (
        ("a.txt", outside / "key.txt"),
        ("b.txt", "../docs-private/key.txt"),
        ("c.txt", ".hop/key.txt"),
        ("sub/folder", outside),
        ("sub/loop", docs),
        ("sub/self", "self"),
    ):
        (docs / name).symlink_to(target)
    sources = find_sources([docs])
    assert [source.name for source in sources.sources] == ALL
    left = [link.partition(":")[0].removeprefix(f"{docs}/") for link in sources.links]
    assert left == ["a.txt", "b.txt", "c.txt", "sub/folder", "sub/loop", "sub/self"]
    with pytest.raises(
        BadDocument,
        match=rf"contains no file of a supported kind: .*\. {outside}/more: a link to outside",
    ):
        (outside / "key.txt").unlink()
        (outside / "more").symlink_to(docs)
        find_sources([outside])


def test_two_files_of_one_name_are_refused(docs: Path, tmp_path: Path) -> None:
    """The message names both files."""
    other = tmp_path / "other" / "docs"
    other.mkdir(parents=True)
    (other / "b.md").write_text("another")
    with pytest.raises(
        BadDocument,
        match=rf"^{other}/b\.md and {docs}/b\.md: both would be called 'docs/b\.md'",
    ):
        find_sources([docs, other])


def test_a_place_without_documents_is_refused(docs: Path, tmp_path: Path) -> None:
    """The message names the place and the readable kinds; a pipe is no document."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "picture.gif").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    for place, message in (
        ("empty", r"empty: contains no file of a supported kind: .*\.pdf"),
        ("pipe", "no file of a supported kind"),
        ("absent", "absent: this file or folder does not exist; correct"),
    ):
        with pytest.raises(BadDocument, match=message):
            find_sources([docs, tmp_path / place])


def test_names_that_are_no_utf8_are_shown_escaped(docs: Path) -> None:
    """The name is escaped, and the path is unchanged."""
    path = Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe9.txt"))
    path.write_text("x")
    assert {source.name: source.path for source in find_sources([docs]).sources}[
        "docs/caf\\xe9.txt"
    ] == str(path)
    with pytest.raises(BadDocument, match=r"^\S*/caf\\xe8: this file or folder does not"):
        find_sources([Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe8"))])
