"""Parsing of an executor's turn from its output: one search, or the report (TBSS 3.1). Executors
with tools may also open a document or call a tool.

Parsing never raises: every text gives a turn, in time that is linear in the text.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from router.errors import JSON_ERRORS
from router.frozen import Frozen
from router.models.model import encodable
from router.protocol.evidence import NO_EVIDENCE, Report
from router.protocol.sub_queries import own_text, quoted_strings, search_blocks
from router.protocol.tags import (
    Block,
    Malformed,
    blocks,
    one_line,
    without_thinking,
)

MAX_POINTS = 3
"""Max points (short statements) in a report's evidence."""

_ANSWER_TAG = re.compile(r"<\s*+/?\s*+answer\s*+>", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+•–]|\(?\d{1,2}[.)])(?:\s+|$)")


class SearchTurn(Frozen):
    """A turn that searches."""

    query: str
    ignored: int
    """Number of further queries in the turn, in other blocks or as further items of a list."""


class ReportTurn(Frozen):
    """A turn that reports. It ends the conversation."""

    report: Report


class AccessTurn(Frozen):
    """A turn that opens a document."""

    document: str
    """Name or title of the document, as a search has shown it."""
    query: str
    """Text to look for in the document."""


class CallTurn(Frozen):
    """A turn that calls a tool."""

    tool: str
    arguments: str
    """The arguments as the model wrote them, which may be invalid JSON."""


ExecutionTurn = SearchTurn | AccessTurn | CallTurn | ReportTurn | Malformed


def parse_turn(text: str, cut: bool = False) -> ExecutionTurn:
    """Parse an executor's turn. `cut`: whether the length limit ended `text`.

    If a turn contains both a search and a report, only the one that ends first counts, because a
    report after a search cannot be based on the search's results. If an `<escalate to="…">` block
    names a manager, the turn is a report with `escalate_to`; a report before the block is kept.
    """
    own, cut = own_text(text, cut=cut)
    searches, search = first_search(own, cut)
    if search:
        own = own[: search[0]]
        cut = False
    for block in blocks(own, "escalate", "to"):
        if block.named:
            before = _report(own[: block.start], cut=False)
            report = Report(one_line(block.body), ())
            if isinstance(before, ReportTurn):
                report = before.report
            answer = report.answer or NO_EVIDENCE.answer
            return ReportTurn(Report(answer, report.evidence, escalate_to=block.named))
    turn = _report(own, cut=cut)
    if isinstance(turn, Malformed) and searches:
        return search[1] if search else Malformed("no complete query in the search block")
    return turn


_ACTION = re.compile(
    r"""<\s{0,9}(?:(access)\s{1,9}document|call\s{1,9}tool)"""
    r"""\s{0,9}=\s{0,9}(["'])([^<>]{1,2000}?)\2\s{0,9}>""",
    re.IGNORECASE,
)
_ACTION_END = re.compile(r"<\s{0,9}/\s{0,9}(?:access|call)\s{0,9}>", re.IGNORECASE)
_MAX_ACTION_START = 200_000
_MAX_BODY = 20_000
"""`_MAX_ACTION_START`: max position of the first `<access>` or `<call>` tag. `_MAX_BODY`: max
characters between this tag and its closing tag.
"""


def parse_action_turn(
    usual: Callable[[str, bool], ExecutionTurn], text: str, cut: bool = False
) -> ExecutionTurn:
    """Parse the turn of an executor that may open documents and call tools. If the turn contains
    several actions (searches, reports, opened documents, tool calls), the first complete one
    counts.

    `usual`: the parser of the other kinds of turns, such as `parse_turn`. `cut`: whether the length
    limit ended `text`.
    """
    visible = without_thinking(text)
    action = _ACTION.search(visible, 0, _MAX_ACTION_START)
    if action is None:
        return usual(text, cut)
    before = usual(visible[: action.start()], False)
    if not isinstance(before, Malformed):
        return before
    end = _ACTION_END.search(visible, action.end(), action.end() + _MAX_BODY)
    if end is None and (cut or len(visible) - action.end() > _MAX_BODY):
        return Malformed("the call was cut off")
    name = one_line(action[3])
    body = visible[action.end() : end.start() if end else None].strip()
    if not action[1]:
        # Quotes are not unescaped, because they would end strings in the JSON.
        for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
            body = body.replace(entity, character)
        return CallTurn(name, encodable(body).strip("`").removeprefix("json").strip())
    if query := one_line(body):
        return AccessTurn(name, query)
    return Malformed("nothing to look for in the document")


