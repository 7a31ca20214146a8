"""A model that searches, reads and writes in turns, within one context."""

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
    parse_action_turn,
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
"""A high estimate, used until the engine has counted a prompt."""


@dataclass(frozen=True, slots=True)
class ExecutorLimits:
    """Limits of an executor's work on one sub-query."""

    max_turns: int = 3
    """Max assistant turns, the report included (K in TBSS 4.1)."""
    max_searches: int = 2
    top_k: int = 3
    """Passages shown for each search."""
    passage_chars: int = 8000
    """Max characters of a passage's title, and of its text; the rest is cut."""
    report_chars: int = 2000
    """Max characters of a report's answer, and of each point of its evidence; the rest is cut."""
    access_k: int = 0
    """Max passages shown of an opened document, which counts as a search; 0 to forbid opening."""
    access_chars: int = 25_000
    """Max characters of an opened document's passages, and of a tool's output."""


@dataclass(frozen=True, slots=True)
class Form:
    """The protocol of a model that searches: the texts it is shown, and the parser of its turns."""

    parse: Callable[[str, bool], ExecutionTurn]
    """Parse a turn; True if the length limit cut it."""
    stop: tuple[str, ...]
    documents: Callable[[Sequence[Passage], bool], str]
    """Render the passages of a search; True if no search is left."""
    correction: str
    """The reply to a malformed turn."""
    no_searches: str
    """The reply to a search beyond the limit, and to a malformed turn when no search is left."""
    search_first: str = ""
    """The reply to any other turn before the first search; empty if the model may answer without
    one.
    """


def _with_actions(form: Form, *, tools: bool) -> Form:
    """Return the form of a model that also opens documents or calls tools."""
    return dataclasses.replace(
        form,
        parse=partial(parse_action_turn, form.parse),
        stop=(*form.stop, "</access>", "</call>"),
        documents=partial(prompts.documents, named=True),
        correction=prompts.CORRECT_CALL if tools else form.correction,
        search_first=prompts.CORRECT_FIRST_CALL if tools else form.search_first,
    )


