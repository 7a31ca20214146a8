"""An executor's turn, read from its output: one search, or the report (TBSS 3.1).

Reading is total: any text gives a turn, none raises, and the time is linear in the text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from router.malformed import Malformed
from router.markup import Block, blocks, one_line
from router.quoted import quoted_strings
from router.report import Report
from router.search_block import own_text, search_blocks

__all__ = ["ExecutionTurn", "Malformed", "ReportTurn", "Search", "parse_turn"]

MOST_POINTS = 3
"""Points of evidence that a report keeps."""

_ANSWER_TAG = re.compile(r"<\s*+/?\s*+answer\s*+>", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+•–]|\(?\d{1,2}[.)])(?:\s+|$)")


@dataclass(frozen=True, slots=True)
class Search:
    """The turn searches."""

    query: str
    ignored: int
    """Queries that the turn held besides this one: further blocks, or further items of a list."""


@dataclass(frozen=True, slots=True)
class ReportTurn:
    """The turn is the last one."""

    report: Report


ExecutionTurn = Search | ReportTurn | Malformed


def parse_turn(text: str, *, cut: bool = False) -> ExecutionTurn:
    """What the executor wrote; `cut`: the length limit ended `text`.

    Of a search and a report in one turn, the one that comes first counts, provided that it is complete: a report that
    follows a search rests on results that the model has not seen.
    """
    own, cut = own_text(text, cut=cut)
    found = search_blocks(own, cut=cut)
    searches = [block for block in found if block.questions]
    if not searches:
        return _without_search(own, cut, bool(found))
    before = _report(own[: searches[0].start], cut=False)
    if isinstance(before, ReportTurn):
        return before
    return Search(searches[0].questions[0], sum(len(block.questions) for block in searches) - 1)


def _without_search(own: str, cut: bool, tried: bool) -> ReportTurn | Malformed:
    turn = _report(own, cut=cut)
    if isinstance(turn, Malformed) and tried:
        return Malformed("no complete query in the search block")
    return turn


def _report(own: str, *, cut: bool) -> ReportTurn | Malformed:
    evidence = list(blocks(own, "evidence"))
    if not evidence:
        written = next(blocks(own, "answer"), None)
        return Malformed("the report has no evidence" if written else "neither a search block nor a report")
    # Up to the evidence, so that an answer that was not closed ends there.
    answers = [block.body for block in blocks(own[: evidence[0].start], "answer")]
    answer = next(filter(None, map(one_line, answers)), "")
    if not answer:
        return Malformed("the answer is empty" if answers else "the report has no answer before its evidence")
    later = next((block.start for block in blocks(own[evidence[0].start :], "answer")), len(own))
    evidence = [block for block in evidence if block.start < evidence[0].start + later]
    if cut and not evidence[-1].closed:
        return Malformed("the evidence was cut off")
    points = _points(evidence)
    return ReportTurn(Report(answer, points)) if points else Malformed("the evidence is empty")


def _points(evidence: Sequence[Block]) -> tuple[str, ...]:
    points = (one_line(point) for block in evidence for point in _split(_ANSWER_TAG.split(block.body, 1)[0]))
    return tuple(point for point in points if any(map(str.isalnum, point)))[:MOST_POINTS]


def _split(body: str) -> list[str]:
    """Bullets with the lines that go on from them, or a few lines, or else one point."""
    if body.startswith("[") and (listed := [string.text for string in quoted_strings(body)]):
        return listed
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    if not any(map(_BULLET.match, lines)):
        return lines if len(lines) <= MOST_POINTS else [body]
    items: list[list[str]] = []
    for line in lines:
        if bullet := _BULLET.match(line):
            items.append([line[bullet.end() :]])
        elif items:
            items[-1].append(line)
        elif not line.endswith(":"):
            items.append([line])
    return [" ".join(item) for item in items]
