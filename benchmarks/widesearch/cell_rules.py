"""Rules for cells: WideSearch's own preprocessing and metrics, and stricter ones that know what
a column holds.
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
"""The distance of `number_near`, a share of the gold value; the judge's instruction."""
Value = str | float | int | date | frozenset[str]
"""Of a cell: a text, a number, a year, a day, or the hosts of its URLs."""
_NUMBERS = re.compile(r"[-+]?(?:\d*\.\d+|\d+\.?\d*)%?")
_URL = re.compile(r"https?://[!$-_a-z]+")
_HOST = re.compile(r"https?://(?:www\.)?([^\s/?#]+)", re.IGNORECASE)
_YEAR = re.compile(r"\s*(\d{4}) ?年?\s*")
_LONGEST_DATE = 100
"""Characters; the parser takes time in proportion to them."""
_MOST_DAYS = 31


@lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> datetime | None:
    import dateparser  # takes seconds

    found: datetime | None = None
    with suppress(Exception):  # of all kinds, for texts that are no dates
        if len(text) <= _LONGEST_DATE:
            found = dateparser.parse(text, settings={"PREFER_DAY_OF_MONTH": "first"})
    return found


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text.replace("%", "")) / (100 if "%" in text else 1)
    return None


PREPROCESS: dict[Preprocess, Callable[[str], str]] = {
    "norm_str": lambda text: text.lower().strip().replace(" ", "").replace("*", ""),
    "extract_number": lambda text: (*_NUMBERS.findall(text.replace(",", "")), "NULL")[0],
    "norm_date": lambda text: day.strftime("%Y-%m-%d") if (day := _parsed(text)) else text,
}


def official_score(metric: Metric, response: str, target: str, criterion: Criterion) -> float:
    """Score two prepared cells by WideSearch's metric. Raises `ValueError` and `TypeError`
    where the original does.
    """
    match metric:
        case "number_near":
            found = _number(response)
            wanted = _number(target)
            if found is None or wanted is None:
                return float(found is wanted and response == target)
            return float(abs(found - wanted) <= abs(wanted) * float(criterion or 0))
        case "date_near":
            day = _parsed(response)
            gold = _parsed(target)
            return float(
                day is gold if day is None or gold is None else abs((day - gold).days) <= _MOST_DAYS
            )
        case "url_match":
            hosts = [
                {urlparse(url).netloc for url in _URL.findall(text)} for text in (response, target)
            ]
            return float(hosts[0] == hosts[1])
        case "in_match":
            return float(response in target)
    return float(response.lower() == target.lower())


def normal_text(text: str) -> str:
    """A text without its case, blanks and asterisks."""
    return "".join(text.casefold().split()).replace("*", "")


def strict_value(metric: Metric, text: str) -> Value:
    """The value of a cell, by what its column holds; its normal text where it is not that."""
    value: Value | None = None
    if metric == "number_near":
        value = _number(PREPROCESS["extract_number"](text))
    elif metric == "date_near":
        value = (
            int(year[1])
            if (year := _YEAR.fullmatch(text))
            else day.date()
            if (day := _parsed(text))
            else None
        )
    elif metric == "url_match":
        value = frozenset(host.lower() for host in _HOST.findall(text)) or None
    return normal_text(text) if value is None else value


def strict_same(metric: Metric, response: str, target: str, criterion: Criterion) -> bool:
    """Compare two cells by their values: days with the year, where one of them is no more than
    that.
    """
    match strict_value(metric, response), strict_value(metric, target):
        case float(found), float(wanted):
            return abs(found - wanted) <= abs(wanted) * float(criterion or 0)
        case date() as day, date() as gold:
            return abs((day - gold).days) <= _MOST_DAYS
        case (date() as day, int(year)) | (int(year), date() as day):
            return day.year == year
        case str(found), str(wanted) if metric == "in_match" and found:
            return found in wanted
        case one, other:
            return one == other
