"""Worst-case texts of any length, which are the most expensive to normalize, match, split or
show.
"""

from collections.abc import Callable, Iterator
from itertools import count

# fmt: off
PIECES = (
    "<search>", "<search></search>", "<search>a?</search>", "</sea", "<", "< ", "<stop",
    "<stop>", "<think>", "</think>", "<think></think>", "<query", "<query>", "<answer>",
    "<evidence>", "<evidence>a", "<search_results>", "[", "{", "(", '["', "['", '"', "'", "“",
    "\\", '\\"', '",', '"\n', '": ', '"x": ', '{"a":', '["a?", ', '{"query": "a?"}, ', "=", "Q",
    "Q ", "&", "&amp;", "`", "```", "x", "x ", " ", "\n", "\n ", ", ", ",\n", "- ", "1. ", "? ",
    "?, ", "a?\n", "a\n", "- a\n",
)
"""Pieces of the protocol and of JSON, to repeat."""
_UNITS = (
    "\u0301\u0323", "e\u0301\u0323", "\ufdfa", "ệ", "각", "ａ", "ﬁ", "\u0344", "👩‍👩‍👧‍👦",
    "\u202e", "\u200b", "\x00", "\x1b[2J", "\u2028", "\x85", "İ", "ß", "A", "Who is Ada? ",
    "1943", ".", ". ", '."', "a.b", "…) ", "&lt;", "</", "<|im_end|>", "Mr. ", "\n\n", "\t",
    "-a", "''", "’s ", "http://a.b/?", '{"a":', "[[", "\\u0000", "data: ",
)
# fmt: on
_BEFORE = "", '<search>["', "<answer>a</answer><evidence>"


def repetitive(chars: int) -> Iterator[str]:
    """Yield outputs of about this many characters that repeat a single piece."""
    for before in _BEFORE:
        for piece in PIECES:
            yield (before + piece * (chars // len(piece) + 1))[:chars]


def _distinct(chars: int) -> str:
    return "".join(chr(0x10000 + number % 0xF0000) for number in range(chars))


def _repeats(unit: str) -> Callable[[int], str]:
    return lambda chars: (unit * (chars // len(unit) + 1))[:chars]


def _opens_and_closes(chars: int) -> str:
    return "[" * (chars // 2) + "]" * (chars - chars // 2)


def _numbers(chars: int) -> str:
    words = list[str]()
    size = 0
    for number in count():
        if size >= chars:
            break
        words.append(str(number))
        size += len(words[-1]) + 1
    return " ".join(words)[:chars]


HOSTILE: dict[str, Callable[[int], str]] = {
    **{f"{unit!a} again and again": _repeats(unit) for unit in dict.fromkeys((*_UNITS, *PIECES))},
    "characters that are all different": _distinct,
    "words that are all different": _numbers,
    "brackets in brackets": _opens_and_closes,
}
"""Makers of a text of a given length, by name."""
