"""Canonical forms of cell values, by the type of their column.

Two values with the same canonical form count as the same value. Every text has a canonical form,
and the canonical form of a canonical form is itself.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from functools import lru_cache

from router.table.numbers import RATIO, number_text, numbers_in, only, only_number
from router.table.plain_text import LINK, MARKS, folded, normal_text
from router.trace.table import Column, RowKey, Schema
from router.trace.values import says_not_found

_BLANK = frozenset(
    word.strip().replace(" ", "")
    for word in """
n/a | n.a | #n/a | na | nan | nil | none | null | <na> | undefined | unknown | tbd | tba |
tbc | to be determined | to be announced | to be confirmed | unavailable | missing | no data |
no value | no information | no info | no record | no records | no answer | none found |
not available | data not available | information not available | not applicable | not stated |
not specified | not disclosed | undisclosed | not publicly disclosed | not publicly available |
not reported | not provided | not known | not yet known | not public | not published |
not given | not listed | not mentioned | not determined | not announced | not recorded |
unspecified | unreported | unpublished | unlisted | confidential | redacted | withheld |
no evidence found | <unknown> | cannot be determined |
could not be determined | not found in the documents | not found in the passages |
资料不足 | 資料不足 | 无 | 無 | 暂无 | 暫無 | 暂无数据 | 暫無資料 | 暂无资料 | 暂无信息 | 暂缺 |
未知 | 不详 | 不詳 | 未公开 | 未公開 | 未公布 | 未披露 | 未透露 | 不明 | 未提及 | 未说明 |
未提供 | 未找到 | 未查到 | 未注明 | 未记录 | 未统计 | 未定 | 未確定 | 尚未公布 | 尚未公开 |
无数据 | 無資料 | 无资料 | 无信息 | 无记录 | 没有数据 | 数据缺失 | 缺失 | 不适用 | 不適用 |
待定 | 待公布 | 保密 | 空 | なし | 無し | 該当なし | 該当無し | データなし | 情報なし |
記載なし | 記録なし | 未発表 | 非公開 | 非公表 | 未記載 | 未詳 | 未確認 | 未回答 | 不明です |
없음 | 정보 없음 | 자료 없음 | 데이터 없음 | 해당 없음 | 기록 없음 | 미상 | 미정 | 불명 |
비공개 | 미공개 | 미확인 | 알 수 없음 | k.a | o.a | keine angabe | keine angaben |
keine daten | unbekannt | nicht bekannt | nicht verfügbar | nicht angegeben |
nicht zutreffend | nicht veröffentlicht | entfällt | inconnu | inconnue | non disponible |
non communiqué | n.c | non renseigné | non précisé | non applicable | non publié | sans objet |
aucune donnée | sin datos | sin dato | sin información | desconocido | desconocida |
no disponible | no aplica | no especificado | no consta | no publicado | no divulgado | s/d |
n/d | n.d | desconhecido | não disponível | sem dados | não informado | não aplicável |
não divulgado | não consta | sconosciuto | non noto | non applicabile | non specificato |
nessun dato | non pervenuto | onbekend | niet beschikbaar | niet bekend | n.v.t | nvt |
geen gegevens | не указано | не указан | не указана | неизвестно | неизвестен | нет данных |
нет информации | н/д | нд | не найдено | не раскрывается | не определено | не применимо |
неприменимо | отсутствует | невідомо | немає даних | brak danych | nieznany | nieznane |
nieznana | nie dotyczy | b.d | okänd | okänt | uppgift saknas | ukendt | ukjent |
ikke oppgitt | ikke oplyst | ei tiedossa | neznámý | neuvedeno | nincs adat | ismeretlen |
bilinmiyor | belirtilmemiş | veri yok | άγνωστο | غير معروف | غير متاح | غير متوفر | لا يوجد |
نامشخص | לא ידוע | अज्ञात | उपलब्ध नहीं | không rõ | không có dữ liệu | ไม่ทราบ | ไม่มีข้อมูล |
tidak diketahui | tidak tersedia
""".split("|")
)
_DASH = re.compile("[–—―]")
_NO_LETTER = re.compile(r"[-.…?/|_~*ー・·•]*")

_LONGEST_NAMING = 300
"""The name of a choice is searched for only in this many characters at the start of a value."""


def is_blank(value: str, column: Column | None = None) -> bool:
    """Return whether `value` means that there is no value, such as "n/a" or "unknown". In a boolean
    column, words for "no" are values, so they are not blank.
    """
    if len(value) > 50 or (column and column.type == "boolean" and _typed(column, value)):
        return False
    text = "".join(normal_text(value).strip("()").split())
    return says_not_found(value.strip()) or text in _BLANK or bool(_NO_LETTER.fullmatch(text))


def canonical(column: Column, value: str) -> str:
    """Return the canonical form of `value`. If the value is not of the column's type, return its
    canonical form as a text.

    Text: NFKC, case folded, without markup, surrounding punctuation and surplus space. Number and
    integer: decimal digits without separators, unit and percent sign; words such as "million" are
    multiplied out. Date: ISO 8601, to the precision that is stated (`1943-05`). URL: host and path.
    Boolean: `true` or `false`. Choice: one of the column's choices.
    """
    return _typed(column, value) or _text(column, value)


def is_mistyped(column: Column, value: str) -> bool:
    """Return whether `value` is not of the column's type."""
    typed = _typed(column, value)
    return typed is None or (column.type == "integer" and "." in typed)


