"""Managers: their asks, reports and hand-ons, and the cost of three layers."""

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from router.errors import BudgetExhausted, UpstreamRefused
from router.ledger import Budget, Ledger
from router.ledger.budget import Allowance
from router.models import Completion, OnDelta, Prompt
from router.protocol import NO_EVIDENCE, parse_decision, parse_turn
from router.protocol.decision import Dispatch
from router.protocol.turns import ReportTurn
from router.search import Executor, RunContext
from router.search.agent import ExecutorLimits
from router.search.context import Reporting
from router.search.managers import Managers
from router.table.filling import TABLE_REPORTING
from router.trace import Call, Event, Execution, Trajectory
from router.trace.call import layer_of, totals
from router.trace.values import SearchDone, SubQueryDispatched, by_executors
from tests.router.clock import Clock, with_clock
from tests.router.deployment import STOP, Deployment, HeldModel, block, lasting, report, role
from tests.router.layers import QUESTION, STEPS, Layers, Pages, answers, leads_alone, manages, works
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import Answer, ScriptedModel

PROMPTS = Path(__file__).parents[3] / "serving" / "prompts" / "full"
VALUES = [f"value-{number}" for number in range(8)]


def tokens(calls: Sequence[Call]) -> dict[str, int]:
    """Tokens by layer."""
    by_layer: dict[str, int] = {}
    for call in calls:
        assert call.usage
        by_layer[layer_of(call)] = by_layer.get(layer_of(call), 0) + call.usage.total_tokens
    return by_layer


async def worked(
    layers: Layers, sub_query: str = STEPS[0], manager: str = ""
) -> tuple[Execution, RunContext]:
    """Return the execution of one step by managers."""
    context = replace(lasting(), manager=manager)
    return await layers.of().run(sub_query, 3, context), context


async def test_calls_are_booked_under_their_step_manager_and_worker() -> None:
    """Steps go to managers, facts to workers."""
    layers = Layers()
    events = list[Event]()
    context = lasting(events=events)
    trajectory = await layers.search().run(QUESTION, context)
    assert (trajectory.outcome, trajectory.topology, trajectory.answer) == (
        "answered",
        "host",
        " ".join(VALUES),
    )
    assert [
        (execution.sub_query, execution.outcome, execution.manager)
        for execution in trajectory.executions
    ] == [(step, "reported", "search") for step in STEPS]
    assert all(
        execution.work and len(execution.work.executions) == 4
        for execution in trajectory.executions
    )
    assert len(list(by_executors(trajectory.executions))) == 8
    at = {
        (layer_of(call), call.sub_query_index, call.manager, call.worker)
        for call in context.ledger.calls
    }
    assert at == {
        ("delegation", None, "", None),
        ("answer", None, "", None),
        *(("management", step, "search", None) for step in (0, 1)),
        *(("execution", step, "search", worker) for step in (0, 1) for worker in range(4)),
    }
    assert [event.manager for event in events if isinstance(event, SubQueryDispatched)] == [
        "",
        "search",
    ]
    assert (
        sorted(event.index for event in events if isinstance(event, SearchDone))
        == [0] * 4 + [1] * 4
    )
    by_manager = {
        (total.role, total.manager): total.attempts for total in totals(context.ledger.calls)
    }
    assert by_manager == {
        ("delegation", ""): 2,
        ("delegation", "search"): 4,
        ("execution", "search"): 16,
        ("answer", ""): 1,
    }


async def test_workers_spend_four_fifths_and_the_delegator_prompt_does_not_grow() -> None:
    """Compare with two layers on the same question."""
    layers = Layers()
    context = lasting()
    context_of_two = lasting()
    await layers.search().run(QUESTION, context)
    alone = ScriptedModel(leads_alone, "backbone")
    models = Deployment(
        alone, ScriptedModel(works, "small"), ScriptedModel(answers, "fixed"), Pages()
    )
    trajectory = await models.search().run(QUESTION, context_of_two)
    assert trajectory.answer == " ".join(VALUES)
    of_host = tokens(context.ledger.calls)
    of_two = tokens(context_of_two.ledger.calls)
    longest = [
        max(len(_text(prompt)) for prompt in model.prompts) for model in (layers.delegator, alone)
    ]
    share = of_host["execution"] / sum(of_host.values())
    print(
        f"\nhost {of_host}, {share:.1%} in workers; factorized {of_two}; delegator's "
        f"longest prompt {longest}"
    )
    assert share >= 0.8
    assert of_host["delegation"] <= of_two["delegation"]
    assert longest[0] <= longest[1]


