"""Plain text of values: without markup, and in plain signs, so that two writings of the same
are one.
"""

import re
import unicodedata
from functools import lru_cache

from router.folding import legible

LINK = re.compile(r"!?\[([^\[\]]*)\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)")
_ADDRESS = re.compile(r"<((?:https?|mailto):[^<>\s]*)>", re.IGNORECASE)
_INLINE_TAG = re.compile(r"</?(?:b|i|u|em|strong|sup|sub|span|code|mark|small)>", re.IGNORECASE)
MARKS = re.compile(r"(?<!\d)\*\*+|\*\*+(?!\d)|`|(?<=\S)\[\^?\d{1,3}\](?:\([^()\s]*\))?")
"""Emphasis, code, and notes such as `[1]` with their links."""
_AROUND = " \"'“”‘’«»‹›„,;:!?…*_~|。，、；：！？「」『』《》"
"""Punctuation that is no part of a value at either end of it."""
_SIGNS = str.maketrans("“”„‟″‐‑‒–—―−﹣ı٫٬", '"""""--------i.,')
_RAISED = re.compile(r"(?:(?<![\d.,])(10)|(?<=\d)|(?<=[^\W\d_]{3}))([⁺⁻]?[⁰¹²³⁴-⁹]+|[₀-₉①-⓿❶-➓]+)")
_FRACTION = re.compile(r"(?:(\d{1,15})\s?)?([¼-¾⅐-⅞])")
_POWER_OF_TEN = re.compile(
    r"(?:((?<=\d)\s?[×xX*·⋅]\s?)|(?<![\d.,]))10\s?(?:\^|\*\*)\s?([-+]?\d{1,2})(?!\d)"
)


def folded(text: str) -> str:
    """Return a text case folded, in plain signs, digits and powers of ten; raised numbers of
    notes are left out.
    """
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"10^{found[2]}" if found[1] else "", text)
        text = _FRACTION.sub(
            lambda found: f"{found[1] or 0}{str(unicodedata.numeric(found[2]))[1:]}", text
        )
        text = legible(text).translate(_SIGNS).casefold().replace("i\u0307", "i")
    if "10" in text:
        text = _POWER_OF_TEN.sub(lambda found: f"{'' if found[1] else 1}e{found[2]}", text)
    return text.casefold()


def plain(value: str) -> str:
    """Return a value without the markup of Markdown and HTML; of links, their text."""
    if not set("[<*`").isdisjoint(value):
        value = LINK.sub(r"\1", MARKS.sub("", value))
        value = _INLINE_TAG.sub(" ", _ADDRESS.sub(r"\1", value))
    return value.strip()


_HYPHEN = re.compile(r"(?<=\w) ?- ?(?=\w)")
_BRACKETS = str.maketrans({"[": "", "]": "", "(": " (", ")": ") "})


@lru_cache(4096)
def normal_text(value: str) -> str:
    """Return the canonical form of a text."""
    for _ in range(8):  # stable after three, as a rule
        text = " ".join(plain(folded(value)).translate(_BRACKETS).split())
        text = _HYPHEN.sub("-", text).replace(" & ", " and ")
        text = text.lstrip(_AROUND).rstrip(_AROUND + ".") or text
        if text == value:
            break
        value = text
    return value
