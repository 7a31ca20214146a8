"""Normalization of values: markup is removed and special characters are replaced, so that equal
values become equal texts.
"""

import re
import unicodedata
from functools import lru_cache

from router.folding import legible

LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_ADDRESS = re.compile(r"<((?:https?|mailto):[^<>\s]*)>", re.IGNORECASE)
_INLINE_TAG = re.compile(r"</?(?:b|i|u|em|strong|sup|sub|span|code|mark|small)>", re.IGNORECASE)
MARKS = re.compile(
    r"(?<!\d)\*\*+|\*\*+(?!\d)|`|(?<=\S)\[\^?(?:\d{1,3}\]|[a-z]\](?!\w))(?:\([^()\s]*\))?"
)
"""Matches Markdown marks of emphasis and code, and references to notes such as `[1]` and `[a]` with
their links.
"""
_AROUND = " \"'“”‘’«»‹›„,;:!?…*_~|。，、；：！？「」『』《》"
"""Characters that are dropped from both ends of a value."""
_SIGNS = str.maketrans("“”„‟″‐‑‒–—―−﹣ı٫٬", '"""""--------i.,')
_RAISED = re.compile(r"(?:(?<![\d.,])(10)|(?<=\d)|(?<=[^\W\d_]{3}))([⁺⁻]?[⁰¹²³⁴-⁹]+|[₀-₉①-⓿❶-➓]+)")
_FRACTION = re.compile(r"(?:(\d{1,15})\s?)?([¼-¾⅐-⅞])")
_POWER_OF_TEN = re.compile(
    r"(?:((?<=\d)\s?[×xX*·⋅]\s?)|(?<![\d.,]))10\s?(?:\^|\*\*)\s?([-+]?\d{1,2})(?!\d)"
)


def folded(text: str) -> str:
    """Return `text` case-folded, with plain punctuation, ASCII digits, and powers of ten written
    like `1e6`. Superscript numbers of notes are dropped.
    """
    if not text.isascii():
        text = _RAISED.sub(lambda raised: f"10^{raised[2]}" if raised[1] else "", text)
        text = _FRACTION.sub(
            lambda part: f"{part[1] or 0}{str(unicodedata.numeric(part[2]))[1:]}", text
        )
        text = legible(text).translate(_SIGNS).casefold().replace("i\u0307", "i")
    if "10" in text:
        text = _POWER_OF_TEN.sub(lambda power: f"{'' if power[1] else 1}e{power[2]}", text)
    return text.casefold()


def plain(value: str) -> str:
    """Return `value` without Markdown and HTML markup. Links are replaced by their text."""
    if not set("[<*`").isdisjoint(value):
        value = LINK.sub(r"\1", MARKS.sub("", value))
        value = _INLINE_TAG.sub(" ", _ADDRESS.sub(r"\1", value))
    return value.strip()


_HYPHEN = re.compile(r"(?<=\w) ?- ?(?=\w)")
_BRACKETS = str.maketrans({"[": "", "]": "", "(": " (", ")": ") "})


@lru_cache(4096)
def normal_text(value: str) -> str:
    """Return the canonical form of the text `value`."""
    for _ in range(8):  # repeat until nothing changes, usually after three rounds
        text = " ".join(plain(folded(value)).translate(_BRACKETS).split())
        text = _HYPHEN.sub("-", text).replace(" & ", " and ")
        text = text.lstrip(_AROUND).rstrip(_AROUND + ".") or text
        if text == value:
            break
        value = text
    return value
