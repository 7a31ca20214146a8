import gzip
from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.text import decode, read_text
from serving.documents.title import kind_of

GERMAN = "Die Brücke über den Fluß wurde früher täglich geöffnet."
PLACE = Path("notes.txt")


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("utf-8", GERMAN),
        ("utf-8-sig", GERMAN),
        ("utf-16", GERMAN),
        ("utf-32", GERMAN),
        ("cp1252", GERMAN),
        ("cp1252", "Le café est à côté de l’église, près d’une forêt."),
        ("cp1252", "a naïve café"),
        ("cp1251", "Привет, как дела? Сегодня в Москве хорошая погода."),
        ("koi8-r", "Привет, как дела? Сегодня в Москве хорошая погода."),
        ("shift_jis", "これは日本語のテキストです。今日は天気がいいです。"),
        ("gb18030", "今天天气很好，我们去公园散步。"),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    ],
)
def test_every_usual_encoding_is_read(encoding: str, text: str) -> None:
    """Whether it is marked, or has to be guessed."""
    assert decode(text.encode(encoding), PLACE) == text


def test_lines_of_different_encodings_are_read_each_in_its_own() -> None:
    """A line that is UTF-8 is taken as such, and no line is lost."""
    lines = [GERMAN.encode(), GERMAN.encode("cp1252"), b"plain", "日本".encode()]

    assert decode(b"\n".join(lines), PLACE).split("\n") == [GERMAN, GERMAN, "plain", "日本"]


def test_bytes_that_fit_nowhere_cost_no_line() -> None:
    """They are replaced."""
    assert decode(b"one\n\x81\xff two\nthree", PLACE).split("\n")[::2] == ["one", "three"]


@pytest.mark.parametrize("content", [b"MZ\x90\0\x03", b"\x01\x02\x03\x04 abc" * 9, b"text first, then" * 9 + b"\0"])
def test_what_is_not_text_is_refused(content: bytes) -> None:
    """Zero bytes or many control characters: a binary with the name of a text."""
    with pytest.raises(BadDocument, match=r"notes\.txt: is not text"):
        decode(content, PLACE)


@pytest.mark.parametrize(("name", "title"), [("README", "lamp/README"), ("LGPL-2.1", "LGPL-2.1"), ("cp.1", "cp.1")])
def test_a_name_that_is_everywhere_takes_its_folders(tmp_path: Path, name: str, title: str) -> None:
    """A version or a manual's section is no suffix."""
    path = tmp_path / "lamp" / name
    path.parent.mkdir()
    path.write_text("It hums.")

    assert kind_of(path) == "text"
    assert read_text(path).title == title


def test_the_title_is_the_files_name(tmp_path: Path) -> None:
    """Without the suffixes that tell its kind; a packed text is unpacked."""
    path = tmp_path / "history.txt.gz"
    path.write_bytes(gzip.compress(GERMAN.encode()))

    document = read_text(path)

    assert document.title == "history"
    assert [block.text for block in document.blocks] == [GERMAN]