def _text(prompt: Prompt) -> str:
    return "\n".join(message.content for message in prompt.messages)


async def test_a_manager_asks_again_for_missing_facts() -> None:
    """It continues from the reports that it has."""

    def twice(prompt: Prompt) -> Answer:
        return (
            UpstreamRefused("no", endpoint="x")
            if "What is fact 2" in _text(prompt)
            else works(prompt)
        )

    layers = Layers(workers={"search": ScriptedModel(twice), "browser": ScriptedModel(works)})
    execution, context = await worked(layers)
    assert execution.work
    assert execution.work.rounds == (4, 1)
    assert (execution.outcome, execution.report.answer) == (
        "reported",
        "value-0; value-1; value-2; value-3",
    )
    assert not context.failures


async def test_in_the_last_round_a_manager_is_asked_to_report_and_corrected_once() -> None:
    """The request comes with the reports of that round."""
    outputs = [
        block("What is fact 0?"),
        block("What is fact 1?"),
        "nothing of use",
        report("both", "value-0, value-1"),
    ]
    manager = ScriptedModel(outputs)
    execution, _ = await worked(Layers(managers={"search": manager}))
    assert (execution.outcome, execution.report.answer) == ("reported", "both")
    shown = [prompt.messages for prompt in manager.prompts]
    assert [message.role for message in shown[2]] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert shown[2][-1].content.endswith("with one to three short points.")
    assert "<search_results>" in shown[2][-1].content
    assert [message.role for message in shown[3][-2:]] == ["assistant", "user"]
    assert execution.work
    assert execution.work.delegation
    assert len(execution.work.delegation.outputs) == 4


@pytest.mark.parametrize(
    "outputs", [[report("42", "I know it")], [STOP], ["?", "?"], [block("What is fact?"), STOP]]
)
async def test_without_worker_evidence_a_manager_makes_no_report(outputs: list[str]) -> None:
    """No model is asked to guess."""

    def fails(prompt: Prompt) -> Answer:
        return UpstreamRefused("no", endpoint="x")

    layers = Layers(
        managers={"search": ScriptedModel(outputs)}, workers={"search": ScriptedModel(fails)}
    )
    execution, context = await worked(layers)
    assert (execution.report, execution.failed) == (NO_EVIDENCE, True)
    assert (3 in context.failures) == (outputs != [report("42", "I know it")] and outputs != [STOP])


@pytest.mark.parametrize(
    ("named", "asked"), [("", "search"), ("browser", "browser"), ("nobody", "search")]
)
async def test_an_unknown_or_missing_manager_name_means_the_first(named: str, asked: str) -> None:
    execution, context = await worked(Layers(), manager=named)
    assert execution.manager == asked
    assert {call.manager for call in context.ledger.calls} == {asked}


def blocked(*, browser: Sequence[int] = ()) -> Layers:
    """Facts 0 to 3 are blocked for the manager `search`."""
    return Layers(pages={"search": Pages(range(4)), "browser": Pages(browser)})


async def test_a_blocked_fact_is_asked_for_at_the_named_manager_only() -> None:
    """Only that manager answers it."""
    context = lasting()
    trajectory = await blocked().search().run(QUESTION, context)
    first, second = trajectory.executions
    assert trajectory.answer == " ".join(VALUES)
    assert (first.manager, first.outcome, second.manager, second.before) == (
        "browser",
        "reported",
        "search",
        None,
    )
    assert first.before
    assert (first.before.manager, first.before.outcome, first.before.report.escalate_to) == (
        "search",
        "escalated",
        "browser",
    )
    assert {call.manager for call in context.ledger.calls if call.sub_query_index == 0} == {
        "search",
        "browser",
    }
    assert first.before.work
    assert first.before.work.delegation
    # Worker reports in the prompt of the manager
    shown = first.before.work.delegation.messages[3].content
    assert shown.count("<escalate_to>browser</escalate_to></result>") == 4
    assert len(list(by_executors(trajectory.executions))) == 12
    alone = Layers(managers={"search": ScriptedModel(manages)}, pages={"search": Pages(range(4))})
    assert (await alone.search().run(QUESTION, lasting())).answer == " ".join(VALUES[4:])


