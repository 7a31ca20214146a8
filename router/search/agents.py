"""A model that searches and reads by itself until it answers, all in one context."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.amount import NOTHING
from router.calls.role import Role
from router.errors import BudgetExhausted, ContextTooLong, OutOfTime, UpstreamError
from router.models.model import Completion, Message
from router.protocol import prompts
from router.protocol.evidence import NO_EVIDENCE, Passage, Report
from router.protocol.turns import MOST_POINTS, Answered, Search, parse_agent_turn, parse_answer
from router.search.context import RunContext
from router.search.executor import ContextWindow, ExecutorLimits
from router.search.retrieval import Retriever
from router.trace.call import Purpose
from router.trace.citation import cite_answer
from router.trace.values import (
    NOT_FOUND,
    AnswerOutcome,
    Conversation,
    Execution,
    ExecutionOutcome,
    SearchDone,
    SearchRecord,
    Trajectory,
)

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
        self.shown = ContextWindow(opening, form.documents, str if form.raw else prompts.said)
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
                context.on_event(SearchDone(-1 if index is None else index, turn.query, titles))
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


class Searcher:
    """Is to a search what its executor is; its model was trained to plan, search and answer alone.

    It writes one turn: `<think>…</think>`, `<search>…</search>`, then `<information>…</information>` is put in and it
    goes on, until `<answer>…</answer>`. It may answer without a search, as it was trained to. It writes no evidence, so
    its report has the sentences of its passages that hold the answer; there may be none.
    """

    def __init__(self, role: Role, retriever: Retriever, limits: ExecutorLimits) -> None:
        """`role`: its prompt is no system prompt, but what the user's turn begins with."""
        self._agent = Agent(role, retriever, limits, SEARCH_R1)

    @property
    def report_tokens(self) -> int:
        """What a report has at most: its answer, and sentences whose characters are counted as a token each."""
        return self._agent.role.sampling.max_tokens + MOST_POINTS * self._agent.limits.report_chars

    def role(self, _context: RunContext) -> Role:
        """Its role, in any run."""
        return self._agent.role

    async def run(self, sub_query: str, index: int, context: RunContext) -> Execution:
        """As `Executor.run`: nothing that goes wrong is raised."""
        role = self._agent.role
        opening = (Message("user", prompts.searcher_request(role.system, sub_query)),)
        work = AgentWork(opening, SEARCH_R1)
        outcome: ExecutionOutcome = "no_report"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while self._agent.goes_on(work):
                    await self._agent.turn(work, context, index)
        except TimeoutError:
            outcome = "timed_out"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except UpstreamError as error:
            outcome = "model_failed" if error.role else "retrieval_failed"
            context.failures[index] = error
        report = NO_EVIDENCE
        if work.answer is not None:
            outcome, report = "reported", self._report(work.answer, work)
        elif outcome == "no_report" and not work.searches:
            context.failures[index] = role.malformed()
        version = role.executor_version or ""
        return Execution(sub_query, report, outcome, work.searches, work.conversation, version)

    def _report(self, answer: str, work: AgentWork) -> Report:
        shown = (passage for search in work.searches for passage in search.shown)
        points = dict.fromkeys(citation.quote for citation in cite_answer(answer, shown))
        return Report(answer, tuple(points)[:MOST_POINTS]).within(self._agent.limits.report_chars)


_FRAME_TOKENS = 64
"""What a search adds to the context when all its passages have given way, at most."""


