"""Rules for comparing two cells: WideSearch's own preprocessing and metrics, and stricter rules,
which depend on the type of the column.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from functools import lru_cache
from typing import Literal
from urllib.parse import urlparse

Preprocess = Literal["norm_str", "extract_number", "norm_date"]
Metric = Literal["exact_match", "number_near", "date_near", "url_match", "in_match", "llm_judge"]
Criterion = float | str | None
"""Parameter of a metric. For `number_near`: tolerance as a share of the gold value. For
`llm_judge`: instruction for the judge.
"""
Value = str | float | int | date | frozenset[str]
"""Value of a cell by the strict rules: a text, a number, a year, a date, or the host names of the
URLs in the cell.
"""
_NUMBERS = re.compile(r"[-+]?(?:\d*\.\d+|\d+\.?\d*)%?")
_URL = re.compile(r"https?://[!$-_a-z]+")
_HOST = re.compile(r"https?://(?:www\.)?([^\s/?#]+)", re.IGNORECASE)
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_YEAR = re.compile(r"\s*(\d{4}) ?年?\s*")
_LONGEST_DATE = 100
"""Longer texts (in characters) are not parsed as dates, because that would take too much time."""
_MAX_DAYS = 31
"""Two dates count as equal if they differ by at most this number of days."""


@lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> datetime | None:
    import dateparser  # slow to import

    day: datetime | None = None
    with suppress(Exception):  # the parser raises all kinds of errors for texts that are no dates
        if len(text) <= _LONGEST_DATE:
            day = dateparser.parse(text, settings={"PREFER_DAY_OF_MONTH": "first"})
    return day


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text.replace("%", "")) / (100 if "%" in text else 1)
    return None


PREPROCESS: dict[Preprocess, Callable[[str], str]] = {
    "norm_str": lambda text: text.lower().strip().replace(" ", "").replace("*", ""),
    "extract_number": lambda text: (*_NUMBERS.findall(text.replace(",", "")), "NULL")[0],
    "norm_date": lambda text: day.strftime("%Y-%m-%d") if (day := _parsed(text)) else text,
}


def official_score(
    metric: Metric,
    response: str,
    target: str,
    criterion: Criterion,
) -> float:
    """Return the score of a cell, 0 or 1, by one of WideSearch's metrics.

    `response`, `target`: the response's cell and the gold cell, both after preprocessing. Raises
    `ValueError` or `TypeError` for cells for which WideSearch's evaluator also raises them.
    """
    match metric:
        case "number_near":
            number = _number(response)
            gold_number = _number(target)
            if number is None or gold_number is None:
                return float(number is gold_number and response == target)
            return float(abs(number - gold_number) <= abs(gold_number) * float(criterion or 0))
        case "date_near":
            day = _parsed(response)
            gold_day = _parsed(target)
            same = day is gold_day
            if day and gold_day:
                same = abs((day - gold_day).days) <= _MAX_DAYS
            return float(same)
        case "url_match":
            hosts = [
                {urlparse(url).netloc for url in _URL.findall(text)} for text in (response, target)
            ]
            return float(hosts[0] == hosts[1])
        case "in_match":
            return float(response in target)
    return float(response.lower() == target.lower())


def normal_text(text: str) -> str:
    """Return a text in lower case, without white space, HTML line breaks and asterisks."""
    return "".join(_BREAK.sub("", text).casefold().split()).replace("*", "")


def strict_value(metric: Metric, text: str) -> Value:
    """Return the value of a cell. The metric of the column determines the type of the value. If the
    text cannot be converted to this type, return `normal_text(text)`.
    """
    value: Value | None = None
    if metric == "number_near":
        value = _number(PREPROCESS["extract_number"](text))
    elif metric == "date_near":
        if year := _YEAR.fullmatch(text):
            value = int(year[1])
        elif day := _parsed(text):
            value = day.date()
    elif metric == "url_match":
        value = frozenset(host.lower() for host in _HOST.findall(text)) or None
    return normal_text(text) if value is None else value


def strict_same(
    metric: Metric,
    response: str,
    target: str,
    criterion: Criterion,
) -> bool:
    """Return True if two cells have the same value by the strict rules. A date equals a year if it
    is in that year.
    """
    match strict_value(metric, response), strict_value(metric, target):
        case float(number), float(gold_number):
            return abs(number - gold_number) <= abs(gold_number) * float(criterion or 0)
        case date() as day, date() as gold:
            return abs((day - gold).days) <= _MAX_DAYS
        case (date() as day, int(year)) | (int(year), date() as day):
            return day.year == year
        case str(text), str(gold_text) if metric == "in_match" and text:
            return text in gold_text
        case value, gold_value:
            return value == gold_value