def first_search(own: str, cut: bool) -> tuple[bool, tuple[int, SearchTurn] | None]:
    """Return two values: whether `own` contains any `<search>` block, and the first block with a
    query. The second value is a pair: the position of the block in `own`, and the turn. It is None
    if no block has a query.
    """
    blocks_found = search_blocks(own, cut=cut)
    searches = [block for block in blocks_found if block.questions]
    if not searches:
        return bool(blocks_found), None
    ignored = sum(len(block.questions) for block in searches) - 1
    return True, (searches[0].start, SearchTurn(searches[0].questions[0], ignored))


def _report(own: str, *, cut: bool) -> ReportTurn | Malformed:
    evidence = list(blocks(own, "evidence"))
    if not evidence:
        if next(blocks(own, "answer"), None):
            return Malformed("the report has no evidence")
        return Malformed("neither a search block nor a report")
    # Look for the answer only before the evidence, which ends an answer without a closing tag.
    answers = [block.body for block in blocks(own[: evidence[0].start], "answer")]
    answer = next(filter(None, map(one_line, answers)), "")
    if not answer:
        if answers:
            return Malformed("the answer is empty")
        return Malformed("the report has no answer before its evidence")
    later = next((block.start for block in blocks(own[evidence[0].start :], "answer")), len(own))
    evidence = [block for block in evidence if block.start < evidence[0].start + later]
    if cut and not evidence[-1].closed:
        return Malformed("the evidence was cut off")
    points = _points(evidence)
    return ReportTurn(Report(answer, points)) if points else Malformed("the evidence is empty")


def _points(evidence: Sequence[Block]) -> tuple[str, ...]:
    points = (
        one_line(point)
        for block in evidence
        for point in _split(_ANSWER_TAG.split(block.body, 1)[0])
    )
    return tuple(point for point in points if any(map(str.isalnum, point)))[:MAX_POINTS]


def _split(body: str) -> list[str]:
    """Split the text of the evidence into points: the items of a JSON list or of a bulleted list,
    or the lines of the text if there are at most `MAX_POINTS` lines. Otherwise the whole text is
    one point.
    """
    if body.startswith("[") and (listed := [string.text for string in quoted_strings(body)]):
        return listed
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    if not any(map(_BULLET.match, lines)):
        return lines if len(lines) <= MAX_POINTS else [body]
    items = list[list[str]]()
    for line in lines:
        if bullet := _BULLET.match(line):
            items.append([line[bullet.end() :]])
        elif items:
            items[-1].append(line)
        elif not line.endswith(":"):
            items.append([line])
    return [" ".join(item) for item in items]


_FENCE = re.compile(r"```(?:json|text|plaintext|markdown|xml|html)?", re.IGNORECASE)
_OPENED = re.compile(r"<\s{0,9}answer\s[^<>]{0,200}(?<!/)>", re.IGNORECASE)
_WRAPPER = r"(?:output|response|final_answer|result)"
_TAG = re.compile(
    rf"<\s{{0,9}}/?\s{{0,9}}answer\b[^<>]{{0,200}}>|\A\s*+<{_WRAPPER}>|</{_WRAPPER}>",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"[\s*#_]*+(?:(?:the|final|short)\s+){0,2}answer(?:\s+is)?[\s*_]*+:[\s*_]*+", re.IGNORECASE
)
_BOXED = re.compile(r"\${0,2}\\boxed\{(?:\\text\{([^{}]*)\}|([^{}]*))\}\${0,2}")
_KIND = (
    r"(?:\w{1,20}:)?(?P<kind>search(?:_results)?|stop|access|call|escalate|"
    r"tool_(?:calls?|response)|function(?:_calls?)?|invoke)\b"
)
_CALLING = r"\[TOOL_CALLS\]|<\|(?:python_tag|tool_call|START_ACTION)|<[|｜](?:tool▁|DSML)"
_PROTOCOL = re.compile(
    rf"<\s{{0,4}}/?\s{{0,4}}{_KIND}[^<>]{{0,200}}>|{_CALLING}",
    re.IGNORECASE,
)
"""Matches tags and tokens with which models search, stop or call tools, including the tokens of
their chat templates.
"""
_PROTOCOL_WITHIN = re.compile(
    rf"(?<![\w`\"'“])<\s{{0,4}}{_KIND}[^<>]{{0,200}}>"
    r"(?:[^<]++<\s{0,4}/\s{0,4}(?:\w{1,20}:)?(?P=kind)\s{0,4}>|\s*+\Z)"
    rf"|<\s{{0,4}}/\s{{0,4}}{_KIND.replace('?P<kind>', '?:')}\s{{0,4}}>\s*+\Z"
    rf"|(?<![`\"'“])(?:{_CALLING})",
    re.IGNORECASE,
)
"""Matches markup of `_PROTOCOL` that follows other text: an element with content, or a tag at the
end. Other tags do not match, because an answer may mention them, such as `List<Function>` or HTML's
`<search>`.
"""
_MARKUP = re.compile(
    rf"<[\s/]{{0,18}}(?:[\w:]{{0,40}}\Z|[|｜]|{_KIND}|(?:answer|{_WRAPPER})\b)",
    re.IGNORECASE,
)
_MARKS = ("[tool_calls]", r"\boxed{", r"$\boxed{", r"$$\boxed{")
_LONGEST_JSON = 20_000