def _text(column: Column, value: str) -> str:
    """Return the canonical form of `value` as a text. In a date column, dashes become `~`, because
    they mean a range of dates.
    """
    return normal_text(_DASH.sub("~", value) if column.type == "date" else value)


@lru_cache(4096)
def _typed(column: Column, value: str) -> str | None:
    text = _text(column, value)
    match column.type:
        case "integer" | "number":
            return only_number(normal_text(number_text(value)), column)
        case "date":
            return only(_dates(text), text)
        case "url":
            return _url(LINK.sub(r"\2", value)) or _url(text)
        case "boolean":
            return _BOOLEANS.get(text)
        case "choice":
            return _choice(text, column.choices)
    return text


def row_key(schema: Schema, values: Sequence[str]) -> RowKey:
    """Return the key of a row: the canonical forms of its key values. `values`: one value for each
    column of the schema that is not hidden.
    """
    return tuple(
        canonical(column, value)
        for column, value in zip(schema.shown, values, strict=True)
        if column.key
    )


@lru_cache(4096)  # the same sentences are searched for all cells of a column
def values_in(column: Column, text: str) -> tuple[str, ...]:
    """Return the canonical forms of all numbers in `text` for a column of numbers, or of all dates
    for a column of dates. Return an empty tuple for other column types.
    """
    if column.type in ("integer", "number"):
        whole = RATIO.sub(" ", number_text(text))
        return tuple(number for _, number in numbers_in(whole, column.unit))
    if column.type == "date":
        return tuple(form for _, form in _dates(folded(_DASH.sub("~", text))))
    return ()


_MONTHS = (
    "january february march april may june july august september october november december".split()
)
_MONTH = (
    r"(?P<{}>"
    + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("sep", "sept?")
    + r")\b\.?"
)
_DAY = r"(?<!\d)(?P<{}>\d{{1,2}})(?:st|nd|rd|th)?"
_YEAR = r"(?P<{}>\d{{4}})(?!\d)"
_GAP = r"(?:,\s?|\s)"
_DATE = re.compile(
    r"(?<!\d)(?P<y1>\d{4})(?:[-/.]|\s?[年년]\s?)(?P<m1>\d{1,2})(?:(?:[-/.]|"
    r"\s?[月월]\s?)(?P<d1>\d{1,2})(?!\d)\s?[日일]?|\s?[月월]?(?!\d))"
    rf"|{_DAY.format('d2')}\.?\s(?:of\s)?{_MONTH.format('n2')}{_GAP}{_YEAR.format('y2')}"
    rf"|\b{_MONTH.format('n3')}\s{_DAY.format('d3')}{_GAP}{_YEAR.format('y3')}"
    rf"|\b{_MONTH.format('n4')}{_GAP}(?:of\s)?{_YEAR.format('y4')}"
    rf"|(?<!\d)(?P<a5>\d{{1,2}})[-/.](?P<b5>\d{{1,2}})[-/.]{_YEAR.format('y5')}"
    rf"|(?<!\d){_YEAR.format('y6')}(?!s\b)[年년]?"
)


