"""Outputs that no model should write, for every parser: `OUTPUTS` is a strategy, `FLOODS` are long and repetitive."""

from hypothesis import strategies as st

# fmt: off
_FRAGMENTS = [
    "<search>", "</search>", "<stop/>", "<stop>", "</stop>", "<think>", "</think>", "<answer>", "</answer>",
    "<evidence>", "</evidence>", "<search_results>", "</search_results>", "<documents>", "<query>", "</sea", "<",
    "</", ">", "```json", "```", "[", "]", "{", "}", "(", ")", '"', "'", "“", "”", "\\", "\\u12", "\\ud83d", ",", ":",
    "?", "a?", "1. ", "- ", "queries", "null", "&lt;", "&amp;", "Enough evidence", " ", "\n", "\ud83d", "\x00",
]
_PIECES = [
    "<search>", "<search></search>", "<search>a?</search>", "</sea", "<", "< ", "<stop", "<stop>", "<think>",
    "</think>", "<think></think>", "<query", "<query>", "<answer>", "<evidence>", "<evidence>a", "<search_results>",
    "[", "{", "(", '["', "['", '"', "'", "“", "\\", '\\"', '",', '"\n', '": ', '"x": ', '["a?", ',
    '{"query": "a?"}, ', "=", "Q", "Q ", "&", "&amp;", "`", "```", "x", "x ", " ", "\n", "\n ", ", ", ",\n", "- ",
    "1. ", "? ", "?, ", "a?\n", "a\n", "- a\n",
]
# fmt: on
OUTPUTS = st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=8), max_size=40).map("".join)
FLOODS = [piece * (200_000 // len(piece)) for piece in _PIECES]
FLOODS += ["<search>" * 100_000, "[" * 500_000, '{"a":' * 200_000, "<think>" * 150_000, '["' * 250_000]
