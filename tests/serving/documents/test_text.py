"""Texts are decoded in whatever encoding they have."""

import gzip
from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.document import kind_of
from serving.documents.text import decode, read_text

GERMAN = "Die Brücke über den Fluß wurde früher täglich geöffnet."
RUSSIAN = "Привет, как дела? Сегодня в Москве хорошая погода."
PLACE = Path("notes.txt")


@pytest.mark.parametrize(
    ("encodings", "text"),
    [
        ("utf-8 utf-8-sig utf-16 utf-32 cp1252", GERMAN),
        ("cp1252", "Le café est à côté de l’église, près d’une forêt."),
        ("cp1252", "a naïve café"),
        ("cp1251 koi8-r", RUSSIAN),
        ("shift_jis", "これは日本語のテキストです。今日は天気がいいです。"),
        ("gb18030", "今天天气很好，我们去公园散步。"),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy"),
    ],
)
def test_every_usual_encoding_is_read(encodings: str, text: str) -> None:
    """Marked, or guessed."""
    for encoding in encodings.split():
        assert decode(text.encode(encoding), PLACE) == text


def test_lines_of_different_encodings_are_read_each_in_its_own() -> None:
    """A line that is UTF-8 is taken as such, and no line is lost to bytes that fit nowhere."""
    lines = [GERMAN.encode(), GERMAN.encode("cp1252"), b"plain", "日本".encode()]
    assert decode(b"\n".join(lines), PLACE).split("\n") == [GERMAN, GERMAN, "plain", "日本"]
    assert decode(b"one\n\x81\xff two\nthree", PLACE).split("\n")[::2] == ["one", "three"]


@pytest.mark.parametrize("content", [b"MZ\x90\0\x03", b"\x01\x02\x03\x04 abc" * 9, b"text first, then" * 9 + b"\0"])
def test_a_binary_is_refused(content: bytes) -> None:
    """Zero bytes or many control characters: a binary with the name of a text."""
    with pytest.raises(BadDocument, match=r"notes\.txt: is not text"):
        decode(content, PLACE)


@pytest.mark.parametrize(
    ("name", "title"),
    [("README", "lamp/README"), ("LGPL-2.1", "LGPL-2.1"), ("cp.1", "cp.1"), ("history.txt.gz", "history")],
)
def test_the_title_is_the_files_name(tmp_path: Path, name: str, title: str) -> None:
    """Without the suffixes of its kind; a version is none. A name that is everywhere has its folder's before it."""
    path = tmp_path / "lamp" / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(GERMAN.encode()) if name.endswith(".gz") else GERMAN.encode())
    document = read_text(path)
    assert (kind_of(path), document.title, [block.text for block in document.blocks]) == ("text", title, [GERMAN])