class SingleAgent:
    """The reference configuration "Direct Tool" (TBSS 4.1), or, without a retriever, "no retrieval" (TBSS, app. A).

    The paper does not say what its single agent may spend. Here it has what all roles of the factorized run have in
    all, in one context: see `single_agent_limits`.
    """

    def __init__(
        self, role: Role, retriever: Retriever | None, limits: ExecutorLimits, *, require_evidence: bool = True
    ) -> None:
        """`require_evidence`: as for `FactorizedSearch`; where no passage was found, the answer is `NOT_FOUND`. Without
        a retriever, nothing is required.
        """
        self._agent = Agent(role, retriever, limits, SINGLE_AGENT)
        self._searches, self._require_evidence = retriever is not None, require_evidence and retriever is not None

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. What ends the search early, be it time, budget or a context that is full, leaves one turn
        to answer from what was found. Raises `UpstreamError`, also of the retriever, `OutOfTime` and `BudgetExhausted`;
        of a model that cannot be understood `context.failures` tells.
        """
        work = AgentWork(self._agent.role.opening(prompts.request(question)), SINGLE_AGENT)
        outcome: AnswerOutcome = "rounds_exhausted"
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while self._agent.goes_on(work):
                    await self._reserve_for_answer(work, context)
                    await self._agent.turn(work, context)
                    context.draft.result = self._found(work, outcome)
            within = len(work.searches) < self._agent.limits.max_searches or not self._searches
            if work.answer is not None and within:
                outcome = "answered"
        except TimeoutError:
            outcome = "time_exhausted"
        except BudgetExhausted:
            outcome = "budget_exhausted"
        except ContextTooLong:
            if not work.searches:
                raise
        if self._searches and not work.searches and outcome in ("answered", "rounds_exhausted"):
            outcome = "no_search"
        return await self._answer(work, outcome, context)

    async def _answer(self, work: AgentWork, outcome: AnswerOutcome, context: RunContext) -> Trajectory:
        """The answer that it gave, or gives now that it is asked for outright."""
        if self._require_evidence and not any(search.passages for search in work.searches):
            if outcome == "time_exhausted":
                raise OutOfTime("Time ran out before anything was found; allow a longer deadline or a faster model.")
            if outcome == "budget_exhausted" and context.ledger.refusal is not None:
                raise context.ledger.refusal
            if work.gave_up and not work.searches:
                context.failures[None] = self._agent.role.malformed()
            return self._found(work, "no_search" if outcome == "no_search" else "not_found", NOT_FOUND)
        answer = await self._outright(work, context) if work.answer is None else work.answer
        return self._found(work, outcome).answered(answer)

    async def _outright(self, work: AgentWork, context: RunContext) -> str:
        """Its answer, now; empty where its context has no room even for that."""
        work.shown.close(prompts.LAST_ANSWER)
        try:
            async with asyncio.timeout_at(context.deadline):
                await self._release(work, context)
                output = await self._agent.ask(work, context, until=context.deadline)
        except TimeoutError:
            raise OutOfTime("Time ran out before the answer was written; allow a longer deadline.") from None
        except ContextTooLong:
            return ""
        answer = "" if "<search" in output.text.casefold() else parse_answer(output.text)
        if not answer and not work.searches:
            context.failures[None] = self._agent.role.malformed()
        return answer

    async def _reserve_for_answer(self, work: AgentWork, context: RunContext) -> None:
        """Keep back what answering outright may cost after one more turn."""
        if context.ledger.limited:
            role = self._agent.role
            last = (*work.shown.messages, Message("user", prompts.LAST_ANSWER))
            nothing_yet = not any(search.passages for search in work.searches)
            coming = role.sampling.max_tokens + _FRAME_TOKENS
            await role.reserve_for_answer(last, coming, context.ledger, least=nothing_yet)

    async def _release(self, work: AgentWork, context: RunContext) -> None:
        """Let the answer have what was kept back for it; passages give way until that suffices."""
        if not context.ledger.limited:
            return
        while True:
            try:
                bare = not any(search.shown for search in work.searches)
                await self._agent.role.reserve_for_answer(work.shown.messages, 0, context.ledger, least=bare)
                break
            except BudgetExhausted:
                if not work.shown.drop():
                    raise
        await context.ledger.reserve_for_answer(NOTHING)

    def _found(self, work: AgentWork, outcome: AnswerOutcome, answer: str = "") -> Trajectory:
        return Trajectory(
            answer,
            outcome,
            delegation=work.conversation,
            topology="single_agent" if self._searches else "no_retrieval",
            searches=work.searches,
        )


def single_agent_limits(executor: ExecutorLimits, max_rounds: int, max_sub_queries: int) -> ExecutorLimits:
    """What the factorized run has in all: of searches, those of every executor that can be dispatched, and of turns,
    the delegator's decisions with those of its executors.
    """
    dispatched = max_rounds * max_sub_queries
    return ExecutorLimits(
        max_turns=max_rounds + dispatched * executor.max_turns,
        max_searches=dispatched * executor.max_searches,
        top_k=executor.top_k,
        passage_chars=executor.passage_chars,
    )
