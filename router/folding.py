"""One folding of text: two writings of the same words fold to the same.

A folded text is its words in lower case, with one space around each, so that a phrase stands in a
text exactly where one folded string holds the other: " ann " is not in " annapolis ". Scripts that
put no spaces between words, and Korean, whose particles cling to words, count each character as a
word. So a mixed text is matched by words where it has them, and by characters elsewhere.

The cost is linear in the text, and the folded text has a bound, whatever the text: NFKC makes 18
characters of some, and sorts a run of combining marks in quadratic time.
"""

import unicodedata
from functools import lru_cache
from itertools import groupby, pairwise

import regex

_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
"""Soft hyphens, characters of no width, marks of direction, variation selectors."""
_MARKS = regex.compile(r"(\p{M}{8})\p{M}+")
_RAISED = regex.compile(r"(?<=\d)(?=[²³¹⁰⁴-⁹¼-¾⅐-⅞①-⓿])")
"""Before a character that NFKC would make further digits of the number: 1871¹ is not 18711."""
_PLAIN = str.maketrans({"İ": "i", "\ufdfa": " ", "\ufdfb": " "} | dict.fromkeys("’‘‛ʼʻʹ′´", "'"))
_FOREIGN_DIGIT = regex.compile(r"(?![0-9])\p{Nd}")
_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Hangul}\p{Bopomofo}\p{Yi}\p{Line_Break=Complex_Context}]"
)
_CHARACTER = regex.compile(rf"{_UNSPACED}\p{{M}}*")
"""As a reader sees it: a letter with its vowel signs and tone marks."""
_EAST_ASIAN = regex.compile(rf"{_UNSPACED}|[\uff01-\uff5e]")
_INSIDE = regex.compile(r"(?<=\d)[,'](?=\d{3})|'s\b|'|(?<!\d)(?<!\w\w\w)\.(?=[^\W\d])")
"""What separates no words: in 12,000, Ann's, O'Neill, Ph.D."""
_BETWEEN = regex.compile(r"[^\w.\s]+|_+|\.(?!\d)|(?<=[^\W\d])\.|\b(?:an|the)\b")
_LEADING = regex.compile(r"^ a(?= )")


def fold(text: str) -> str:
    """Return the words of a text between spaces, without case, signs and the articles "an" and
    "the".
    """
    words = _BETWEEN.sub(" ", _INSIDE.sub("", apart(text).casefold()))
    return f" {' '.join(words.split())} "


def apart(text: str) -> str:
    """Return a text in plain characters, with spaces around those that count as words; case and
    signs stay.
    """
    return text if text.isascii() else _CHARACTER.sub(r" \g<0> ", legible(text))


def legible(text: str) -> str:
    """Return a text in plain characters; case and signs stay."""
    text = _RAISED.sub(" ", _MARKS.sub(r"\1", _INVISIBLE.sub("", text))).translate(_PLAIN)
    text = unicodedata.normalize("NFKC", text)[: 2 * len(text) + 64]
    return _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.digit(digit[0], digit[0])), text)


def sought(value: str) -> str:
    """Return a value as it stands in folded texts; empty where it has no words, and so stands
    nowhere.
    """
    folded = _LEADING.sub("", fold(value))
    return folded if folded.strip() else ""


def is_east_asian(text: str) -> bool:
    """Return whether a text has characters of a script without spaces, of Korean, or of full
    width.
    """
    return not text.isascii() and _EAST_ASIAN.search(text) is not None


def terms(folded: str) -> list[str]:
    """Return the words of a folded text; of neighbouring characters of unspaced scripts, every
    pair.
    """
    words = folded.split()
    if folded.isascii():
        return words
    found = list[str]()
    for unspaced, group in groupby(words, _is_character):
        run = list(group)
        found += map("".join, pairwise(run)) if unspaced and len(run) > 1 else run
    return found


@lru_cache(10_000)
def _is_character(word: str) -> bool:
    return not word.isascii() and _CHARACTER.match(word) is not None
