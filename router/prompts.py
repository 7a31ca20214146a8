"""What each role is shown. Prompts run from constant to variable, so that engines can reuse their prefix cache."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from router.markup import element, escape, without_thinking
from router.model import Message
from router.passage import Passage
from router.report import Report

NO_OUTPUT = "(no output)"
LAST_SEARCH = "No searches are left. Write the report now."
CORRECT_DELEGATION = (
    "That was neither a <search> block nor a stop. Write one <search> block that holds one question or a JSON list of "
    "questions, or write <stop/>Enough evidence<stop>."
)
CORRECT_SEARCH = "Search first: write one <search>query</search> block and nothing else."
CORRECT_REPORT = (
    "Write either one <search>query</search> block, or a report: <answer>…</answer> and then <evidence>…</evidence> "
    "with one to three short points."
)


def documents(passages: Sequence[Passage], last: bool) -> str:
    """The executor's view of one search; `last` asks for the report outright."""
    shown = "".join(
        f'<document index="{index}">{element("title", passage.title)}{element("text", passage.text)}</document>'
        for index, passage in enumerate(passages)
    )
    return f"<documents>{shown}</documents>" + (f"\n{LAST_SEARCH}" if last else "")


def search_results(pairs: Sequence[tuple[str, Report]], not_dispatched: Sequence[str] = ()) -> str:
    """The delegator's and the answerer's view of (sub-query, report) pairs (TBSS, Fig. 7)."""
    shown = "".join(
        f'<result index="{index}">{element("request", request)}{element("answer", report.answer)}'
        f"{element('evidence', chr(10).join(report.evidence))}</result>"
        for index, (request, report) in enumerate(pairs)
    )
    if not_dispatched:
        rest = "".join(element("request", request) for request in not_dispatched)
        shown += f"<not_dispatched>Too many sub-queries in one block; ask again if needed: {rest}</not_dispatched>"
    return f"<search_results>{shown}</search_results>"


def answer_request(question: str, pairs: Sequence[tuple[str, Report]]) -> str:
    """The answerer's view: the question and the pairs, nothing else (TBSS 3.1)."""
    return f"{element('question', question)}{search_results(pairs)}"


def request(text: str) -> str:
    """A question or sub-query as the user's turn."""
    return escape(text)


def said(output: str) -> str:
    """A model's turn as it is shown again: without its thinking, and never empty, which many endpoints refuse."""
    return without_thinking(output).strip() or NO_OUTPUT


def without_system_role(messages: Iterable[Message]) -> tuple[Message, ...]:
    """The same conversation for models that know users and assistants only, in turns: whatever stands before, between
    or after the assistant's turns is one user message, the system prompt first.
    """
    told: list[Message] = []
    for own, side in groupby(messages, key=lambda message: message.role == "assistant"):
        turn = list(side)
        told += turn if own else [Message("user", "\n\n".join(message.content for message in turn))]
    return tuple(told)
