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
    """Pictures, packed PDFs, binaries without a suffix and pipes are passed over."""
    (docs / "picture.png").write_bytes(b"\x89PNG")
    (docs / "paper.pdf.gz").write_bytes(b"\x1f\x8b")
    (docs / "program").write_bytes(b"\x7fELF\0\0")
    os.mkfifo(docs / "pipe")
    os.mkfifo(docs / "pipe.txt")

    found = find_sources([docs])

    assert (len(found.sources), found.passed_over) == (5, 5)


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
    assert find_sources([docs]).links == (
        f"{docs}/sub/loop: a link that leads back to a folder that it is in; remove it.",
        f"{docs}/sub/self: a link that leads nowhere; mend it, or remove it.",
    )


def test_links_are_followed_as_long_as_they_stay(docs: Path, tmp_path: Path) -> None:
    """To what is hidden as well, as in folders that Kubernetes mounts; a place may be a link itself."""
    (docs / ".data").mkdir()
    (docs / ".data" / "c.txt").write_text("c")
    (docs / "..now").symlink_to(".data")
    (docs / "there").symlink_to("..now")
    (docs / "c.md").symlink_to("there/c.txt")
    (tmp_path / "link").symlink_to(docs)

    assert {"docs/c.md"} == {name for name in names(docs) if "c." in name}
    assert find_sources([docs]).links == ()
    assert names(tmp_path / "link") == [name.replace("docs", "link") for name in names(docs)]


def test_links_that_lead_away_are_not_followed(docs: Path, tmp_path: Path) -> None:
    """To a file or a folder, directly or by another link, by absolute and relative paths, and in saved data sets."""
    outside = tmp_path / "docs-private"
    outside.mkdir()
    (outside / "key.txt").write_text("key")
    (docs / "a.txt").symlink_to(outside / "key.txt")
    (docs / "b.txt").symlink_to("../docs-private/key.txt")
    (docs / "c.txt").symlink_to(".hop/key.txt")
    (docs / ".hop").symlink_to(outside)
    (docs / "sub" / "folder").symlink_to(outside)
    (docs / "saved").mkdir()
    (docs / "saved" / "dataset_info.json").write_text("{}")
    (docs / "saved" / "state.json").write_text("{}")
    (docs / "saved" / "data.arrow").symlink_to(outside / "key.txt")

    found = find_sources([docs])

    away = f"a link that leads out of {docs}; put there what it leads to, or name that as well."
    assert found.links == tuple(f"{docs}/{name}: {away}" for name in ("a.txt", "b.txt", "c.txt", "saved", "sub/folder"))
    assert len(found.sources) == 5
    with pytest.raises(BadDocument, match=rf"nothing here that can be read; .*\. {outside}/more: a link that"):
        (outside / "key.txt").unlink()
        (outside / "more").symlink_to(docs)
        find_sources([outside])


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


def test_names_that_are_no_utf8_are_shown_escaped(docs: Path) -> None:
    """The path is kept as it is."""
    path = Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe9.txt"))
    path.write_text("x")

    found = {source.name: source.path for source in find_sources([docs]).sources}

    assert found["docs/caf\\xe9.txt"] == str(path)
    with pytest.raises(BadDocument, match=r"^\S*/caf\\xe8: there is no such file"):
        find_sources([Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe8"))])
