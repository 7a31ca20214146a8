"""Values of cells: as models write them, without markup, and in one canonical form by the type of their column.

Two values with the same canonical form count as the same. The form of a canonical form is itself; any text has one.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from decimal import Context, Decimal
from functools import lru_cache

from router.trace.table import Column, RowKey, Schema
from router.trace.values import says_not_found

_LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_ADDRESS = re.compile(r"<((?:https?|mailto):[^<>\s]*)>", re.IGNORECASE)
_INLINE_TAG = re.compile(r"</?(?:b|i|u|em|strong|sup|sub|span|code|mark|small)>", re.IGNORECASE)
_MARKS = re.compile(r"\*\*+|`|(?<=\S)\[\^?\d{1,3}\](?:\([^()\s]*\))?")
"""Emphasis, code, and notes such as `[1]` with their links."""
_AROUND = " \"'“”‘’«»‹›„,;:!?…*_~|。，、；：！？「」『』《》"
"""Punctuation that is no part of a value at either end of it."""
_BLANK = frozenset(
    "-|--|—|–|−|...|…|?|/|n/a|n.a|na|nan|nil|none|null|unknown|tbd|tba|unavailable|missing|no data|no value|"
    "not available|not applicable|not stated|not specified|no evidence found|无|暂无|未知|不详".split("|")
)


def is_blank(value: str) -> bool:
    """True for what stands in a cell where there is no value."""
    return len(value) < 50 and (says_not_found(value.strip()) or normal_text(value) in _BLANK)


def plain(value: str) -> str:
    """The value without Markdown's and HTML's markup; of links, their text."""
    if not set("[<*`").isdisjoint(value):
        value = _LINK.sub(r"\1", _MARKS.sub("", value))
        value = _INLINE_TAG.sub(" ", _ADDRESS.sub(r"\1", value))
    return value.strip()


def canonical(column: Column, value: str) -> str:
    """The canonical form of a value; where it is not of the column's type, that of a text.

    Text: NFKC, case folded, without markup, punctuation around it and surplus space. Number, integer: decimal, without
    separators, unit and percent sign. Date: ISO 8601, as far as it is stated (`1943-05`). URL: host and path. Boolean:
    `true` or `false`. Choice: one of the choices.
    """
    return _typed(column, value) or normal_text(value)


def is_mistyped(column: Column, value: str) -> bool:
    """True for a value that is not of the column's type."""
    typed = _typed(column, value)
    return typed is None or (column.type == "integer" and "." in typed)


def _typed(column: Column, value: str) -> str | None:
    text = normal_text(value)
    match column.type:
        case "integer" | "number":
            return _only_number(text, column.unit)
        case "date":
            return _only(_dates(text), text)
        case "url":
            return _url(_LINK.sub(r"\2", value)) or _url(text)
        case "boolean":
            return _BOOLEANS.get(text)
        case "choice":
            return _choice(text, column.choices)
    return text


def row_key(schema: Schema, values: Sequence[str]) -> RowKey:
    """The key of a row with these values, one for each column."""
    return tuple(canonical(column, value) for column, value in zip(schema.columns, values, strict=True) if column.key)


@lru_cache(4096)  # the same sentences are looked through for all cells of a column
def values_in(column: Column, text: str) -> tuple[str, ...]:
    """The canonical forms of all numbers, or dates, in a text; empty for columns of other types."""
    if column.type in ("integer", "number"):
        return tuple(number for _, number in _numbers(_folded(text), column.unit))
    return tuple(found for _, found in _dates(_folded(text))) if column.type == "date" else ()


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def normal_text(value: str) -> str:
    """The canonical form of a text."""
    for _ in range(8):  # stable after three, as a rule
        text = plain(_folded(value)).replace("[", "").replace("]", "")
        text = " ".join(text.split())
        text = text.lstrip(_AROUND).rstrip(_AROUND + ".") or text
        if text == value:
            break
        value = text
    return value


_NUMBER = re.compile(
    r"(?<![a-z0-9.,])[-+−]?(?:\d{1,3}(?:[ '’]\d{3})+(?!\d)|\d[\d.,]*)(?:[.,]\d+)?(?:e[-+]?\d{1,2}(?!\d))?"
)
_POWERS = {"k": 3, "thousand": 3, "million": 6, "mn": 6, "mio": 6, "billion": 9, "bn": 9, "trillion": 12}
_POWERS |= {"千": 3, "万": 4, "百万": 6, "千万": 7, "亿": 8, "十亿": 9, "万亿": 12}
_POWER = re.compile(rf"\s*({'|'.join(sorted(_POWERS, key=len, reverse=True))})(?![a-z])")
_GROUPED = re.compile(r"-?(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\.\d{3}){2,})|\d+(?:,\d+){2,})")
_BEFORE_CHRIST = re.compile(r"\bb\.?c\.?(?:e\b|\b)|公元前")
_IN_PARENTHESES = re.compile(r"\([^()]*\)")
_DIGIT = re.compile(r"(?<![a-z\d])\d")
"""Not the one of km² and the like."""
_MOST_DIGITS, _EXACT = 60, Context(prec=200)


def _numbers(text: str, unit: str) -> Iterator[tuple[str, str]]:
    """Each number in a folded text, as written and in canonical form."""
    for found in _NUMBER.finditer(text):
        power = _POWER.match(text, found.end())
        exponent = 0 if power is None or power[1] in unit.casefold() else _POWERS[power[1]]
        if number := _decimal(found[0], exponent):
            yield found[0], number