class ContextWindow:
    """One model's growing conversation, with the passages that its searches found."""

    def __init__(self, opening: tuple[Message, ...], form: Form) -> None:
        self.messages = opening
        self._form = form
        self.outputs: list[Completion] = []
        self.searches: list[SearchRecord] = []
        self.report: Report | None = None
        self.tools: dict[str, tuple[Tool, Function]] | None = None
        """The tools by the names that the model may write; None until they are listed."""
        self.corrected = False
        self._documents: list[tuple[int, bool]] = []
        """For each search, the position of its message, and whether it asks for the report."""
        self._rate = _TOKENS_PER_CHARACTER

    @property
    def conversation(self) -> Conversation:
        """The conversation so far."""
        return Conversation(self.messages, tuple(self.outputs))

    @property
    def full(self) -> bool:
        """True if the context has no room for any passage of the last search."""
        last = self.searches[-1] if self.searches else None
        return last is not None and bool(last.passages) and not last.shown

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and estimate the length of tokens from its usage."""
        self.outputs.append(output)
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (Message("assistant", prompts.shown_turn(output.text)),)

    def add_user_turn(self, text: str) -> None:
        """Add a user turn."""
        self.messages += (Message("user", text),)

    def correct(self, text: str) -> None:
        """Tell the model what is wanted."""
        self.corrected = True
        self.add_user_turn(text)

    def offer(self, tools: dict[str, tuple[Tool, Function]], text: str) -> None:
        """Let the model call `tools`, which `text` describes in the system prompt."""
        system, *others = self.messages
        self.tools = tools
        self.messages = (Message("system", f"{system.content}\n\n{text}".strip()), *others)

    def named(self, name: str) -> str | None:
        """Return the document with this name or title, if a search has found it."""
        for search in self.searches:
            for passage in search.passages if search.call is UNSET else ():
                if name in (passage.document, passage.title):
                    return passage.document
        return None

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add the result of a search; `last` asks for the report."""
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.add_user_turn(self._rendered(search, last))
        self.corrected = False

    def fit(self, context_tokens: int, max_tokens: int) -> None:
        """Drop passages until, by estimate, `max_tokens` of `context_tokens` are free for output,
        or no passage is left.
        """
        while self._characters * self._rate + max_tokens > context_tokens and self.drop():
            pass

    def drop(self) -> bool:
        """Drop the lowest-ranked passage of the latest search that shows any; return False if none
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
        """Ask for the answer now, in the last user turn or a new one: with `text`, or by the
        documents' own request.
        """
        last = self.messages[-1]
        if self._documents and self._documents[-1][0] == len(self.messages) - 1:
            self._documents[-1] = (len(self.messages) - 1, True)
            self._render_again(-1)
        elif last.role == "user" and text not in last.content:
            self.messages = (*self.messages[:-1], Message("user", f"{last.content}\n{text}"))
        elif last.role == "assistant":
            self.add_user_turn(text)

    def _render_again(self, number: int) -> None:
        at, last = self._documents[number]
        message = Message("user", self._rendered(self.searches[number], last))
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    def _rendered(self, search: SearchRecord, last: bool) -> str:
        if search.call is UNSET or search.call.error is None:
            return self._form.documents(search.shown, last)
        failure = prompts.CALL_FAILED if search.call.server else prompts.CALL_REFUSED
        return failure + (f"\n{self._form.no_searches}" if last else "")

    @property
    def _characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


class Agent:
    """Runs the turns of such conversations. One instance serves any number of them concurrently."""

    def __init__(
        self,
        role: Role,
        retriever: Retriever | None,
        limits: ExecutorLimits,
        form: Form,
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: None if the agent cannot search. `tools`, and opening documents, require a
        form that reports.
        """
        self._has_actions = bool(form.search_first) and bool(tools or limits.access_k)
        if self._has_actions:
            form = _with_actions(form, tools=tools is not None)
        self.role = role
        self.limits = limits
        self.form = form
        self._retriever = retriever
        self._tools = tools

    def begin(self, text: str) -> ContextWindow:
        """Open a conversation about a question or sub-query."""
        return ContextWindow(self.role.opening(prompts.request(text)), self.form)

    def goes_on(self, work: ContextWindow) -> bool:
        """Return whether another turn may lead to a report."""
        return work.report is None and len(work.outputs) < self.limits.max_turns

    async def turn(
        self,
        work: ContextWindow,
        context: RunContext,
        index: int,
        purpose: Purpose = "first",
    ) -> None:
        """Take the next turn. `index`: the number of the sub-query. Raises `BudgetExhausted` and
        `UpstreamError`.
        """
        if self._has_actions and work.tools is None:
            await self._equip(work)
        output = await self.ask(
            work,
            context,
            until=context.search_deadline,
            index=index,
            purpose=purpose,
        )
        match self.form.parse(output.text, output.finish_reason == "length"):
            case SearchTurn(query, ignored) if self._retriever and self._may_search(work):
                await self._look(
                    work,
                    context,
                    index,
                    query,
                    partial(self._search, query, ignored),
                )
            case AccessTurn(name, text) if self.limits.access_k and self._may_search(work):
                document = work.named(name)
                if not document:
                    work.correct(prompts.CORRECT_ACCESS)
                    return
                query = f"{text} (in {document})"
                access = partial(self._access, query, document, text)
                await self._look(
                    work,
                    context,
                    index,
                    query,
                    access,
                )
            case CallTurn(name, arguments) if self._tools and self._may_search(work):
                query = f"{name} {arguments}"
                call = partial(
                    self._call,
                    work,
                    query,
                    name,
                    arguments,
                )
                await self._look(
                    work,
                    context,
                    index,
                    query,
                    call,
                )
            case SearchTurn() if self._retriever or not self._tools:
                work.correct(self.form.no_searches)
            case _ if self.form.search_first and not work.searches:
                work.correct(self.form.search_first)
            case ReportTurn(report):
                work.report = report
            case _ if self._may_search(work, turns=1):
                work.correct(self.form.correction)
            case _:
                work.correct(self.form.no_searches)

    async def _equip(self, work: ContextWindow) -> None:
        """Tell the model about its tools, and about documents that it may open."""
        tools = offered(await self._tools.available()) if self._tools else {}
        functions = [function for _, function in tools.values()]
        parts = (
            (prompts.ACCESS, self.limits.access_k),
            (prompts.CALLS, tools),
            (prompts.CALLS_ALONE, tools and not self._retriever),
            (prompts.tools(functions), tools and not self.role.tool_calls),
        )
        work.offer(tools, "\n\n".join(text for text, applies in parts if applies))

    async def _look(
        self,
        work: ContextWindow,
        context: RunContext,
        index: int,
        query: str,
        look: _Look,
    ) -> None:
        """Add the result of the next search, access or call to the conversation: the recorded one,
        if the run is resumed, or the result of `look`.
        """
        agent = turns.AgentId(self.role.name, index)
        search = context.ledger.search_before(agent, query) or await look()
        context.ledger.searched(agent, search)
        work.documents(search, last=not self._may_search(work, searches=1, turns=1))
        titles = tuple(passage.title for passage in search.passages)
        context.on_event(SearchDone(index, query, titles))

    async def _search(self, query: str, ignored: int) -> SearchRecord:
        assert self._retriever is not None
        (passages,) = await self._retriever.search([query], self.limits.top_k)
        chars = self.limits.passage_chars
        return SearchRecord(query, tuple(passage.within(chars) for passage in passages), ignored)

    async def _access(
        self,
        query: str,
        document: str,
        text: str,
    ) -> SearchRecord:
        """Open a document. Passages that match `text` least are left out if the document is too
        long.
        """
        assert self._retriever is not None
        (passages,) = await self._retriever.search([text], self.limits.access_k, document)
        chars_left = self.limits.access_chars
        fitting = set[str]()
        for passage in sorted(passages, key=lambda passage: -passage.score):
            chars_left -= len(passage.text)
            if chars_left >= 0:
                fitting.add(passage.id)
        chars = self.limits.passage_chars
        shown = (passage.within(chars) for passage in passages if passage.id in fitting)
        return SearchRecord(query, tuple(shown))

    async def _call(
        self,
        work: ContextWindow,
        query: str,
        name: str,
        text: str,
    ) -> SearchRecord:
        """Call a tool. A failed call, and one that no tool takes, is recorded as such."""
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
        call = ToolCall(
            tool.server,
            tool.name,
            text,
            time.monotonic() - began,
            error,
        )
        return SearchRecord(query, passages, call=call)

    async def ask(
        self,
        work: ContextWindow,
        context: RunContext,
        *,
        until: float,
        index: int,
        purpose: Purpose = "first",
    ) -> Completion:
        """Get the model's next output. Passages are dropped, one at a time, until its context holds
        the rest.
        """
        role = self.role
        form = self.form
        # No stop string in a correction: one that the model met while reasoning would be met again.
        stop = () if work.corrected else form.stop
        if work.corrected:
            purpose = "correction"
        tools: tuple[Function, ...] = ()
        if role.tool_calls and work.tools:
            tools = tuple(function for _, function in work.tools.values())
        pattern = None
        if form.search_first and not self._has_actions:  # a call's arguments have no pattern
            pattern = turn_pattern(
                searched=bool(work.searches), may_search=self._may_search(work, turns=1)
            )
        asked = partial(
            role.ask,
            sub_query_index=index,
            pattern=pattern,
            tools=tools,
            until=until,
        )
        if role.context_tokens is not None:
            work.fit(role.context_tokens, role.sampling.max_tokens)
        while True:
            try:
                output = await asked(work.messages, stop, context.ledger, purpose=purpose)
            except ContextTooLong:
                if not work.drop():
                    raise
                purpose = "shortened"
            else:
                work.absorb(output)
                return output

    def _may_search(
        self,
        work: ContextWindow,
        *,
        searches: int = 0,
        turns: int = 0,
    ) -> bool:
        """Return whether, after so many more searches and turns, a further search would leave a
        turn for the report.
        """
        within = len(work.searches) + searches < self.limits.max_searches
        return within and len(work.outputs) + turns < self.limits.max_turns and not work.full