async def test_escalation_ends_where_no_other_manager_can_help() -> None:
    """The other manager is also blocked, and names itself or the first: the step has no report."""
    execution, context = await worked(blocked(browser=range(4)))
    assert (execution.manager, execution.outcome) == ("browser", "escalated")
    assert execution.report.answer == "the page is blocked"
    assert execution.before
    assert execution.before.before is None
    assert len(context.ledger.calls) == 2 * (2 + 4 * 2)


async def test_a_manager_may_hand_on_before_any_worker_was_asked() -> None:
    """An unknown name changes nothing."""
    hand_on = '<escalate to="{}">only pages say it</escalate>'
    browser = ScriptedModel(manages)
    for name, outcome, at in (
        ("browser", "reported", "browser"),
        ("nobody", "escalated", "search"),
    ):
        managers = {"search": ScriptedModel([hand_on.format(name)]), "browser": browser}
        execution, _ = await worked(Layers(managers=managers))
        assert (execution.outcome, execution.manager) == (outcome, at)


HANDED_ON = '<escalate to="{}">the rest is blocked</escalate>'


@pytest.mark.parametrize("written", ["", report("mine", "so it is")])
@pytest.mark.parametrize("name", ["browser", "nobody"])
async def test_found_evidence_is_kept_where_a_hand_on_fails(name: str, written: str) -> None:
    """If the named manager fails or does not exist, the first manager's report counts if it has
    evidence, otherwise its workers' reports.
    """
    outputs = [block("What is fact 1?"), written + HANDED_ON.format(name)]
    dead = ScriptedModel(lambda _: UpstreamRefused("no", endpoint="x"))
    execution, _ = await worked(
        Layers(managers={"search": ScriptedModel(outputs), "browser": dead})
    )
    assert (execution.manager, execution.outcome, execution.report.escalate_to) == (
        "search",
        "escalated",
        name,
    )
    expected = ("mine", ("so it is",)) if written else ("value-1", ("It is value-1",))
    assert (execution.report.answer, execution.report.evidence) == expected


async def test_a_report_without_worker_reports_is_discarded() -> None:
    """The name of another manager in it makes no difference."""
    layers = Layers(
        managers={
            "search": ScriptedModel([report("mine", "so it is") + HANDED_ON.format("nobody")])
        }
    )
    execution, _ = await worked(layers)
    assert execution.report == replace(NO_EVIDENCE, escalate_to="nobody")


@pytest.mark.parametrize("dead", ["manager", "workers"])
async def test_a_failed_manager_costs_only_its_own_steps(dead: str) -> None:
    broken = ScriptedModel(lambda _: UpstreamRefused("no", endpoint="x"))
    layers = Layers(
        delegator=ScriptedModel(
            [f'<search>{STEPS[0]}</search><search manager="browser">{STEPS[1]}</search>', STOP]
        )
    )
    layers.managers = dict(layers.managers)
    layers.workers = dict(layers.workers)
    (layers.managers if dead == "manager" else layers.workers)["browser"] = broken
    context = lasting()
    trajectory = await layers.search().run(QUESTION, context)
    assert trajectory.answer == " ".join(VALUES[:4])
    assert [execution.outcome for execution in trajectory.executions] == [
        "reported",
        "model_failed",
    ]
    assert list(context.failures) == [1]


async def test_a_report_that_cannot_be_written_is_made_of_the_workers_reports() -> None:
    def silent(prompt: Prompt) -> Answer:
        return manages(prompt) if len(prompt.messages) == 2 else UpstreamRefused("no", endpoint="x")

    execution, context = await worked(Layers(managers={"search": ScriptedModel(silent)}))
    assert (execution.outcome, execution.report.answer.split("\n")) == ("reported", VALUES[:4])
    assert len(execution.report.evidence) == 3
    assert not context.failures


