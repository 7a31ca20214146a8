"""The answerer's output, read: the text of its answer and nothing around it."""

import re

from router.markup import blocks, one_line, without_thinking

_FENCE = re.compile(r"```(?:json|text|plaintext|markdown|xml|html)?", re.IGNORECASE)
_TAG = re.compile(r"<\s*+/?\s*+answer\s*+>", re.IGNORECASE)
_LABEL = re.compile(r"[\s*#_]*+(?:(?:the|final|short)\s+){0,2}answer(?:\s+is)?[\s*_]*+:[\s*_]*+", re.IGNORECASE)


def parse_answer(text: str) -> str:
    """The last closed `<answer>`, else the rest after an unclosed one, else all that is not thinking.

    Unescaped and on one line; empty where there is nothing. Never raises, in linear time.
    """
    visible = without_thinking(text)
    found = list(blocks(visible, "answer"))
    for candidates in ([block for block in found if block.closed], found):
        if candidates:
            return next((answer for block in reversed(candidates) if (answer := one_line(block.body))), "")
    bare = _TAG.sub(" ", _FENCE.sub(" ", visible))
    return one_line(_LABEL.sub("", bare, count=1) if _LABEL.match(bare) else bare)
