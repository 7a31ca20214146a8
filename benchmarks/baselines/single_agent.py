"""Baselines with a single model. The model searches and answers in one context (TBSS 4.1), or
answers from what it knows, without any search (TBSS, appendix A).
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from router.calls import Role
from router.errors import ContextTooLong, OutOfTime
from router.frozen import Frozen
from router.protocol import NO_EVIDENCE, Passage, Report, prompts
from router.protocol.sub_queries import own_text
from router.protocol.tags import Malformed, blocks, one_line
from router.protocol.turns import ExecutionTurn, ReportTurn, first_search, parse_answer
from router.search import RunContext
from router.search.agent import Agent, ContextWindow, ExecutorLimits, Form
from router.search.retrieval import IndexRetriever
from router.trace import Conversation, Execution, Trajectory
from router.trace.values import NOT_FOUND, AnswerOutcome
from serving.config.config import Config, RoleConfig
from serving.topologies import executor_limits

PROMPTS = Path(__file__).parent / "prompts"
LAST_ANSWER = "No searches are left. Write the answer now."
CORRECTION = (
    "Write either one <search>query</search> block and nothing else, or the answer of the question "
    "as <answer>…</answer>."
)
_MAX_MALFORMED = 2
"""After this number of consecutive malformed turns, the model is asked for its final answer."""


def role_alone(config: Config, prompt: str) -> RoleConfig:
    """Return the role config of a model that works alone: the delegator's model with the prompt
    file `prompt`. Its `max_tokens` is that of delegator or answerer, the larger of the two.
    """
    roles = config.roles
    max_tokens = max(roles.delegation.max_tokens, roles.answer.max_tokens)
    return replace(roles.delegation, prompt=prompt, max_tokens=max_tokens, fallbacks=())


def limits_alone(config: Config, max_rounds: int, max_sub_queries: int) -> ExecutorLimits:
    """Return limits for a model that works alone, so that it may do as much as all roles of a run
    together.

    The model may search as often as all executors of a run together, and may write as many turns as
    delegator and executors together.
    """
    executor = executor_limits(config.search)
    dispatched = max_rounds * max_sub_queries
    return replace(
        executor,
        max_turns=max_rounds + dispatched * executor.max_turns,
        max_searches=dispatched * executor.max_searches,
    )


def parse_agent_turn(text: str, cut: bool = False) -> ExecutionTurn:
    """Return the parsed turn of a model that works alone. An answer becomes a report without
    evidence.

    If a turn has both a search and an answer, the first complete element counts. `cut`: True if the
    turn was cut off at the token limit.
    """
    own, cut = own_text(text, cut=cut)
    searches, search = first_search(own, cut)
    answers = [block for block in blocks(own, "answer") if block.closed or not cut]
    first = next((block for block in answers if one_line(block.body)), None)
    if first and (search is None or (first.closed and first.start < search[0])):
        return ReportTurn(Report(one_line(first.body), ()))
    if search:
        return search[1]
    if searches:
        return Malformed("no complete query in the search block")
    return Malformed("the answer is empty" if answers else "neither a search block nor an answer")


def agent_documents(passages: Sequence[Passage], last: bool) -> str:
    """Return the message with which a single agent gets the passages of a search. `last`: True if
    no searches are left; the message then also asks for the answer.
    """
    return prompts.documents(passages, last=False) + (f"\n{LAST_ANSWER}" if last else "")


SINGLE_AGENT = Form(
    parse_agent_turn,
    ("</search>", "</answer>"),
    agent_documents,
    CORRECTION,
    LAST_ANSWER,
)


class SingleAgent(Frozen):
    """Answers questions with one model that searches by itself: "Direct Tool" of the TBSS paper
    (section 4.1). Budgets of runs are not supported.

    The paper does not state the limits of its single agent. Here, the agent may do as much as
    delegator and executors of a run together (`limits_alone`).
    """

    role: Role
    retriever: IndexRetriever
    limits: ExecutorLimits
    require_evidence: bool = True
    """True to answer `NOT_FOUND` if no search found a passage, as `FactorizedSearch` does."""
    form: Form = SINGLE_AGENT

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`, and return the trajectory. It has a single execution, with all
        searches.

        If the time for searching or the model's context runs out, the model gets one more turn, to
        answer from the passages found so far. Raises `UpstreamError` if the model's endpoint fails,
        and `OutOfTime` if the run's deadline passes.
        """
        agent = Agent(self.role, self.retriever, self.limits, self.form)
        work = agent.begin(question)
        outcome: AnswerOutcome = "rounds_exhausted"
        malformed = 0
        try:
            async with asyncio.timeout_at(context.search_deadline):
                while agent.goes_on(work) and malformed < _MAX_MALFORMED:
                    await agent.turn(work, context, 0)
                    malformed = malformed + 1 if work.corrected else 0
            if work.report and len(work.searches) < self.limits.max_searches:
                outcome = "answered"
        except TimeoutError:
            outcome = "time_exhausted"
        except ContextTooLong:
            if not work.searches:
                raise

        if not work.searches and outcome != "time_exhausted":
            outcome = "no_search"
        if self.require_evidence and not any(search.passages for search in work.searches):
            context.raise_without_evidence(outcome)
            outcome = outcome if outcome == "no_search" else "not_found"
            return _trajectory(question, work, outcome)
        answer = work.report.answer if work.report else await _answer_now(agent, work, context)
        return _trajectory(question, work, outcome).answered(answer)


def _trajectory(question: str, work: ContextWindow, outcome: AnswerOutcome) -> Trajectory:
    execution = Execution(
        question,
        NO_EVIDENCE,
        "reported",
        tuple(work.searches),
        Conversation(()),
    )
    return Trajectory(NOT_FOUND, outcome, (execution,), answering=work.conversation)


async def _answer_now(agent: Agent, work: ContextWindow, context: RunContext) -> str:
    """Ask the model for its answer without further searches, and return the answer. The answer is
    empty if the model searches instead, or if the request does not fit into the model's context.
    """
    work.close(agent.form.no_searches)
    try:
        async with asyncio.timeout_at(context.deadline):
            output = await agent.ask(work, context, until=context.deadline, index=0)
    except TimeoutError:
        raise OutOfTime(
            "The deadline passed before the answer was written; raise server.timeout_s."
        ) from None
    except ContextTooLong:
        return ""
    return "" if "<search" in output.text.casefold() else parse_answer(output.text)


class NoRetrieval(Frozen):
    """Answers questions with one model that does not search (TBSS, appendix A)."""

    role: Role

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`, and return the trajectory. Raises `UpstreamError` if the model's
        endpoint fails, and `OutOfTime` if the run's deadline passes.
        """
        messages = self.role.opening(prompts.request(question))
        try:
            async with asyncio.timeout_at(context.deadline):
                output = await self.role.ask(messages, ("</answer>",), context.ledger)
        except TimeoutError:
            raise OutOfTime(
                "The deadline passed before the answer was written; raise server.timeout_s."
            ) from None
        trajectory = Trajectory("", "answered", answering=Conversation(messages, (output,)))
        return trajectory.answered(parse_answer(output.text))