def at_length() -> Layers:
    """Layers whose workers write long reports and whose manager never reports."""

    def works_at_length(prompt: Prompt) -> Answer:
        text = "a value " * 14
        return works(prompt) if len(prompt.messages) == 2 else report(text, text)

    def silent(prompt: Prompt) -> Answer:
        return manages(prompt) if len(prompt.messages) == 2 else UpstreamRefused("no", endpoint="x")

    return Layers(
        managers={"search": ScriptedModel(silent)},
        workers={"search": ScriptedModel(works_at_length)},
    )


@pytest.mark.parametrize("reporting", [Reporting(), TABLE_REPORTING], ids=["answer", "table"])
async def test_long_worker_reports_are_cut_where_they_replace_a_report(
    reporting: Reporting,
) -> None:
    """The reservation for an answer is then large enough. Reports of tables are not cut."""

    managers = at_length().of()
    execution = await managers.run(STEPS[0], 3, replace(lasting(), reporting=reporting))
    size = sum(map(len, (execution.report.answer, *execution.report.evidence)))
    assert execution.outcome == "reported"
    assert (size > 4 * managers.report_tokens) == (reporting is TABLE_REPORTING)


@pytest.mark.parametrize("layers", [Layers, at_length])
@pytest.mark.parametrize("limit", range(60, 4000, 60))
async def test_budgets_hold_through_all_layers(limit: int, layers: Callable[[], Layers]) -> None:
    """Spending plus reservations never exceed the budget, and the answer comes from the reports so
    far.
    """
    budget = Budget(max_total_tokens=limit)
    context = RunContext.lasting(60.0, lambda _: None, Ledger(allowance=Allowance(budget)))
    try:
        trajectory = await layers().search().run(QUESTION, context)
        assert trajectory.answer or trajectory.outcome == "budget_exhausted"
    except BudgetExhausted:
        left = context.draft.result
        assert not isinstance(left, Trajectory) or not any(
            execution.report.evidence for execution in left.executions
        )
    spent = sum(call.usage.total_tokens for call in context.ledger.calls if call.usage)
    assert spent <= limit


@pytest.mark.parametrize("reporting", [Reporting(), TABLE_REPORTING], ids=["answer", "table"])
async def test_a_budget_that_ends_within_a_manager_keeps_the_workers_findings(
    reporting: Reporting,
) -> None:
    """They are reported in the form of the manager, so that a table reads them."""
    cut = 0
    for limit in range(100, 3000, 100):
        context = RunContext.lasting(
            60.0, lambda _: None, Ledger(allowance=Allowance(Budget(max_total_tokens=limit)))
        )
        execution = await Layers().of().run(STEPS[0], 3, replace(context, reporting=reporting))
        assert execution.work
        reports = [work.report for work in execution.work.executions]
        grounds = any(report.evidence for report in reports)
        assert execution.outcome == ("reported" if grounds else "budget_exhausted")
        cut += grounds and "; " not in execution.report.answer  # the manager's form
    assert cut


@pytest.mark.parametrize("held", ["delegator", "manager", "worker", "answerer"])
async def test_cancelling_reaches_every_layer_and_every_call_has_its_row(held: str) -> None:
    layers = Layers()
    models = {
        "delegator": layers.delegator,
        "manager": layers.managers["search"],
        "worker": layers.workers["search"],
        "answerer": layers.answerer,
    }
    model = HeldModel(models[held])
    layers.managers = dict(layers.managers) | ({"search": model} if held == "manager" else {})
    layers.workers = dict(layers.workers) | ({"search": model} if held == "worker" else {})
    layers.delegator = model if held == "delegator" else layers.delegator
    layers.answerer = model if held == "answerer" else layers.answerer
    context = lasting()
    asking = asyncio.create_task(layers.search().run(QUESTION, context))
    await asyncio.wait_for(model.called.wait(), 10)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await context.ledger.close(1.0)
    assert model.cancelled.is_set()
    assert "cancelled" in {call.outcome for call in context.ledger.calls}


class Paced(ScriptedModel):
    """A model that takes a second for each turn."""

    async def complete(self, prompt: Prompt) -> Completion:
        await asyncio.sleep(1.0)
        return await super().complete(prompt)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        return await ScriptedModel.stream(self, prompt, on_delta, live=live)


