"""Conversation of an agent with its model. In each turn, the model searches, opens a document,
calls a tool, or writes its report.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from router.calls import Role
from router.errors import ContextTooLong, ToolFailed
from router.frozen import Frozen
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
from router.search.indexes import Indexes
from router.search.retrieval import BOOKING, Booking, IndexRetriever, Reranked
from router.search.tools import Tool, Tools, offered, passages_of
from router.trace import Conversation, turns
from router.trace.call import Purpose
from router.trace.scope import Scope
from router.trace.values import SearchRecord, ToolCall

_Look = Callable[[], Awaitable[SearchRecord]]
_TOKENS_PER_CHARACTER = 1 / 3
"""Estimated tokens per character of a prompt, deliberately high. The estimate is used until the
engine has reported the tokens of a prompt.
"""


class ExecutorLimits(Frozen):
    """Limits of an executor's work on one sub-query."""

    max_turns: int = 3
    """Max turns of the model for one sub-query, including the report (K in section 4.1 of TBSS)."""
    max_searches: int = 2
    """Max number of searches, opened documents and tool calls, counted together."""
    top_k: int = 3
    """Number of passages shown for each search."""
    passage_chars: int = 8000
    """Max characters of a passage's title, and of its text. Longer titles and texts are cut."""
    report_chars: int = 2000
    """Max characters of a report's answer, and of each item of its evidence. Longer texts are cut.
    """
    access_k: int = 0
    """Max passages shown of one opened document; 0 to forbid opening documents. Opening a document
    counts as a search.
    """
    access_chars: int = 25_000
    """Max characters of the passages shown of one opened document, counted together. Also the max
    characters of a tool's output.
    """


class Form(Frozen):
    """The text protocol between an agent and its model: the parser of the model's turns, and the
    messages that reply to them.
    """

    parse: Callable[[str, bool], ExecutionTurn]
    """Parses a turn. Arguments: the text of the turn, and whether the length limit cut it."""
    stop: tuple[str, ...]
    """Stop strings of the model's calls. Calls that ask for a correction have no stop strings."""
    documents: Callable[[Sequence[Passage], bool], str]
    """Renders the result of a search. Arguments: the passages, and whether this was the last search
    allowed.
    """
    correction: str
    """The reply to a malformed turn."""
    no_searches: str
    """The reply to a search beyond the limit, and to a malformed turn when no search is left."""
    search_first: str = ""
    """The reply to a report or malformed turn before the first search. Empty if the model may
    answer without a search.
    """


def _with_actions(form: Form, *, tools: bool) -> Form:
    """Return `form`, extended for a model that may also open documents or call tools."""
    return replace(
        form,
        parse=partial(parse_action_turn, form.parse),
        stop=(*form.stop, "</access>", "</call>"),
        documents=partial(prompts.documents, named=True),
        correction=prompts.CORRECT_CALL if tools else form.correction,
        search_first=prompts.CORRECT_FIRST_CALL if tools else form.search_first,
    )