def _dates(text: str) -> Iterator[tuple[str, str]]:
    """Yield each date in the folded text `text` as a pair: the date as written, and in ISO 8601."""
    for match in _DATE.finditer(text):
        written = match[0]
        parts = {name[0]: part for name, part in match.groupdict().items() if part}
        year = parts["y"]
        month = parts.get("m", "")
        day = parts.get("d", "")
        # 2011/12 is a season over two years, not a month
        if written[4:5] == "/" and not day and int(month) == (int(year) + 1) % 100:
            continue
        if "n" in parts:
            month = str(
                next(at for at, name in enumerate(_MONTHS, 1) if name.startswith(parts["n"][:3]))
            )
        elif "a" in parts:  # the month is certain only if the other number cannot be a month
            small = sorted((parts["a"], parts["b"]), key=int)
            if int(small[0]) != int(small[1]) and int(small[1]) <= 12:
                continue
            month, day = small
        try:
            day_text = date(int(year), int(month or 1), int(day or 1)).isoformat()
        except ValueError:
            continue
        if day:
            yield written, day_text
        else:
            yield written, day_text[: 7 if month else 4]


_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_SITE = re.compile(
    r"(?:https?://)?(?:www\.)*([^\s/?#:@<>\[\]*`]+\.[^\s/?#:@<>\[\]*`.]+)"
    r"(?::\d+)?(/[^\s?#<>\[\]`]*)?",
    re.IGNORECASE,
)


def _url(text: str) -> str | None:
    """Return the host and path of the first URL in `text`; None if it contains none."""
    start = _SCHEME.search(text)
    site = _SITE.match(text, start.start()) if start else _SITE.match(text.strip())
    if site is None:
        return None
    return site[1].casefold() + MARKS.sub("", site[2] or "").rstrip("/.,;)")


_BOOLEANS = dict.fromkeys(
    """
true yes y t ✓ ✔ ✅ ☑ √ ○ ◯ 〇 ⭕ ◎ 是 是的 有 对 對 真 はい あり 有り 예 네 있음 ja oui sí si sim
да так tak sì evet vero verdadero vrai wahr ano kyllä igen ναι نعم כן हाँ ใช่ có ya
""".split(),
    "true",
)
_BOOLEANS |= dict.fromkeys(
    """
false no n f ✗ ✘ ❌ ✕ ✖ ╳ × ☒ ☐ 否 错 錯 没有 沒有 不是 不 无 無 假 いいえ なし
無し 아니오 아니요 없음 nein non nej nee não нет ні nie
hayır falso faux falsch nem ei όχι لا לא नहीं ไม่ không tidak
""".split(),
    "false",
)


def _choice(text: str, choices: tuple[str, ...]) -> str | None:
    """Return the choice that equals the folded text `text`, or else the only choice whose name
    `text` contains. Return None if `text` contains no choice, or several.
    """
    forms = _forms(choices)
    if text in forms:
        return forms[text][0]
    text = text[:_LONGEST_NAMING]
    searched = _spaced(text) + text
    named = [choice for choice, words in forms.values() if words in searched]
    return named[0] if len(named) == 1 else None


@lru_cache(64)
def _forms(choices: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Map the canonical form of each choice to a pair: the choice, and the string by which it is
    found in a text. If the choice is ASCII, each word of this string is between spaces.
    """
    forms = ((normal_text(choice), choice) for choice in choices)
    return {form: (choice, _spaced(form) if form.isascii() else form) for form, choice in forms}


def _spaced(text: str) -> str:
    """Return the words and punctuation of a text, each between spaces."""
    return f" {' '.join(_WORD.findall(text))} "


_WORD = re.compile(r"\w+|[^\w\s]")
