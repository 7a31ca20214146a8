"""The executor: search, read, search again if need be, report (TBSS 3.1)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from router.calls.role import Role
from router.errors import BudgetExhausted, ContextTooLong, UpstreamError
from router.models.model import Completion, Message
from router.protocol import prompts
from router.protocol.evidence import NO_EVIDENCE, Passage, Report
from router.protocol.tags import Malformed
from router.protocol.turns import ReportTurn, Search, parse_turn, turn_pattern
from router.search.context import RunContext
from router.search.retrieval import Retriever
from router.trace.call import Purpose
from router.trace.values import Conversation, Execution, ExecutionOutcome, SearchDone, SearchRecord

_TOKENS_PER_CHARACTER = 1 / 3
"""More than in most text, until the engine has counted."""


class ContextWindow:
    """The conversation of one executor, and what its searches found."""

    def __init__(
        self,
        opening: tuple[Message, ...],
        documents: Callable[[Sequence[Passage], bool], str] = prompts.documents,
        said: Callable[[str], str] = prompts.said,
    ) -> None:
        """`documents`: how a search's passages are told, and that it was the last one. `said`: how a turn is shown
        again.
        """
        self.messages, self._render, self._said = opening, documents, said
        self.searches: list[SearchRecord] = []
        self._documents: list[tuple[int, bool]] = []
        """For each search, where its message stands, and whether it asks for the report."""
        self._rate = _TOKENS_PER_CHARACTER

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and learn from its usage how long the tokens are."""
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (Message("assistant", self._said(output.text)),)

    def tell(self, text: str) -> None:
        """Add a user's turn."""
        self.messages += (Message("user", text),)

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add what a search found; `last` asks for the report outright."""
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.tell(self._render(search.passages, last))

    def fit(self, context_tokens: int, max_tokens: int) -> None:
        """Drop passages until, by estimate, `max_tokens` of `context_tokens` are free to write in, or none is left."""
        while self._characters * self._rate + max_tokens > context_tokens and self.drop():
            pass

    def drop(self) -> bool:
        """Drop the lowest-ranked passage of the latest search that shows any; False where none does."""
        for number, search in reversed(list(enumerate(self.searches))):
            if search.shown:
                self.searches[number] = replace(search, dropped_passages=search.dropped_passages + 1)
                self._render_again(number)
                return True
        return False

    def close(self, text: str) -> None:
        """Ask for the end outright, in the user's last turn or in another one: with `text`, or as documents do."""
        last = self.messages[-1]
        if self._documents and self._documents[-1][0] == len(self.messages) - 1:
            self._documents[-1] = (len(self.messages) - 1, True)
            self._render_again(-1)
        elif last.role == "user" and text not in last.content:
            self.messages = (*self.messages[:-1], Message("user", f"{last.content}\n{text}"))
        elif last.role == "assistant":
            self.tell(text)

    def _render_again(self, number: int) -> None:
        at, last = self._documents[number]
        message = Message("user", self._render(self.searches[number].shown, last))
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    @property
    def _characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


STOP = ("</search>", "</evidence>")


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """How far an executor may go."""

    max_turns: int = 3
    """Assistant turns, the report included (K in TBSS 4.1)."""
    max_searches: int = 2
    top_k: int = 3
    """Passages shown for each search."""
    passage_chars: int = 8000
    """Of a passage's title, and of its text; what is longer is cut."""
    report_chars: int = 2000
    """Of a report's answer, and of each point of its evidence; what is longer is cut."""


class Executes(Protocol):
    """Works on sub-queries: an executor, or one of several."""

    @property
    def report_tokens(self) -> int:
        """What a report has at most."""

    def role(self, context: RunContext) -> Role:
        """The role in a run whose conversations are not led here."""

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """As `Executor.run`."""


