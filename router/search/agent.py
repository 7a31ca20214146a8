"""A model that searches, reads and writes in turns, all in one context: what executors and single agents share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from router.calls import Role
from router.errors import ContextTooLong
from router.models import Completion, Message
from router.protocol import Passage, Report, prompts
from router.protocol.turns import ExecutionTurn, ReportTurn, SearchTurn, turn_pattern
from router.search.context import RunContext
from router.search.retrieval import Retriever
from router.trace import Conversation, turns
from router.trace.call import Purpose
from router.trace.values import SearchDone, SearchRecord

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
    """True where it is corrected while turns are left; else a second malformed turn in a row is the last."""
    raw: bool = False
    """True where it writes a single turn, thinking included, into which the results are put (Search-R1)."""


class ContextWindow:
    """One model's conversation as it grows, with what its searches found."""

    def __init__(self, opening: tuple[Message, ...], form: Form) -> None:
        self.messages, self._form = opening, form
        self.outputs: list[Completion] = []
        self.searches: list[SearchRecord] = []
        self.report: Report | None = None
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
        """True where the model has written a turn that nothing came of yet: somebody stopped there."""
        return bool(self.outputs) and self.messages[-1].role == "assistant"

    @property
    def full(self) -> bool:
        """True where the context has no room for anything of what was found last."""
        return bool(self.searches) and bool(self.searches[-1].passages) and not self.searches[-1].shown

    def absorb(self, output: Completion) -> None:
        """Add the model's turn, and learn from its usage how long the tokens are."""
        self.outputs.append(output)
        if output.usage is not None:
            self._rate = output.usage.prompt_tokens / max(1, self._characters)
        self.messages += (Message("assistant", output.text if self._form.raw else prompts.said(output.text)),)

    def tell(self, text: str) -> None:
        """Add a user's turn."""
        self.messages += (Message("user", text),)

    def correct(self, text: str) -> None:
        """Say what is wanted; a second time in a row, the model has given up unless its form persists."""
        if self.corrected and not self._form.persists:
            self.gave_up = True
        else:
            self.corrected = True
            self.tell(text)

    def documents(self, search: SearchRecord, *, last: bool) -> None:
        """Add what a search found; `last` asks for the report outright."""
        self._documents.append((len(self.messages), last))
        self.searches.append(search)
        self.tell(self._form.documents(search.passages, last))
        self.corrected = False

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
        message = Message("user", self._form.documents(self.searches[number].shown, last))
        self.messages = (*self.messages[:at], message, *self.messages[at + 1 :])

    @property
    def _characters(self) -> int:
        return sum(len(message.content) for message in self.messages)


class Agent:
    """Leads any number of such conversations at once."""

    def __init__(self, role: Role, retriever: Retriever | None, limits: ExecutorLimits, form: Form) -> None:
        """`retriever`: None where no search is run."""
        self.role, self.limits, self.form, self._retriever = role, limits, form, retriever

    def begin(self, text: str) -> ContextWindow:
        """A conversation about a question or sub-query."""
        if self.form.raw:  # the prompt is no system prompt, but what the user's turn begins with
            return ContextWindow((Message("user", prompts.searcher_request(self.role.system, text)),), self.form)
        return ContextWindow(self.role.opening(prompts.request(text)), self.form)

    def goes_on(self, work: ContextWindow) -> bool:
        """True where another turn may bring it nearer to a report."""
        return work.report is None and not work.gave_up and len(work.outputs) < self.limits.max_turns

    async def turn(
        self, work: ContextWindow, context: RunContext, index: int | None = None, purpose: Purpose = "first"
    ) -> None:
        """Take the next turn. `index`: the sub-query's number; None for the question itself. Raises `BudgetExhausted`
        and `UpstreamError`.
        """
        if not work.unanswered:
            await self.ask(work, context, until=context.search_deadline, index=index, purpose=purpose)
        output = work.outputs[-1]
        match self.form.parse(output.text, output.finish_reason == "length"):
            case SearchTurn(query, ignored) if self._retriever and self._may_search(work):
                agent = turns.Agent(self.role.name, index)
                search = context.ledger.search_before(agent, query)
                if search is None:
                    (found,) = await self._retriever.search([query], self.limits.top_k)
                    passages = tuple(passage.within(self.limits.passage_chars) for passage in found)
                    search = SearchRecord(query, passages, ignored)
                context.ledger.searched(agent, search)
                work.documents(search, last=not self._may_search(work, searches=1, turns=1))
                titles = tuple(passage.title for passage in search.passages)
                context.on_event(SearchDone(-1 if index is None else index, query, titles))
            case SearchTurn():
                work.correct(self.form.no_searches)
            case _ if self.form.search_first and not work.searches:
                work.correct(self.form.search_first)
            case ReportTurn(report):
                work.report = report
            case _:
                work.correct(self.form.correction if self._may_search(work, turns=1) else self.form.no_searches)

    async def ask(
        self,
        work: ContextWindow,
        context: RunContext,
        *,
        until: float,
        index: int | None = None,
        purpose: Purpose = "first",
    ) -> Completion:
        """Let the model write. Passages give way, one at a time, until its context holds the rest."""
        role, form = self.role, self.form
        # No stop string in a correction: one that was met while the model was thinking would be met again. But a raw
        # turn must not go on to invent results.
        stop = form.stop if form.raw or not work.corrected else ()
        purpose = "correction" if work.corrected else purpose
        pattern = None
        if form.search_first:
            pattern = turn_pattern(searched=bool(work.searches), may_search=self._may_search(work, turns=1))
        if role.context_tokens is not None:
            work.fit(role.context_tokens, role.sampling.max_tokens)
        while True:
            messages = prompts.continued(work.messages) if form.raw else work.messages
            try:
                output = await role.ask(
                    messages, stop, context.ledger, purpose=purpose, sub_query=index, pattern=pattern, until=until
                )
            except ContextTooLong:
                if not work.drop():
                    raise
                purpose = "shortened"
            else:
                work.absorb(output)
                return output

    def _may_search(self, work: ContextWindow, *, searches: int = 0, turns: int = 0) -> bool:
        """True where, after so many more searches and turns, another search would leave a turn to report in."""
        within = len(work.searches) + searches < self.limits.max_searches
        return within and len(work.outputs) + turns < self.limits.max_turns and not work.full
