"""Malformed outputs of models for every parser: `OUTPUTS` is a strategy, `FLOODS` are long and
repetitive.
"""

from hypothesis import strategies as st

from tests.router.pathological import PIECES

# fmt: off
_FRAGMENTS = [
    "<search>", "</search>", "<stop/>", "<stop>", "</stop>", "<think>", "</think>", "<answer>", "</answer>",
    "<evidence>", "</evidence>", "<search_results>", "</search_results>", "<documents>", "<query>", "</sea", "<",
    "</", ">", "```json", "```", "[", "]", "{", "}", "(", ")", '"', "'", "“", "”", "\\", "\\u12", "\\ud83d", ",", ":",
    "?", "a?", "1. ", "- ", "queries", "null", "&lt;", "&amp;", "Enough evidence", " ", "\n", "\ud83d", "\x00",
]
# fmt: on
OUTPUTS = st.lists(st.sampled_from(_FRAGMENTS) | st.text(max_size=8), max_size=40).map("".join)
FLOODS = [piece * (200_000 // len(piece)) for piece in PIECES]
FLOODS += [
    "<search>" * 100_000,
    "[" * 500_000,
    '<search manager="' * 40_000,
    '{"a":' * 200_000,
    "<think>" * 150_000,
    '["' * 250_000,
]
