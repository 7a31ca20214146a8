"""A model that searches, reads and writes in turns, all in one context: what executors and
single agents share.
"""

import dataclasses
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from router.calls import Role
from router.errors import ContextTooLong, ToolFailed
from router.models import Completion, Message
from router.models.model import Function
from router.protocol import Passage, Report, prompts
from router.protocol.turns import (
    AccessTurn,
    CallTurn,
    ExecutionTurn,
    ReportTurn,
    SearchTurn,
    parse_hands,
    turn_pattern,
)
from router.search.context import RunContext
from router.search.retrieval import Retriever
from router.search.tools import Tool, Tools, offered, passages_of
from router.trace import Conversation, turns
from router.trace.call import Purpose
from router.trace.values import SearchDone, SearchRecord, ToolCall

_Look = Callable[[], Awaitable[SearchRecord]]
_TOKENS_PER_CHARACTER = 1 / 3
"""More than in most text, until the engine has counted."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Limits of an executor's work on one sub-query."""

    max_turns: int = 3
    """Assistant turns, the report included (K in TBSS 4.1)."""
    max_searches: int = 2
    top_k: int = 3
    """Passages shown for each search."""
    passage_chars: int = 8000
    """Of a passage's title, and of its text; what is longer is cut."""
    report_chars: int = 2000
    """Of a report's answer, and of each point of its evidence; what is longer is cut."""
    access_k: int = 0
    """Passages shown of a document that is opened, which counts as a search; 0 where none may
    be.
    """
    access_chars: int = 25_000
    """Of the passages of such a document, and of what a tool returns, at most."""


@dataclass(frozen=True, slots=True)
class Form:
    """The protocol of a model that searches: what it is told, and how its turns are read."""

    parse: Callable[[str, bool], ExecutionTurn]
    """Read a turn; True where the length limit cut it."""
    stop: tuple[str, ...]
    documents: Callable[[Sequence[Passage], bool], str]
    """Render the passages of a search; True where it was the last one."""
    correction: str
    """The reply to a malformed turn."""
    no_searches: str
    """The reply to a search too many, and to a malformed turn where none are left."""
    search_first: str = ""
    """The reply to whatever comes before the first search; empty where it may answer at once."""
    persists: bool = False
    """True where it is corrected while turns are left; else a second malformed turn in a row is
    the last.
    """
    raw: bool = False
    """True where it writes a single turn, thinking included, into which the results are put
    (Search-R1).
    """


def _with_hands(form: Form, *, tools: bool) -> Form:
    """The form of a model that also opens documents or calls tools."""
    return dataclasses.replace(
        form,
        parse=partial(parse_hands, form.parse),
        stop=(*form.stop, "</access>", "</call>"),
        documents=partial(prompts.documents, named=True),
        correction=prompts.CORRECT_CALL if tools else form.correction,
        search_first=prompts.CORRECT_FIRST_CALL if tools else form.search_first,
    )