def _decimal(written: str, exponent: int) -> str | None:
    digits, _, scale = re.sub(r"[ '’+]", "", written.replace("−", "-")).rstrip(".,").partition("e")
    grouped = _GROUPED.fullmatch(digits)
    if len(digits) > _MOST_DIGITS or (digits.count(".") > 1 and "," not in digits and not grouped):
        return None
    at = len(digits) if grouped else max(digits.rfind("."), digits.rfind(",")) % (len(digits) + 1)
    whole, part = re.sub("[.,]", "", digits[:at]), digits[at + 1 :]
    shown = format(Decimal(f"{whole}.{part}").scaleb(exponent + int(scale or 0), _EXACT), "f")
    shown = shown.rstrip("0").rstrip(".") if "." in shown else shown
    return "0" if shown == "-0" else shown


def _only_number(text: str, unit: str) -> str | None:
    """The number that a folded text is about; None where there is none, or a range, a fraction or a date."""
    bare = _IN_PARENTHESES.sub(" ", text)
    if unit:
        bare = re.sub(rf"(?<![a-z]){re.escape(normal_text(unit))}(?![a-z])", " ", bare)
    return _only(_numbers(bare, unit), bare)


def _only(found: Iterable[tuple[str, str]], text: str) -> str | None:
    """The canonical form of the one thing that was found in a text; None where there are others, or further digits."""
    pairs = list(found)
    if len(pairs) != 1 or _BEFORE_CHRIST.search(text):
        return None
    rest = _TIME.sub(" ", text.replace(pairs[0][0], " ", 1))
    return None if _DIGIT.search(rest) else pairs[0][1]


_MONTHS = "january february march april may june july august september october november december".split()
_MONTH = r"(?P<{}>" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS).replace("sep", "sept?") + r")\b\.?"
_DAY = r"(?<!\d)(?P<{}>\d{{1,2}})(?:st|nd|rd|th)?"
_YEAR = r"(?P<{}>\d{{4}})(?!\d)"
_DATE = re.compile(
    r"(?<!\d)(?P<y1>\d{4})(?:[-/.]|\s?年\s?)(?P<m1>\d{1,2})(?:(?:[-/.]|\s?月\s?)(?P<d1>\d{1,2})(?!\d)\s?日?|\s?月?(?!\d))"
    rf"|{_DAY.format('d2')}\.?\s(?:of\s)?{_MONTH.format('n2')},?\s{_YEAR.format('y2')}"
    rf"|\b{_MONTH.format('n3')}\s{_DAY.format('d3')},?\s{_YEAR.format('y3')}"
    rf"|\b{_MONTH.format('n4')},?\s(?:of\s)?{_YEAR.format('y4')}"
    rf"|(?<!\d)(?P<a5>\d{{1,2}})[-/.](?P<b5>\d{{1,2}})[-/.]{_YEAR.format('y5')}"
    rf"|(?<!\d){_YEAR.format('y6')}(?!s\b)年?"
)
_TIME = re.compile(r"\bt?\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?[ap]\.?m\b|z\b)?|\b\d{1,2}\s?[ap]\.?m\b")


def _dates(text: str) -> Iterator[tuple[str, str]]:
    """Each date in a folded text, as written and in ISO 8601."""
    for found in _DATE.finditer(text):
        parts = {name[0]: part for name, part in found.groupdict().items() if part}
        year, month, day = parts["y"], parts.get("m", ""), parts.get("d", "")
        if "n" in parts:
            month = str(next(at for at, name in enumerate(_MONTHS, 1) if name.startswith(parts["n"][:3])))
        elif "a" in parts:  # certain only where one of the two can be no month
            small = sorted((parts["a"], parts["b"]), key=int)
            if int(small[0]) != int(small[1]) and int(small[1]) <= 12:
                continue
            month, day = small
        try:
            whole = date(int(year), int(month or 1), int(day or 1)).isoformat()
        except ValueError:
            continue
        yield found[0], whole[: 10 if day else 7 if month else 4]


_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_SITE = re.compile(
    r"(?:https?://)?(?:www\.)*([^\s/?#:@<>\[\]*`]+\.[^\s/?#:@<>\[\]*`.]+)(?::\d+)?(/[^\s?#<>\[\]`]*)?", re.IGNORECASE
)


def _url(text: str) -> str | None:
    """Host and path of the first address in a text; None where there is none."""
    start = _SCHEME.search(text)
    found = _SITE.match(text, start.start()) if start else _SITE.match(text.strip())
    return found[1].casefold() + _MARKS.sub("", found[2] or "").rstrip("/.,;)") if found else None


_BOOLEANS = dict.fromkeys("true yes y t ✓ ✔ ✅ 是 有 对".split(), "true")
_BOOLEANS |= dict.fromkeys("false no n f ✗ ✘ ❌ 否 没有 不是".split(), "false")


def _choice(text: str, choices: Sequence[str]) -> str | None:
    """The choice that a folded text is; failing that, the only one that it names."""
    forms = {normal_text(choice): choice for choice in choices}
    named = [form for form in forms if form == text] or [form for form in forms if _names(form, text)]
    return forms[named[0]] if len(named) == 1 else None


def _names(form: str, text: str) -> bool:
    """True where `form` stands in the text, as words of their own if its script has any."""
    return form in text and (not form.isascii() or bool(re.search(rf"(?<!\w){re.escape(form)}(?!\w)", text)))
