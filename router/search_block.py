"""The `<search>` blocks of a turn, for delegator and executor alike."""

import re
from dataclasses import dataclass

from router.markup import Block, blocks, without_thinking
from router.question_list import read_questions

_RESULTS = re.compile(r"<\s*+(?:search_results|results?|documents?|information|tool_response)\b", re.IGNORECASE)
_OTHER_TAG = re.compile(r"<\s*+/?\s*+(?:stop|answer)\s*+/?\s*+>", re.IGNORECASE)
_CLOSING_TAG = "</search>"
_FIRST_TAG = re.compile(r"<\s{0,9}+/?+\s{0,9}+(?:search|stop|answer|evidence)\b", re.IGNORECASE)
_FURTHEST_TAG, _LONGEST_OWN = 200_000, 20_000
"""Characters: where the first tag stands at the latest, and how much is read from there on; far more than any decision
or report has, and so little that no text takes longer than some milliseconds."""


@dataclass(frozen=True, slots=True)
class SearchBlock:
    """One block, read."""

    start: int
    """Where its opening tag begins in the turn's own text."""
    empty: bool
    """True where there is nothing at all in it."""
    questions: tuple[str, ...]
    """What it asks for; empty also where nothing could be read."""


def own_text(text: str, *, cut: bool) -> tuple[str, bool]:
    """What the model itself decided, and whether that was cut by the length limit.

    Thinking is left out, and so is what stands before the first tag. So is everything from the first result tag after a
    search on: a model that was not halted there goes on to invent the results, and what it decides upon them is not
    about anything that was found. A text without an end is cut.
    """
    visible = without_thinking(text)
    tag = _FIRST_TAG.search(visible, 0, _FURTHEST_TAG)
    start = tag.start() if tag else len(visible)
    visible, cut = visible[start : start + _LONGEST_OWN], cut or len(visible) - start > _LONGEST_OWN
    first = next(blocks(visible, "search"), None)
    invented = _RESULTS.search(visible, first.start) if first else None
    return (visible[: invented.start()], False) if invented else (visible, cut)


def search_blocks(own: str, *, cut: bool) -> list[SearchBlock]:
    """All blocks of `own_text`. Unless `cut`, an unclosed last one counts as closed: a stop string ended it."""
    found = list(blocks(own, "search"))
    return [_read(block, ended=number == len(found) and not cut) for number, block in enumerate(found, start=1)]


def _read(block: Block, *, ended: bool) -> SearchBlock:
    """A block that another tag ended is often a mere mention of the tag, so it is read as a partial one."""
    body, ended = block.body, ended or block.closed
    other = _OTHER_TAG.search(body)
    if other is not None and (not block.closed or other.start() == 0):
        body, ended = body[: other.start()], False
    tail = "".join(body[body.rfind("<") :].split()).casefold() if "<" in body[-20:] else ""
    if len(tail) > 1 and _CLOSING_TAG.startswith(tail):
        body, ended = body[: body.rfind("<")], True
    return SearchBlock(block.start, not body.strip(), tuple(read_questions(body, partial=not ended)))
