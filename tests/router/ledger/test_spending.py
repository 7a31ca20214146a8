"""Spending of one question: never more than its budget, and an answer from the reports if there
are any.
"""

import random
import time
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.amount import NOTHING, Amount, Remaining
from router.calls.limits import prompt_bound
from router.errors import BudgetExhausted, QuotaExhausted, UpstreamUnavailable
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.ledger.journal import NoJournal
from router.models import Completion, Delta, Model, OnDelta, Prompt, Usage
from router.search import Answerer, Delegator, Executor, FactorizedSearch, RunContext
from router.search.agent import ExecutorLimits
from router.trace import Call, Price, RoleName, Trajectory
from router.trace.call import OpenedCall
from tests.router.deployment import PASSAGE, STOP, block, finds, report, role
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

QUESTION = "Who directed Heat, and when was he born?"
PRICES = {
    "delegation": Price(prompt=2.0, completion=9.0),
    "execution": Price(prompt=0.1, completion=0.3, cached=0.01),
}
ROLES: tuple[RoleName, ...] = ("delegation", "execution", "answer")


class Spender:
    """A model that says one of its texts at random, spends up to its worst case, and fails if it
    is flaky.
    """

    def __init__(
        self, texts: list[str], chance: random.Random, *, counts: bool, flaky: bool
    ) -> None:
        self.name = "spender"
        self.endpoint = "spender://"
        self._texts = texts
        self._chance = chance
        self._counts = counts
        self._flaky = flaky

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        return Usage(prompt_bound(prompt.messages) // 3, len(text)) if self._counts else None

    async def complete(self, prompt: Prompt) -> Completion:
        raise AssertionError("its calls are streamed")

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        chance = self._chance
        counted = await self.count(prompt, "")
        maximum = counted.prompt_tokens if counted else prompt_bound(prompt.messages)
        read = chance.choice([0, maximum, chance.randint(0, maximum)])
        written = chance.choice(
            [0, prompt.sampling.max_tokens, chance.randint(0, prompt.sampling.max_tokens)]
        )
        fate = chance.random() if self._flaky else 1.0
        text = chance.choice(self._texts) if fate > 0.1 else ""
        if text:
            on_delta(Delta(text, usage=chance.choice([None, Usage(read, written // 2)])))
        if fate < 0.3:
            raise UpstreamUnavailable("cut", endpoint=self.endpoint, retry_after_s=0.0)
        usage = Usage(read, written, cached_tokens=chance.randint(0, read))
        on_delta(Delta(usage=usage))
        return Completion(text, "stop", usage=usage)


class Auditor(NoJournal):
    """A journal that notes the maximum of spending plus reservations."""

    def __init__(self) -> None:
        self._open: dict[int, Amount] = {}
        self._spent = NOTHING
        self.peak = NOTHING

    async def open(self, call: OpenedCall) -> None:
        self._open[call.number] = call.reserved
        taken = sum(self._open.values(), self._spent)
        self.peak = Amount(
            max(self.peak.tokens, taken.tokens), max(self.peak.nano_usd or 0, taken.nano_usd or 0)
        )

    def settle(self, call: Call) -> None:
        del self._open[call.number]
        self._spent += call.charged


def searching(
    models: dict[RoleName, Model], attempts: int = 2, max_tokens: int = 64
) -> FactorizedSearch:
    """Return a search over these priced models."""
    roles = {
        name: replace(
            role(name, model, attempts, max_tokens),
            price=PRICES.get(name, Price(prompt=1.0, completion=1.0)),
        )
        for name, model in models.items()
    }
    retriever = FixedRetriever({"Who directed Heat?": [PASSAGE]})
    return FactorizedSearch(
        Delegator(roles["delegation"]),
        Executor(roles["execution"], Unfiltered(retriever), ExecutorLimits()),
        Answerer(roles["answer"]),
        max_rounds=3,
    )


def limited(budget: Budget) -> tuple[RunContext, Ledger, Auditor]:
    """Return a run with this budget."""
    auditor = Auditor()
    ledger = Ledger(journal=auditor, allowance=Allowance(budget))
    return RunContext.lasting(60.0, lambda _event: None, ledger), ledger, auditor


TEXTS: dict[RoleName, list[str]] = {
    "delegation": [block("a?"), block("a?", "b?", "c?"), STOP, "neither"],
    "execution": [
        "<search>Who directed Heat?</search>",
        report("Michael Mann", "By Michael Mann."),
        "neither",
    ],
    "answer": ["<answer>Michael Mann</answer>"],
}
BUDGETS = st.builds(
    Budget,
    max_total_tokens=st.none() | st.integers(0, 15_000),
    max_nano_usd=st.none() | st.integers(0, 20_000_000),
    role_tokens=st.dictionaries(st.sampled_from(ROLES), st.integers(0, 5000), max_size=2),
)


@settings(max_examples=100, deadline=None)
@given(BUDGETS, st.integers(), st.booleans(), st.booleans(), st.sampled_from([64, 800]))
async def test_a_budget_is_never_exceeded(
    budget: Budget, seed: int, counts: bool, flaky: bool, max_tokens: int
) -> None:
    """Outputs, corrections, retries, cuts and usages are random, up to the worst case.

    No limit is exceeded at any time, and the run ends in an answer or in a typed error.
    """
    chance = random.Random(seed)
    models: dict[RoleName, Model] = {
        name: Spender(TEXTS[name], chance, counts=counts, flaky=flaky) for name in ROLES
    }
    context, ledger, auditor = limited(budget)
    try:
        trajectory = await searching(models, max_tokens=max_tokens).run(QUESTION, context)
        assert trajectory.answer
    except BudgetExhausted:
        assert budget != Budget()
    except UpstreamUnavailable:
        assert flaky
    await ledger.close(10)
    known = [call.usage for call in ledger.calls if call.usage is not None]
    by_role = Counter[RoleName]()
    for call in ledger.calls:
        by_role[call.role] += call.charged.tokens
    if budget.max_total_tokens is not None:
        assert (
            sum(usage.total_tokens for usage in known)
            <= auditor.peak.tokens
            <= budget.max_total_tokens
        )
    if budget.max_nano_usd is not None:
        spent = sum(call.nano_usd or 0 for call in ledger.calls)
        assert spent <= (auditor.peak.nano_usd or 0) <= budget.max_nano_usd
    for name, cap in budget.role_tokens.items():
        assert by_role[name] <= cap


def scripted(*delegations: str) -> dict[RoleName, Model]:
    """Return models whose tokens are words."""
    return {
        "delegation": ScriptedModel([*delegations]),
        "execution": ScriptedModel(finds),
        "answer": ScriptedModel(lambda _: "<answer>Michael Mann</answer>"),
    }


async def run(budget: Budget, *delegations: str) -> tuple[Trajectory, Ledger]:
    """Run a question under a budget."""
    context, ledger, _ = limited(budget)
    return await searching(scripted(*delegations)).run(QUESTION, context), ledger


async def test_a_run_that_would_overrun_answers_from_its_reports() -> None:
    """It stops delegating as soon as another step might take tokens that the answer needs."""
    rounds = [block("Who?"), block("When?"), block("Where?")]
    whole, ledger = await run(Budget(max_total_tokens=10**6), *rounds)
    assert (whole.outcome, len(whole.executions)) == ("rounds_exhausted", 3)
    outcomes = set[tuple[str, int]]()
    for tokens in range(0, sum(call.charged.tokens for call in ledger.calls) + 300, 10):
        try:
            trajectory, _ = await run(Budget(max_total_tokens=tokens), *rounds)
        except BudgetExhausted:
            assert not outcomes  # a larger budget suffices too
            continue
        assert trajectory.answer == "Michael Mann"
        outcomes.add(
            (
                trajectory.outcome,
                sum(bool(execution.report.evidence) for execution in trajectory.executions),
            )
        )
    assert outcomes >= {("budget_exhausted", 1), ("budget_exhausted", 2), ("rounds_exhausted", 3)}


async def test_the_rest_of_a_budget_shortens_the_last_output() -> None:
    """Where a whole call fits, the run equals the run without a budget."""
    asked: dict[int, list[Prompt]] = {}
    for tokens in (10**6, 1300):
        models = scripted(block("Who directed Heat?"), STOP)
        context, ledger, _ = limited(Budget(max_total_tokens=tokens))
        trajectory = await searching(models, max_tokens=800).run(QUESTION, context)
        assert (trajectory.answer, ledger.refusal is None) == ("Michael Mann", tokens == 10**6)
        asked[tokens] = [prompt for model in models.values() for prompt in model.prompts]  # type: ignore[attr-defined]
    assert {prompt.sampling.max_tokens for prompt in asked[10**6]} == {800}
    assert all(200 <= prompt.sampling.max_tokens <= 800 for prompt in asked[1300])
    assert min(prompt.sampling.max_tokens for prompt in asked[1300]) < 800


async def test_an_executor_that_runs_out_of_budget_reports_nothing() -> None:
    """Its report is neutral, and the answer comes from the reports of the others."""
    trajectory, ledger = await run(
        Budget(role_tokens={"execution": 100}), block("Who directed Heat?"), block("And who else?")
    )
    assert [execution.outcome for execution in trajectory.executions] == [
        "reported",
        "budget_exhausted",
    ]
    assert (trajectory.answer, trajectory.outcome) == ("Michael Mann", "budget_exhausted")
    assert [call.role for call in ledger.calls].count("delegation") == 2


async def test_a_search_cut_by_the_budget_names_it_as_the_reason() -> None:
    """The reports do not hold the answer."""
    outcomes = set[str]()
    for tokens in range(80, 500, 10):
        models = scripted(block("Who?"), block("When?"), block("Where?"))
        models["answer"] = ScriptedModel(lambda _: "<answer>not found</answer>")
        context, _, _ = limited(Budget(role_tokens={"delegation": tokens}))
        with suppress(BudgetExhausted):  # raised before the first report
            trajectory = await searching(models).run(QUESTION, context)
            assert trajectory.answer == "not found in your documents"
            outcomes.add(trajectory.outcome)
    assert outcomes == {"budget_exhausted", "not_found"}


async def test_a_budget_too_small_for_any_report_is_refused_by_its_limit() -> None:
    """Without a report there is no answer, so the error is raised."""
    with pytest.raises(BudgetExhausted, match=r"budget\.role_budgets: 10 tokens for execution"):
        await run(Budget(role_tokens={"execution": 10}), block("a?"))
    with pytest.raises(BudgetExhausted, match=r"budget\.max_total_tokens"):
        await run(Budget(max_total_tokens=10))
    context, ledger, _ = limited(Budget(role_tokens={"answer": 10}))
    with pytest.raises(BudgetExhausted, match="for answer"):  # reserved first
        await searching(scripted(block("a?"))).run(QUESTION, context)
    assert ledger.calls == ()


class Quota(NoJournal):
    """A quota of so many calls."""

    def __init__(self, calls: int) -> None:
        self.left = calls
        self.held = list[Amount]()

    async def open(self, call: OpenedCall) -> None:
        if call.role != "answer" and not self.left:
            nothing = Remaining("tokens", 0)
            raise QuotaExhausted("no more today", retry_after_s=60.0, left=nothing)
        self.left -= 1

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        self.held.append(amount)


async def test_the_quota_of_a_tenant_stops_a_run_as_well() -> None:
    """With a report it answers. Without one, the error says when to retry."""
    for calls in range(4):
        ledger = Ledger(journal=Quota(calls), limited=True)
        context = RunContext.lasting(60.0, lambda _event: None, ledger)
        search = searching(scripted(block("Who directed Heat?"), STOP))
        if calls == 3:
            assert (await search.run(QUESTION, context)).outcome == "budget_exhausted"
            continue
        with pytest.raises(QuotaExhausted) as refused:
            await search.run(QUESTION, context)
        assert refused.value.retry_after_s == 60.0


class Minute(NoJournal):
    """A limit per minute that is used up after so many calls, and then for a moment."""

    def __init__(self, calls: int, wait_s: float) -> None:
        self._left = calls
        self._wait_s = wait_s
        self._next: float | None = None

    async def open(self, call: OpenedCall) -> None:
        now = time.monotonic()
        if self._left == 0:
            self._next = self._next or now + self._wait_s
            if now < self._next:
                raise QuotaExhausted("not in this minute", retry_after_s=self._next - now)
        self._left -= 1


async def test_a_run_under_way_waits_for_the_next_minute() -> None:
    """A run that has just begun is refused, and one whose search ends before answers from what it
    has found.
    """
    for calls in range(1, 5):
        ledger = Ledger(journal=Minute(calls, 0.01), limited=True)
        context = RunContext.lasting(60.0, lambda _event: None, ledger)
        search = searching(scripted(block("Who directed Heat?"), STOP))
        assert (await search.run(QUESTION, context)).outcome == "answered"
        assert {(call.purpose, call.attempt) for call in ledger.calls} == {("first", 1)}
    for calls, wait_s in ((0, 0.01), (1, 60.0)):
        ledger = Ledger(journal=Minute(calls, wait_s), limited=True)
        context = RunContext.lasting(30.0, lambda _event: None, ledger)
        with pytest.raises(QuotaExhausted, match="not in this minute"):
            await searching(scripted(block("a?"), STOP)).run(QUESTION, context)
        assert len(ledger.calls) == calls


class TokenQuota(NoJournal):
    """A quota of so many tokens for the answer and everything before it."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    async def reserve_for_answer(self, run_id: str, amount: Amount) -> None:
        if amount.tokens > self._tokens:
            nothing = Remaining("tokens", 0)
            raise QuotaExhausted("no more today", retry_after_s=60.0, left=nothing)


async def test_a_quota_too_small_for_a_question_is_refused_before_any_call() -> None:
    """It has room for the answer only, which used to be enough to pay the delegator for nothing."""
    quota = Quota(99)
    context = RunContext.lasting(60.0, lambda _event: None, Ledger(journal=quota, limited=True))
    await searching(scripted(block("Who directed Heat?"), STOP)).run(QUESTION, context)
    whole, alone, *more = (amount.tokens for amount in quota.held)
    for tokens, calls in ((alone, 0), (whole - 1, 0), (max(whole, *more), 5)):
        ledger = Ledger(journal=TokenQuota(tokens), limited=True)
        context = RunContext.lasting(60.0, lambda _event: None, ledger)
        search = searching(scripted(block("Who directed Heat?"), STOP))
        with nullcontext() if calls else pytest.raises(QuotaExhausted):
            await search.run(QUESTION, context)
        assert len(ledger.calls) == calls


async def test_the_hold_grows_with_the_reports() -> None:
    """At first it covers the minimum of a question, then its answer, then the reports to come as
    well, then those that came. Without limits nothing is reserved.
    """
    quota = Quota(99)
    context = RunContext.lasting(60.0, lambda _event: None, Ledger(journal=quota))
    await searching(scripted(block("Who directed Heat?"), STOP)).run(QUESTION, context)
    assert (quota.held, [call.reserved for call in context.ledger.calls]) == ([], [NOTHING] * 5)

    ledger = Ledger(journal=quota, limited=True)
    context = RunContext.lasting(60.0, lambda _event: None, ledger)
    await searching(scripted(block("Who directed Heat?"), STOP)).run(QUESTION, context)
    whole, alone, coming, came = (amount.tokens for amount in quota.held)
    assert alone < whole
    assert alone < came < coming
    (answered,) = (call for call in ledger.calls if call.role == "answer")
    assert answered.usage is not None
    assert came == answered.usage.prompt_tokens + answered.max_tokens