class ContextWindow:
    """One agent's growing conversation with its model, and the passages that its searches found.
    When the messages become too long for the model, passages are dropped from them.
    """

    def __init__(
        self,
        opening: tuple[Message, ...],
        form: Form,
        session: Tools | None = None,
    ) -> None:
        """`opening`: the first messages. `form`: how turns are parsed and answered. `session`: the
        tools, opened for this conversation; None if it has no tools.
        """
        self.messages = opening
        self.session = session
        self._form = form
        self.outputs = list[Completion]()
        self.searches = list[SearchRecord]()
        self.report: Report | None = None
        self.tools: dict[str, tuple[Tool, Function]] | None = None
        """The tools by the names that the model may write; None until the tools are listed."""
        self.corrected = False
        """Whether the last user message asks the model to correct its turn."""
        self._documents = list[tuple[int, bool]]()
        """For each search, the position of the message with its passages, and whether that message
        asks for the report.
        """
        self._rate = _TOKENS_PER_CHARACTER

    @property
    def conversation(self) -> Conversation:
        """The conversation so far."""
        return Conversation(self.messages, tuple(self.outputs))

    @property
    def full(self) -> bool:
        """True if no passage of the last search fitted into the model's context."""
        return any(search.passages and not search.shown for search in self.searches[-1:])

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and update the estimate of tokens per character from the call's
        usage.
        """
        self.outputs.append(output)
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (Message("assistant", prompts.shown_turn(output.text)),)

    def add_user_turn(self, text: str) -> None:
        """Add a user message."""
        self.messages += (Message("user", text),)

    def correct(self, text: str) -> None:
        """Add a user message that asks the model to correct its last turn."""
        self.corrected = True
        self.add_user_turn(text)

    def offer(self, tools: dict[str, tuple[Tool, Function]], text: str) -> None:
        """Let the model call `tools`. `text`: their description, which is added to the system
        prompt.
        """
        system, *others = self.messages
        self.tools = tools
        self.messages = (Message("system", f"{system.content}\n\n{text}".strip()), *others)

    def named(self, name: str) -> str | None:
        """Return the name of the document whose name or title the model wrote as `name`. Return
        None if no search has found a passage of that document.
        """
        for search in self.searches:
            for passage in search.passages if search.call is UNSET else ():
                if name in (passage.document, passage.title):
                    return passage.document
        return None

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add the result of a search as a user message. `last`: True if no search is left, so that
        the message also asks for the report.
        """
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.add_user_turn(self._rendered(search, last))
        self.corrected = False

    def fit(self, context_tokens: int, max_tokens: int) -> None:
        """Drop passages until the estimated prompt leaves `max_tokens` of the model's
        `context_tokens` free for the output, or until no passage is left.
        """
        while self._characters * self._rate + max_tokens > context_tokens and self.drop():
            pass

    def drop(self) -> bool:
        """Take the latest search that still shows passages, and remove its lowest-ranked passage
        from the messages. Return False if no passage is left.
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
        """Ask the model to answer now.

        If the last message shows the passages of a search, it is rendered again, with a request for
        the report. Otherwise `text` is added: to the last user message, or as a new one.
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
    """Runs the turns of a `ContextWindow`: it calls the model, carries out the search or tool call
    that the model asks for, and adds the result. One instance serves any number of conversations
    concurrently.
    """

    def __init__(
        self,
        role: Role,
        retriever: IndexRetriever | Indexes | None,
        limits: ExecutorLimits,
        form: Form,
        tools: Tools | None = None,
    ) -> None:
        """`retriever`: the indexes to search, or the only index; None if the agent cannot search.
        `tools`: the tools that the model may call. Tools, and opening documents, are available only
        with a form that sets `search_first`.
        """
        self._has_actions = bool(form.search_first) and bool(tools or limits.access_k)
        if self._has_actions:
            form = _with_actions(form, tools=tools is not None)
        self.role = role
        self.limits = limits
        self.form = form
        self._indexes = Indexes.of(retriever) if retriever else None
        self._tools = tools

    def session(self) -> AbstractAsyncContextManager[Tools | None]:
        """Open a session with the agent's tools for one conversation, as a context manager. It
        yields None if the agent has no tools.
        """
        return self._tools.session() if self._tools else nullcontext()

    def begin(self, text: str, session: Tools | None = None) -> ContextWindow:
        """Return a new conversation about the question or sub-query `text`. `session`: a session
        that the method `session` opened.
        """
        return ContextWindow(self.role.opening(prompts.request(text)), self.form, session)

    def goes_on(self, work: ContextWindow) -> bool:
        """Return whether another turn follows: there is no report yet, and `max_turns` is not
        reached.
        """
        return work.report is None and len(work.outputs) < self.limits.max_turns

    async def turn(
        self,
        work: ContextWindow,
        context: RunContext,
        index: int,
        purpose: Purpose = "first",
    ) -> None:
        """Get the model's next turn and act on it: run a search, open a document, call a tool, take
        the report, or ask for a correction. `index`: the number of the sub-query in the run. Raises
        `BudgetExhausted` and `UpstreamError`.
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
        add = partial(self._add_result, work, context, index)
        match self.form.parse(output.text, output.finish_reason == "length"):
            case SearchTurn(query, ignored) if self._indexes and self._may_search(work):
                await add(query, partial(self._search, index, query, ignored, context))
            case AccessTurn(name, text) if self.limits.access_k and self._may_search(work):
                document = work.named(name)
                if not document:
                    work.correct(prompts.CORRECT_ACCESS)
                    return
                query = f"{text} (in {document})"
                await add(query, partial(self._access, query, document, text, context.scope))
            case CallTurn(name, arguments) if work.session and self._may_search(work):
                query = f"{name} {arguments}"
                await add(query, partial(self._call, work, query, name, arguments))
            case SearchTurn() if self._indexes or not self._tools:
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
        """List the available tools, and describe them in the system prompt. If documents may be
        opened, the prompt also explains how.
        """
        tools = offered(await work.session.available()) if work.session else {}
        functions = [function for _, function in tools.values()]
        parts = (
            (prompts.ACCESS, self.limits.access_k),
            (prompts.CALLS, tools),
            (prompts.CALLS_ALONE, tools and not self._indexes),
            (prompts.tools(functions), tools and not self.role.tool_calls),
        )
        work.offer(tools, "\n\n".join(text for text, applies in parts if applies))

    async def _add_result(
        self,
        work: ContextWindow,
        context: RunContext,
        index: int,
        query: str,
        look: _Look,
    ) -> None:
        """Add the result of a search, an opened document or a tool call to the conversation. If the
        run is resumed and the interrupted run recorded the same request, the recorded result is
        reused. Otherwise `look` is called.
        """
        agent = turns.AgentId(self.role.name, index)
        search = context.ledger.search_before(agent, query) or await look()
        context.ledger.searched(agent, search)
        work.documents(search, last=not self._may_search(work, searches=1, turns=1))
        context.on_event(search.event(index))

    async def _search(
        self,
        index: int,
        query: str,
        ignored: int,
        context: RunContext,
    ) -> SearchRecord:
        assert self._indexes is not None
        booking = BOOKING.set(Booking(context.ledger, index))
        try:
            (passages,) = await self._indexes.search(context.scope, [query], self.limits.top_k)
        finally:
            BOOKING.reset(booking)
        return SearchRecord(
            query,
            tuple(passage.within(self.limits.passage_chars) for passage in passages),
            ignored,
            reranking=passages.reranking if isinstance(passages, Reranked) else UNSET,
        )

    async def _access(
        self,
        query: str,
        document: str,
        text: str,
        scope: Scope,
    ) -> SearchRecord:
        """Open a document. If it is longer than `access_chars`, the passages that match `text`
        least are left out.
        """
        assert self._indexes is not None
        (passages,) = await self._indexes.search(scope, [text], self.limits.access_k, document)
        chars_left = self.limits.access_chars
        fitting = set[str]()
        for passage in sorted(passages, key=lambda passage: -passage.score):
            chars_left -= len(passage.text)
            if chars_left >= 0:
                fitting.add(passage.id)
        shown = (
            passage.within(self.limits.passage_chars)
            for passage in passages
            if passage.id in fitting
        )
        return SearchRecord(query, tuple(shown))

    async def _call(
        self,
        work: ContextWindow,
        query: str,
        name: str,
        text: str,
    ) -> SearchRecord:
        """Call the tool `name`. Never raises `ToolFailed`: a failed call, an unknown tool, and
        invalid arguments are recorded as the error of the returned record.
        """
        assert work.session is not None
        tool, _ = (work.tools or {}).get(name, (None, None))
        arguments = tool.arguments(text) if tool else None
        if tool is None or arguments is None:
            return SearchRecord(
                query, (), call=ToolCall("", "", text, error="unknown tool, or invalid arguments")
            )
        began = time.monotonic()
        passages = tuple[Passage, ...]()
        error = None
        try:
            output = await work.session.call(tool, arguments)
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
        """Return the model's next output, and add it to the conversation. While the prompt is too
        long for the model's context, passages are dropped, one at a time.

        `until`: the deadline of the call, in seconds of the event loop's clock. Raises
        `BudgetExhausted` and `UpstreamError`.
        """
        role = self.role
        form = self.form
        # A correction has no stop strings: a model that wrote one while reasoning would probably
        # write it again.
        stop = () if work.corrected else form.stop
        if work.corrected:
            purpose = "correction"
        tools: tuple[Function, ...] = ()
        if role.tool_calls and work.tools:
            tools = tuple(function for _, function in work.tools.values())
        pattern = None
        if form.search_first and not self._has_actions:  # tool calls have no pattern
            pattern = turn_pattern(
                searched=bool(work.searches), may_search=self._may_search(work, turns=1)
            )
        if role.context_tokens is not None:
            work.fit(role.context_tokens, role.sampling.max_tokens)
        while True:
            try:
                output = await role.ask(
                    work.messages,
                    stop,
                    context.ledger,
                    sub_query_index=index,
                    purpose=purpose,
                    pattern=pattern,
                    tools=tools,
                    until=until,
                )
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
        """Return whether another search is allowed after `searches` more searches and `turns` more
        turns. It must leave a turn for the report.
        """
        within = len(work.searches) + searches < self.limits.max_searches
        return within and len(work.outputs) + turns < self.limits.max_turns and not work.full
