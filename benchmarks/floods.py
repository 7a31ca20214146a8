"""Long and repetitive texts, such as no model should write: where a reader is slow at all, it is with one of these."""

from collections.abc import Callable, Iterator

from router.protocol.decision import EarlyReader, parse_decision
from router.protocol.turns import parse_turn

# fmt: off
PIECES = (
    "<search>", "<search></search>", "<search>a?</search>", "</sea", "<", "< ", "<stop", "<stop>", "<think>",
    "</think>", "<think></think>", "<query", "<query>", "<answer>", "<evidence>", "<evidence>a", "<search_results>",
    "[", "{", "(", '["', "['", '"', "'", "“", "\\", '\\"', '",', '"\n', '": ', '"x": ', '{"a":', '["a?", ',
    '{"query": "a?"}, ', "=", "Q", "Q ", "&", "&amp;", "`", "```", "x", "x ", " ", "\n", "\n ", ", ", ",\n", "- ",
    "1. ", "? ", "?, ", "a?\n", "a\n", "- a\n",
)
"""What they repeat."""
# fmt: on
_BEFORE = "", '<search>["', "<answer>a</answer><evidence>"
_PIECE = 100


def floods(chars: int) -> Iterator[str]:
    """Texts of so many characters."""
    for before in _BEFORE:
        for piece in PIECES:
            yield (before + piece * (chars // len(piece) + 1))[:chars]


def _read_early(text: str) -> None:
    reader = EarlyReader(8, lambda _certain: None)
    for start in range(0, len(text), _PIECE):
        reader.feed(text[start : start + _PIECE])


READERS: dict[str, Callable[[str], object]] = {
    "decision": lambda text: parse_decision(text, limit=8),
    "turn": parse_turn,
    "early": _read_early,
}
"""Of what models write, by name."""