def read_answer(text: str) -> str | Malformed:
    r"""Return the answer in an answerer's output: the last `<answer>` with a closing tag, or else
    the text after an `<answer>` without one, or else the value of `answer` in a JSON object, or
    else all text outside of reasoning.

    The answer is unescaped and on one line, without markup around it such as `\boxed{}`. Return
    `Malformed` for an output that is empty, or that is a search or a tool call instead of an
    answer. Never raises, and takes linear time.
    """
    visible = _OPENED.sub("<answer>", without_thinking(text))
    if not visible.strip():
        return Malformed("no output")
    answers = list(blocks(visible, "answer"))
    closed = [block for block in answers if block.closed]
    if answers:
        texts = [block.body for block in closed or answers]
        answer = next(filter(None, map(str.strip, reversed(texts))), "")
        if _PROTOCOL.match(answer):
            return Malformed("a search or tool call within the answer")
        wrapped = _BOXED.fullmatch(answer) or _TAG.match(answer)
        return one_line(_unwrapped(answer) if wrapped else answer)
    bare = _FENCE.sub(" ", visible).strip()
    if _PROTOCOL.match(bare) or _PROTOCOL_WITHIN.search(bare):
        return Malformed("a search or tool call instead of an answer")
    if bare.startswith(("{", "[")) and len(bare) <= _LONGEST_JSON:
        with suppress(*JSON_ERRORS):
            return _from_json(msgspec.json.decode(bare), bare)
    bare = _unwrapped(bare)
    return one_line(_LABEL.sub("", bare, count=1) if _LABEL.match(bare) else bare)


def may_be_markup(beginning: str) -> bool:
    r"""Return whether the content of an `<answer>` may still turn out to be a search or a tool
    call, or to have markup around it that `read_answer` removes, such as `\boxed{}`. `beginning`:
    the part of the content that has arrived.
    """
    words = beginning.casefold()
    return _MARKUP.match(beginning) is not None or any(
        words.startswith(mark) or mark.startswith(words) for mark in _MARKS
    )


def _unwrapped(text: str) -> str:
    return _BOXED.sub(r"\1\2", _TAG.sub(" ", text))


def _from_json(value: Any, text: str) -> str | Malformed:
    """Return the answer in the JSON value `value`, which was read from `text`. Return `text` if the
    value has no field `answer`.
    """
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict):
        named = not {"name", "function"}.isdisjoint(first)
        if "tool_calls" in first or (named and not {"arguments", "parameters"}.isdisjoint(first)):
            return Malformed("a call of a tool instead of an answer")
        answer = first.get("answer", text)
        if answer is None:
            return ""
        return one_line(answer if isinstance(answer, str) else msgspec.json.encode(answer).decode())
    return one_line(text)


def parse_answer(text: str) -> str:
    """Return the same answer as `read_answer`; an empty string if there is none."""
    answer = read_answer(text)
    return "" if isinstance(answer, Malformed) else answer


_TEXT = r"\s?[^<\s][^<]*"
_SEARCH = rf"<search>{_TEXT}</search>"
_REPORT = rf"<answer>{_TEXT}</answer>\s?<evidence>{_TEXT}</evidence>"


def turn_pattern(*, searched: bool, may_search: bool) -> str:
    """Return a regular expression that constrains the executor's next turn: a search if it has not
    searched yet, a report if it may not search again, and otherwise either of them.
    """
    if not searched:
        return _SEARCH
    return f"({_SEARCH}|{_REPORT})" if may_search else _REPORT
