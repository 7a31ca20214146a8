"""Texts are decoded from all usual encodings."""

import gzip
from pathlib import Path

import pytest

from router.errors import BadDocument
from serving.documents.document import kind_of
from serving.documents.text import decode, read_text, web_encoding

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
    """The encoding is known from a byte order mark, or guessed."""
    for encoding in encodings.split():
        assert decode(text.encode(encoding), PLACE) == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp932", "①㈱髙島屋の売上は2023年度に1,234億円でした。"),
        ("cp932", "㈱髙島屋"),
        ("cp932", "株式会社"),
        ("cp932", "ｶﾀｶﾅ半角 テスト①"),
        ("euc_jp", "これは日本語のテキストです。今日は天気がいいです。"),
        ("euc_jis_2004", "①㈱の東京都千代田区丸の内一丁目"),
        ("gb18030", "中国人民解放军成立于1927年8月1日。"),
        ("gb18030", "人口：2,189万人（2020年）"),
        ("gb18030", "标题\n联通\n北京大学的人口"),
        ("big5", "今天天氣很好，我們去公園散步。"),
        ("big5", "公司名稱：台積電"),
        ("cp949", "대한민국의 수도는 서울이다."),
        ("cp949", "인구 9,411,260명"),
        ("koi8-r", "Население города составляет 12 млн человек."),
        ("koi8-r", "Москва"),
        ("cp1251", "Год основания: 1147"),
        ("cp866", "Москва"),
        ("iso8859-5", "Население города составляет 12 млн человек."),
        ("cp1255", "ירושלים היא בירת ישראל והעיר הגדולה בה."),
        ("cp1254", "Türkiye'nin başkenti Ankara'dır; güneş doğdu."),
        ("cp1250", "Zażółć gęślą jaźń. Łódź jest miastem w Polsce."),
        ("cp1252", "résumé — “naïve” façade, 25 €"),
        ("cp1252", "señor niño años más allá está aquí también"),
        ("utf_16_le", "Привет, как дела\n"),
        ("utf_16_be", "plain text\n"),
        ("utf_16_le", "㈱髙島屋　①売上高\n"),
        ("iso2022_jp", "日本語のテキスト"),
        ("iso2022_kr", "오늘은 날씨가 좋습니다."),
    ],
)
def test_an_encoding_that_nothing_names_is_recognised(encoding: str, text: str) -> None:
    """A sentence or a few words are enough, also for UTF-16 without a mark."""
    assert decode(text.encode(encoding), PLACE) == text


@pytest.mark.parametrize(
    ("label", "encoding"),
    [
        ("gb2312", "gb18030"),
        ("GBK", "gb18030"),
        ("shift_jis", "cp932"),
        ("x-sjis", "cp932"),
        ("iso-8859-1", "cp1252"),
        ("latin1", "cp1252"),
        ("latin-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("iso-8859-9", "cp1254"),
        ("ks_c_5601-1987", "cp949"),
        ("euc-kr", "cp949"),
        ("big5", "big5hkscs"),
        ("utf8", "utf-8"),
        ("unicode-1-1-utf-8", "utf-8"),
        ("utf-16", "utf-8"),
        ("hz-gb-2312", None),
        ("replacement", None),
        ("no-such", None),
    ],
)
def test_a_label_means_what_it_means_on_the_web(label: str, encoding: str | None) -> None:
    """A superset is used if there is one; content read as ASCII so far is no UTF-16."""
    assert web_encoding(label) == encoding


def test_lines_of_different_encodings_are_read_each_in_its_own() -> None:
    """Lines in UTF-8 are decoded as such, and undefined bytes lose no line."""
    lines = [GERMAN.encode(), GERMAN.encode("cp1252"), b"plain", "日本".encode()]
    assert decode(b"\n".join(lines), PLACE).split("\n") == [GERMAN, GERMAN, "plain", "日本"]
    assert decode(b"one\n\x81\xff two\nthree", PLACE).split("\n")[::2] == ["one", "three"]


@pytest.mark.parametrize(
    "content", [b"MZ\x90\0\x03", b"\x01\x02\x03\x04 abc" * 9, b"text first, then" * 9 + b"\0"]
)
def test_a_binary_is_refused(content: bytes) -> None:
    """Zero bytes or many control characters mark a binary file."""
    with pytest.raises(BadDocument, match=r"notes\.txt: is a binary file, not text"):
        decode(content, PLACE)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("README", "lamp/README"),
        ("LGPL-2.1", "LGPL-2.1"),
        ("cp.1", "cp.1"),
        ("history.txt.gz", "history"),
    ],
)
def test_the_title_is_the_files_name(tmp_path: Path, name: str, title: str) -> None:
    """Known suffixes are removed, versions are not; common names get their folder's name."""
    path = tmp_path / "lamp" / name
    path.parent.mkdir()
    path.write_bytes(gzip.compress(GERMAN.encode()) if name.endswith(".gz") else GERMAN.encode())
    document = read_text(path)
    assert (kind_of(path), document.title, [block.text for block in document.blocks]) == (
        "text",
        title,
        [GERMAN],
    )