def lasted(layers: Layers, time_s: float = 1000.0) -> tuple[float, Trajectory]:
    """Return the seconds that a question takes, on the clock of the test."""

    async def asked(clock: Clock) -> tuple[float, Trajectory]:
        begun = clock.now
        asking = asyncio.ensure_future(layers.search().run(QUESTION, lasting(time_s)))
        while not asking.done():
            await clock.advance(0.5)
        return clock.now - begun, await asking

    return with_clock(asked)


def paced(**settings: Any) -> Layers:
    """Layers whose workers take a second for each turn."""
    lead = ScriptedModel([block("Look up facts 0 1 2 3 4 5 6 7."), STOP])
    return Layers(lead, workers={name: Paced(works) for name in ("search", "browser")}, **settings)


def test_eight_parallel_workers_take_less_than_a_third_of_the_time() -> None:
    took = {width: lasted(paced(max_workers=width))[0] for width in (1, 2, 4, 8)}
    print(
        "\nworkers at a time: "
        + ", ".join(f"{n} {s:g} s ({took[1] / s:.1f}x)" for n, s in took.items())
    )
    assert took[1] / took[8] >= 3


def test_deadlines_leave_time_for_reports_and_the_answer() -> None:
    """A manager keeps time to report its workers' findings, and the answerer to write."""
    took, trajectory = lasted(paced(max_workers=2), 8.0)
    assert took <= 8.5
    (execution,) = trajectory.executions
    assert execution.work
    assert execution.work.outcome == "time_exhausted"
    assert {work.outcome for work in execution.work.executions} == {"reported", "timed_out"}
    assert 0 < len(trajectory.answer.split()) < 8


async def test_without_managers_an_executor_that_names_one_has_no_report() -> None:
    """The delegator reads the reason."""
    models = Deployment(executor=ScriptedModel(works), retriever=Pages(range(4)))
    trajectory = await models.search().run("?", lasting())
    assert [(execution.outcome, execution.failed) for execution in trajectory.executions] == [
        ("reported", False)
    ]
    executor = Executor(
        role("execution", ScriptedModel(works)), Unfiltered(Pages(range(4))), ExecutorLimits()
    )
    execution = await executor.run("What is fact 1?", 0, lasting())
    assert (execution.outcome, execution.report.escalate_to, execution.failed) == (
        "escalated",
        "browser",
        True,
    )


def test_managers_keep_the_order_of_the_config() -> None:
    """The first one is asked where none is named."""
    managers: Managers = Layers().of()
    assert managers.names == ("search", "browser")
    assert managers.report_tokens == 64
    layers = Layers()
    made = layers.manager("search")
    wordy = replace(
        made,
        workers=Executor(
            role("execution", layers.workers["search"], max_tokens=99), None, ExecutorLimits()
        ),
    )
    assert Managers([made, wordy]).report_tokens == 99


def test_examples_in_the_prompts_are_read_as_intended() -> None:
    """The turns of the example, the name in a block, and the hand-on."""
    prompt = (PROMPTS / "manager.txt").read_text("utf-8")
    first, second, last = re.findall(r"^You: (.*(?:\n[A-Z].*</evidence>)?)$", prompt, re.MULTILINE)
    for text, size in ((first, 2), (second, 1)):
        decision = parse_decision(text, limit=8)
        assert isinstance(decision, Dispatch)
        assert len(decision.sub_queries) == size
    turn = parse_turn(last)
    assert isinstance(turn, ReportTurn)
    assert len(turn.report.evidence) == 2
    (hand_on,) = re.findall("<escalate.*</escalate>", prompt)
    turn = parse_turn(hand_on)
    assert isinstance(turn, ReportTurn)
    assert turn.report.escalate_to == "NAME"
    host = (PROMPTS / "host.txt").read_text("utf-8")
    (block_of_one,) = re.findall("<search.*</search>", host)
    named = parse_decision(block_of_one.replace("…", "Who?"), limit=8, managed=True)
    assert named == Dispatch(("Who?",), (), ("NAME",))
    assert "{managers}" in host
