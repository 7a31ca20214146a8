"""A model that searches and reads by itself until it answers, all in one context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router import prompts
from router.agent_turn import Answered, parse_agent_turn
from router.call import Purpose
from router.context import RunContext
from router.errors import ContextTooLong
from router.events import SearchDone
from router.execution import Conversation, SearchRecord
from router.execution_turn import Search
from router.executor import ExecutorLimits
from router.model import Completion, Message
from router.passage import Passage
from router.retrieval import Retriever
from router.role import Role
from router.shown import Shown

STOP = ("</search>", "</answer>")


@dataclass(frozen=True, slots=True)
class Form:
    """How such a model is spoken to."""

    documents: Callable[[Sequence[Passage], bool], str]
    """What a search found, and whether it was the last one."""
    correction: str
    no_searches: str
    """What answers to a search too many."""
    raw: bool = False
    """Whether it writes a single turn, thinking included, into which the results are put."""


SINGLE_AGENT = Form(prompts.agent_documents, prompts.CORRECT_AGENT, prompts.LAST_ANSWER)
SEARCH_R1 = Form(prompts.information, prompts.CORRECT_SEARCHER, prompts.LAST_SEARCHER, raw=True)


class AgentWork:
    """One conversation as it grows."""

    def __init__(self, opening: tuple[Message, ...], form: Form) -> None:
        self.shown = Shown(opening, form.documents, str if form.raw else prompts.said)
        self.outputs: list[Completion] = []
        self.answer: str | None = None
        self.corrected = self.gave_up = False

    @property
    def conversation(self) -> Conversation:
        """All that was said."""
        return Conversation(self.shown.messages, tuple(self.outputs))

    @property
    def searches(self) -> tuple[SearchRecord, ...]:
        """Those that have been done."""
        return tuple(self.shown.searches)

    @property
    def full(self) -> bool:
        """Whether its context has no room for anything of what it found last."""
        return bool(self.searches) and bool(self.searches[-1].passages) and not self.searches[-1].shown

    def correct(self, text: str) -> None:
        """Say what is wanted, once; a second time in a row, it has given up."""
        if self.corrected:
            self.gave_up = True
        else:
            self.corrected = True
            self.shown.tell(text)


class Agent:
    """Leads any number of such conversations at once."""

    def __init__(self, role: Role, retriever: Retriever | None, limits: ExecutorLimits, form: Form) -> None:
        """`retriever`: None where no search is run."""
        self.role, self.limits, self.form, self._retriever = role, limits, form, retriever

    def goes_on(self, work: AgentWork) -> bool:
        """Whether another turn may bring it nearer to an answer."""
        return work.answer is None and not work.gave_up and len(work.outputs) < self.limits.max_turns

    async def turn(self, work: AgentWork, context: RunContext, index: int | None = None) -> None:
        """Its next turn, and what comes of it. `index`: the sub-query; None for the question itself. Raises
        `BudgetExhausted` and `UpstreamError`.
        """
        output = await self.ask(work, context, until=context.search_deadline, index=index)
        turn = parse_agent_turn(output.text, cut=output.finish_reason == "length")
        match turn:
            case Answered(answer):
                work.answer = answer
            case Search() if self._retriever and self._may_search(work, 0):
                (passages,) = await self._retriever.search([turn.query], self.limits.top_k)
                shown = tuple(passage.within(self.limits.passage_chars) for passage in passages)
                found = SearchRecord(turn.query, shown, turn.ignored)
                work.shown.documents(found, last=not self._may_search(work, 1))
                work.corrected = False
                titles = tuple(passage.title for passage in shown)
                context.emit(SearchDone(-1 if index is None else index, turn.query, titles))
            case Search():
                work.correct(self.form.no_searches)
            case _:
                work.correct(self.form.correction)

    async def ask(self, work: AgentWork, context: RunContext, *, until: float, index: int | None = None) -> Completion:
        """What it says next. Passages give way, one at a time, until its context holds the rest."""
        purpose: Purpose = "correction" if work.corrected else "first"
        # As an executor's correction, one has no stop string; but a raw turn must not go on to invent results.
        stop = STOP if self.form.raw or not work.corrected else ()
        if self.role.context_tokens is not None:
            work.shown.fit(self.role.context_tokens, self.role.sampling.max_tokens)
        while True:
            messages = prompts.continued(work.shown.messages) if self.form.raw else work.shown.messages
            try:
                output = await self.role.ask(
                    messages, stop, context.ledger, purpose=purpose, sub_query=index, until=until
                )
            except ContextTooLong:
                if not work.shown.drop():
                    raise
                purpose = "shortened"
            else:
                work.outputs.append(output)
                work.shown.absorb(output)
                return output

    def _may_search(self, work: AgentWork, more: int) -> bool:
        """Whether, after `more` further searches and turns, another search would leave a turn to answer in."""
        searches, turns = len(work.searches) + more, len(work.outputs) + more
        return not work.full and searches < self.limits.max_searches and turns < self.limits.max_turns