class ContextWindow:
    """One model's conversation as it grows, with what its searches found."""

    def __init__(self, opening: tuple[Message, ...], form: Form) -> None:
        self.messages = opening
        self._form = form
        self.outputs: list[Completion] = []
        self.searches: list[SearchRecord] = []
        self.report: Report | None = None
        self.tools: dict[str, tuple[Tool, Function]] | None = None
        """By the names that the model may write; None while they are not known."""
        self.corrected = self.gave_up = False
        self._documents: list[tuple[int, bool]] = []
        """For each search, where its message stands, and whether it asks for the report."""
        self._rate = _TOKENS_PER_CHARACTER

    @property
    def conversation(self) -> Conversation:
        """All that was said."""
        return Conversation(self.messages, tuple(self.outputs))

    @property
    def unanswered(self) -> bool:
        """True where the model has written a turn that nothing came of yet: somebody stopped
        there.
        """
        return bool(self.outputs) and self.messages[-1].role == "assistant"

    @property
    def full(self) -> bool:
        """True where the context has no room for anything of what was found last."""
        return (
            bool(self.searches) and bool(self.searches[-1].passages) and not self.searches[-1].shown
        )

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and learn from its usage how long the tokens are."""
        self.outputs.append(output)
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (
            Message("assistant", output.text if self._form.raw else prompts.said(output.text)),
        )

    def tell(self, text: str) -> None:
        """Add a user's turn."""
        self.messages += (Message("user", text),)

    def correct(self, text: str) -> None:
        """Say what is wanted; a second time in a row, the model has given up unless its form
        persists.
        """
        if self.corrected and not self._form.persists:
            self.gave_up = True
        else:
            self.corrected = True
            self.tell(text)

    def offer(self, tools: dict[str, tuple[Tool, Function]], text: str) -> None:
        """Let the model call these, of which the system prompt tells with `text`."""
        system, *others = self.messages
        self.tools = tools
        self.messages = (Message("system", f"{system.content}\n\n{text}".strip()), *others)

    def named(self, name: str) -> str | None:
        """The document of that name or title which a search has found; None where there is none."""
        found = (
            each for search in self.searches if search.call is UNSET for each in search.passages
        )
        return next((each.document for each in found if name in (each.document, each.title)), None)

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add what a search found; `last` asks for the report outright."""
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.tell(self._rendered(search, last))
        self.corrected = False

    def fit(self, context_tokens: int, max_tokens: int) -> None:
        """Drop passages until, by estimate, `max_tokens` of `context_tokens` are free to write
        in, or none is left.
        """
        while self._characters * self._rate + max_tokens > context_tokens and self.drop():
            pass

    def drop(self) -> bool:
        """Drop the lowest-ranked passage of the latest search that shows any; False where none
        does.
        """
        for number, search in reversed(list(enumerate(self.searches))):
            if search.shown:
                self.searches[number] = replace(
                    search, dropped_passages=search.dropped_passages + 1
                )
                self._render_again(number)
                return True
        return False

    def close(self, text: str) -> None:
        """Ask for the end outright, in the user's last turn or in another one: with `text`, or
        as documents do.
        """
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
        message = Message("user", self._rendered(self.searches[number], last))
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    def _rendered(self, search: SearchRecord, last: bool) -> str:
        if search.call is UNSET or search.call.error is None:
            return self._form.documents(search.shown, last)
        told = prompts.CALL_FAILED if search.call.server else prompts.CALL_REFUSED
        return told + (f"\n{self._form.no_searches}" if last else "")

    @property
    def _characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


class Agent:
    """Leads any number of such conversations at once."""

    def __init__(
        self,
        role: Role,
        retriever: Retriever | None,
        limits: ExecutorLimits,
        form: Form,
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: None where no search is run. `tools`, and documents to open, are for
        executors that report.
        """
        self._hands = bool(form.search_first) and bool(tools or limits.access_k)
        if self._hands:
            form = _with_hands(form, tools=tools is not None)
        self.role = role
        self.limits = limits
        self.form = form
        self._retriever = retriever
        self._tools = tools

    def begin(self, text: str) -> ContextWindow:
        """A conversation about a question or sub-query."""
        if self.form.raw:  # the prompt is no system prompt, but what the user's turn begins with
            return ContextWindow(
                (Message("user", prompts.searcher_request(self.role.system, text)),), self.form
            )
        return ContextWindow(self.role.opening(prompts.request(text)), self.form)

    def goes_on(self, work: ContextWindow) -> bool:
        """True where another turn may bring it nearer to a report."""
        return (
            work.report is None and not work.gave_up and len(work.outputs) < self.limits.max_turns
        )

    async def turn(
        self,
        work: ContextWindow,
        context: RunContext,
        index: int | None = None,
        purpose: Purpose = "first",
    ) -> None:
        """Take the next turn. `index`: the sub-query's number; None for the question itself. Raises
        `BudgetExhausted` and `UpstreamError`.
        """
        if self._hands and work.tools is None:
            await self._equip(work)
        if not work.unanswered:
            await self.ask(
                work, context, until=context.search_deadline, index=index, purpose=purpose
            )
        output = work.outputs[-1]
        match self.form.parse(output.text, output.finish_reason == "length"):
            case SearchTurn(query, ignored) if self._retriever and self._may_search(work):
                await self._look(work, context, index, query, partial(self._search, query, ignored))
            case AccessTurn(name, text) if self.limits.access_k and self._may_search(work):
                if document := work.named(name):
                    query = f"{text} (in {document})"
                    await self._look(
                        work, context, index, query, partial(self._access, query, document, text)
                    )
                else:
                    work.correct(prompts.CORRECT_ACCESS)
            case CallTurn(name, arguments) if self._tools and self._may_search(work):
                query = f"{name} {arguments}"
                await self._look(
                    work, context, index, query, partial(self._call, work, query, name, arguments)
                )
            case SearchTurn() if self._retriever or not self._tools:
                work.correct(self.form.no_searches)
            case _ if self.form.search_first and not work.searches:
                work.correct(self.form.search_first)
            case ReportTurn(report):
                work.report = report
            case _:
                work.correct(
                    self.form.correction
                    if self._may_search(work, turns=1)
                    else self.form.no_searches
                )

    async def _equip(self, work: ContextWindow) -> None:
        """Tell the model of its tools, and of documents that it may open."""
        tools = offered(await self._tools.available()) if self._tools else {}
        functions = [function for _, function in tools.values()]
        told = [prompts.ACCESS] if self.limits.access_k else []
        told += [prompts.CALLS] if tools else []
        told += [prompts.CALLS_ALONE] if tools and not self._retriever else []
        told += [prompts.tools(functions)] if tools and not self.role.tool_calls else []
        work.offer(tools, "\n\n".join(told))

    async def _look(
        self, work: ContextWindow, context: RunContext, index: int | None, query: str, look: _Look
    ) -> None:
        """Put the next search, of whatever kind, into the conversation: the one on record, or
        what `look` finds.
        """
        agent = turns.Agent(self.role.name, index)
        search = context.ledger.search_before(agent, query) or await look()
        context.ledger.searched(agent, search)
        work.documents(search, last=not self._may_search(work, searches=1, turns=1))
        titles = tuple(passage.title for passage in search.passages)
        context.on_event(SearchDone(-1 if index is None else index, query, titles))

    async def _search(self, query: str, ignored: int) -> SearchRecord:
        assert self._retriever is not None
        (found,) = await self._retriever.search([query], self.limits.top_k)
        return SearchRecord(
            query, tuple(passage.within(self.limits.passage_chars) for passage in found), ignored
        )

    async def _access(self, query: str, document: str, text: str) -> SearchRecord:
        """Open a document; what makes it too long are the passages that fit worst."""
        assert self._retriever is not None
        (found,) = await self._retriever.search([text], self.limits.access_k, document)
        left = self.limits.access_chars
        fitting = set[str]()
        for passage in sorted(found, key=lambda each: -each.score):
            left -= len(passage.text)
            fitting |= {passage.id} if left >= 0 else set()
        passages = (
            passage.within(self.limits.passage_chars) for passage in found if passage.id in fitting
        )
        return SearchRecord(query, tuple(passages))

    async def _call(self, work: ContextWindow, query: str, name: str, text: str) -> SearchRecord:
        """Call a tool. That it fails, or that there is none of that name and for these
        arguments, is on record.
        """
        assert self._tools is not None
        tool, _ = (work.tools or {}).get(name, (None, None))
        arguments = tool.arguments(text) if tool else None
        if tool is None or arguments is None:
            return SearchRecord(query, (), call=ToolCall("", "", text, error="no tool takes it"))
        began = time.monotonic()
        passages = tuple[Passage, ...]()
        error = None
        try:
            output = await self._tools.call(tool, arguments)
            passages = passages_of(tool, query, output, self.limits.access_chars)
        except ToolFailed as failed:
            error = str(failed)
        call = ToolCall(tool.server, tool.name, text, time.monotonic() - began, error)
        return SearchRecord(query, passages, call=call)

    async def ask(
        self,
        work: ContextWindow,
        context: RunContext,
        *,
        until: float,
        index: int | None = None,
        purpose: Purpose = "first",
    ) -> Completion:
        """Let the model write. Passages give way, one at a time, until its context holds the
        rest.
        """
        role = self.role
        form = self.form
        # No stop string in a correction: one that was met while the model was thinking would be met
        # again. But a raw turn must not go on to invent results.
        stop = form.stop if form.raw or not work.corrected else ()
        purpose = "correction" if work.corrected else purpose
        pattern = None
        tools = (
            tuple(function for _, function in (work.tools or {}).values())
            if role.tool_calls
            else ()
        )
        if form.search_first and not self._hands:  # a call's arguments have no pattern
            pattern = turn_pattern(
                searched=bool(work.searches), may_search=self._may_search(work, turns=1)
            )
        asked = partial(
            role.ask, sub_query=index, pattern=pattern, tools=tools, raw=form.raw, until=until
        )
        if role.context_tokens is not None:
            work.fit(role.context_tokens, role.sampling.max_tokens)
        while True:
            messages = prompts.continued(work.messages) if form.raw else work.messages
            try:
                output = await asked(messages, stop, context.ledger, purpose=purpose)
            except ContextTooLong:
                if not work.drop():
                    raise
                purpose = "shortened"
            else:
                work.absorb(output)
                return output

    def _may_search(self, work: ContextWindow, *, searches: int = 0, turns: int = 0) -> bool:
        """True where, after so many more searches and turns, another search would leave a turn
        to report in.
        """
        within = len(work.searches) + searches < self.limits.max_searches
        return within and len(work.outputs) + turns < self.limits.max_turns and not work.full