class Executor:
    """Works on one sub-query at a time in a context that holds nothing else; any number of runs at once."""

    def __init__(self, role: Role, retriever: Retriever, limits: ExecutorLimits) -> None:
        self._role, self._retriever, self._limits = role, retriever, limits

    @property
    def report_tokens(self) -> int:
        """What a report has at most."""
        return self._role.sampling.max_tokens

    def role(self, _context: RunContext) -> Role:
        """Its role, in any run."""
        return self._role

    async def run(
        self,
        sub_query: str,
        index: int,
        context: RunContext,
        unfinished: "Unfinished | None" = None,
        *,
        instead: bool = False,
    ) -> Execution:
        """Search and report. What goes wrong upstream is not raised, nor that a budget does not suffice: the outcome
        says it, `context.failures` why, and the report is neutral. `unfinished`: where to go on, if anything is there,
        and to leave what has been done, however this ends. `instead`: whether it steps in for another version.
        """
        run = unfinished.work if unfinished else None
        run = run or _Run(self._role.opening(prompts.request(sub_query)))
        if unfinished:
            unfinished.work = run
        run.purpose = "fallback" if instead else "first"
        outcome: ExecutionOutcome = "no_report"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while len(run.outputs) < self._limits.max_turns and run.report is None:
                    await self._turn(run, index, context)
        except TimeoutError:
            outcome = "timed_out"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except UpstreamError as error:
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error
        if run.report is not None:
            outcome = "reported"
        elif (
            outcome == "no_report" and not run.shown.searches
        ):  # one that searches, and then tells nothing, found nothing
            context.failures[index] = self._role.malformed()
        conversation = Conversation(run.shown.messages, tuple(run.outputs))
        return Execution(
            sub_query,
            run.report or NO_EVIDENCE,
            outcome,
            tuple(run.shown.searches),
            conversation,
            self._role.executor_version or "",
        )

    async def _turn(self, run: "_Run", index: int, context: RunContext) -> None:
        if not run.unanswered:
            run.absorb(await self._ask(run, index, context))
        output = run.outputs[-1]
        searches, turn = len(run.shown.searches), len(run.outputs)
        match parse_turn(output.text, cut=output.finish_reason == "length"):
            case Search(query, ignored) if self._may_search(searches, turn):
                (found_passages,) = await self._retriever.search([query], self._limits.top_k)
                passages = tuple(passage.within(self._limits.passage_chars) for passage in found_passages)
                found = SearchRecord(query, passages, ignored)
                run.shown.documents(found, last=not self._may_search(searches + 1, turn + 1))
                context.on_event(SearchDone(index, query, tuple(passage.title for passage in passages)))
            case ReportTurn(report) if searches:
                run.report = report.within(self._limits.report_chars)
            case Search():
                run.correct(prompts.LAST_SEARCH)
            case ReportTurn() | Malformed() if not searches:
                run.correct(prompts.CORRECT_SEARCH)
            case _:
                run.correct(prompts.CORRECT_REPORT if self._may_search(searches, turn + 1) else prompts.LAST_SEARCH)

    async def _ask(self, run: "_Run", index: int, context: RunContext) -> Completion:
        """The model's next turn. Passages give way, one at a time, until its context holds the rest."""
        purpose: Purpose = "correction" if run.corrected else run.purpose
        # No stop string in a correction: one that was met while the model was thinking would be met again.
        stop = () if run.corrected else STOP
        searches, turn = len(run.shown.searches), len(run.outputs) + 1
        pattern = turn_pattern(searched=bool(searches), may_search=self._may_search(searches, turn))
        if self._role.context_tokens is not None:
            run.shown.fit(self._role.context_tokens, self._role.sampling.max_tokens)
        while True:
            try:
                return await self._role.ask(
                    run.shown.messages,
                    stop,
                    context.ledger,
                    purpose=purpose,
                    sub_query=index,
                    pattern=pattern,
                    until=context.search_deadline,
                )
            except ContextTooLong:
                if not run.shown.drop():
                    raise
                purpose = "shortened"

    def _may_search(self, searches: int, turn: int) -> bool:
        """Whether, after so many searches, another one in this turn (from 1) would leave a turn to report in."""
        return searches < self._limits.max_searches and turn < self._limits.max_turns


@dataclass(slots=True)
class Unfinished:
    """What is left of an executor's run that did not come to its report, for another one of the same version."""

    work: "_Run | None" = None

    @property
    def turns(self) -> int:
        """How many the model has written."""
        return len(self.work.outputs) if self.work else 0

    @property
    def searches(self) -> tuple[SearchRecord, ...]:
        """Those that have been done."""
        return tuple(self.work.shown.searches) if self.work else ()


class _Run:
    """One executor run as it grows."""

    def __init__(self, opening: tuple[Message, ...]) -> None:
        self.shown = ContextWindow(opening)
        self.outputs: list[Completion] = []
        self.report: Report | None = None
        self.purpose: Purpose = "first"
        self.corrected = False

    def absorb(self, output: Completion) -> None:
        self.outputs.append(output)
        self.shown.absorb(output)
        self.corrected = False

    @property
    def unanswered(self) -> bool:
        """Whether the model has written a turn that nothing came of: somebody stopped there."""
        return bool(self.outputs) and self.shown.messages[-1].role == "assistant"

    def correct(self, text: str) -> None:
        self.shown.tell(text)
        self.corrected = True
