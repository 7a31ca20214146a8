"""Folding of text for comparison: different spellings of the same words fold to the same string.

The folded form of a text is its words in lower case, separated by one space, with a space before
the first word and after the last. A text contains a phrase exactly if the folded text contains the
folded phrase: " ann " is not in " annapolis ". In scripts without spaces between words, and in
Korean, whose particles are attached to words, each character counts as a word.

Folding takes time linear in the length of the text, and the length of the folded form is bounded.
To ensure this, long runs of combining marks are shortened first, because Unicode's normal form NFKC
takes quadratic time to sort them. NFKC also expands some characters to as many as 18 characters, so
its output is cut.
"""

import unicodedata
from functools import lru_cache
from itertools import groupby, pairwise

import regex

_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
"""Matches soft hyphens, zero-width characters, direction marks and variation selectors."""
_MARKS = regex.compile(r"(\p{M}{8})\p{M}+")
_RAISED = regex.compile(r"(?<=\d)(?=[²³¹⁰⁴-⁹¼-¾⅐-⅞①-⓿])")
"""Matches the position between a digit and a character that NFKC would turn into a digit, such as a
footnote mark. A space is inserted there, so that 1871¹ does not become 18711.
"""
_PLAIN = str.maketrans({"İ": "i", "\ufdfa": " ", "\ufdfb": " "} | dict.fromkeys("’‘‛ʼʻʹ′´", "'"))
_FOREIGN_DIGIT = regex.compile(r"(?![0-9])\p{Nd}")
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}\p{Yi}\p{Line_Break=Complex_Context}]"
)
_CHARACTER = regex.compile(rf"{_UNSPACED}\p{{M}}*")
"""Matches a letter of Korean, or of a script without spaces between words, with its vowel signs and
tone marks.
"""
_EAST_ASIAN = regex.compile(rf"{_UNSPACED}|[\uff01-\uff5e]")
_INSIDE = regex.compile(r"(?<=\d)[,'](?=\d{3})|'s\b|'|(?<!\d)(?<!\w\w\w)\.(?=[^\W\d])")
"""Matches punctuation inside a word, as in 12,000, Ann's, O'Neill and Ph.D. It is removed without
splitting the word.
"""
_BETWEEN = regex.compile(r"[^\w.\s]+|_+|\.(?!\d)|(?<=[^\W\d])\.|\b(?:an|the)\b")
_LEADING = regex.compile(r"^ a(?= )")


def fold(text: str) -> str:
    """Return the folded form of a text: its words in lower case, without punctuation and without
    the articles "an" and "the", with one space around each word.
    """
    words = _BETWEEN.sub(" ", _INSIDE.sub("", apart(text).casefold()))
    return f" {' '.join(words.split())} "


def apart(text: str) -> str:
    """Return a text in plain characters, like `legible`, with spaces around each character that
    counts as a word.
    """
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", legible(text))


def legible(text: str) -> str:
    """Return a text in plain characters: without invisible characters, in Unicode's normal form
    NFKC, and with ASCII digits. Case and punctuation stay.
    """
    text = _RAISED.sub(" ", _MARKS.sub(r"\1", _INVISIBLE.sub("", text))).translate(_PLAIN)
    text = unicodedata.normalize("NFKC", text)[: 2 * len(text) + 64]
    return _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.digit(digit[0], digit[0])), text)


def sought(value: str) -> str:
    """Return the folded form of `value`, to be searched for in folded texts. A leading article "a"
    is removed. Return an empty string if the value has no words.
    """
    folded = _LEADING.sub("", fold(value))
    return folded if folded.strip() else ""


def is_east_asian(text: str) -> bool:
    """Return whether a text has full-width characters, or characters of Korean or of a script
    without spaces between words.
    """
    return not text.isascii() and _EAST_ASIAN.search(text) is not None


def count_east_asian(text: str) -> int:
    """Return the number of characters of a text for which `is_east_asian` is true."""
    return 0 if text.isascii() else len(_EAST_ASIAN.findall(text))


def terms(folded: str) -> list[str]:
    """Return the search terms of a folded text: its words. For a run of characters that count as
    words, the terms are all pairs of neighbouring characters.
    """
    words = folded.split()
    if folded.isascii():
        return words
    units = list[str]()
    for unspaced, group in groupby(words, _is_character):
        run = list(group)
        units += map("".join, pairwise(run)) if unspaced and len(run) > 1 else run
    return units


@lru_cache(10_000)
def _is_character(word: str) -> bool:
    return not word.isascii() and _CHARACTER.match(word) is not None
