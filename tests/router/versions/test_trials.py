"""Trials: the other version works on answered questions; no client waits for it and no tenant pays
for it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from router.access import Tenant
from router.background import background_tasks
from router.calls import Role
from router.errors import (
    BadVersion,
    ContextTooLong,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger import Budget, UsageQuery
from router.models import Message, Model, Prompt, Sampling
from router.protocol import Passage, Vocabulary
from router.protocol.vocabulary import words
from router.runs import Gateway, RequestOptions, RunLifecycle, Runs
from router.runs.gateway import CompletionRequest
from router.runs.live import LiveRuns
from router.search import (
    Answerer,
    Delegator,
    Executor,
    FactorizedSearch,
    Indexes,
    Topology,
)
from router.search.agent import ExecutorLimits
from router.search.answerer import Judge
from router.search.executor import Executes
from router.search.retrieval import IndexRetriever
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.trace import RoleName, Run, Trajectory
from router.trace.identity import LOCAL, SCOPES, Identity
from router.trace.run import Feedback
from router.versions import GateRule, HeldOutQuestion, HeldOutTest, Trials, VersionRouting, Versions
from router.versions.book import Judgement, Side, Source, Traffic
from tests.router.clock import ended
from tests.router.deployment import PASSAGE, STOP, HeldModel, block, lasting, report, role
from tests.router.retriever import FixedRetriever, NamedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import Answer, ScriptedModel

BASE = "base"
NEW = "executor-000001"
QUESTION = "Was the director of Heat born before 1950?"
SUB_QUERY = "Who directed Heat?"
OWNER = Identity("owner", SCOPES)


def delegates(prompt: Prompt) -> str:
    """Ask one sub-query in one round, then stop."""
    return block(SUB_QUERY) if len(prompt.messages) == 2 else STOP


def answers(prompt: Prompt) -> str:
    """Return the first report's answer."""
    text = prompt.messages[1].content
    return f"<answer>{text.split('</request><answer>')[1].split('</answer>')[0]}</answer>"


def reports(answer: str) -> Callable[[Prompt], str]:
    """Return an executor's script that searches once and reports `answer`."""
    return lambda prompt: (
        f"<search>{SUB_QUERY}</search>"
        if len(prompt.messages) == 2
        else report(answer, "It says so.")
    )


@dataclass
class Models:
    """The models of a deployment."""

    executors: dict[str, Model] = field(
        default_factory=lambda: {
            BASE: ScriptedModel(reports("Michael Mann"), BASE),
            NEW: ScriptedModel(reports("Al Pacino"), NEW),
        }
    )
    delegator: Model = field(default_factory=lambda: ScriptedModel(delegates, "backbone"))
    answerer: Model = field(default_factory=lambda: ScriptedModel(answers, "fixed"))
    judge: Model | None = None
    retriever: IndexRetriever | Indexes = field(
        default_factory=lambda: Unfiltered(FixedRetriever({SUB_QUERY: [PASSAGE]}))
    )

    def executor(self, version: str) -> Executor:
        """Return the executor of a version."""
        model = Role(
            "execution",
            self.executors[version],
            "execute",
            Sampling(64),
            1,
            executor_version=version,
        )
        return Executor(model, self.retriever, ExecutorLimits())

    def search(self, executor: Executes) -> FactorizedSearch:
        """Return the search loop with an executor."""
        return FactorizedSearch(
            Delegator(role("delegation", self.delegator), 8),
            executor,
            Answerer(role("answer", self.answerer)),
        )


@dataclass
class Deployed:
    """A gateway over a real store, with its versions and trials in reach."""

    database: Database
    versions: Versions
    executors: VersionRouting
    trials: Trials
    gateway: Gateway
    runs: Runs
    book: SQLVersionBook
    reviewed: asyncio.Queue[None]
    live: LiveRuns
    lifecycle: RunLifecycle

    async def ask(self, identity: Identity = OWNER, **terms: Any) -> Run:
        """Ask the question and return the run."""
        return await self.gateway.answer(
            QUESTION, RequestOptions(identity, **terms), lambda _event: None
        )

    async def set(self, state: Any, share: float = 0.0) -> None:
        """Set the state of the new version and its share of the traffic."""
        await self.versions.set_traffic(NEW, state, share)
        await self.executors.refresh()

    async def ask_served(self, version: str) -> Run:
        """Ask the question until this version serves it, and return the run."""
        while True:
            with suppress(ContextTooLong):  # of the other version's reports
                if self.executors.traffic.serving((run := await self.ask()).id) == version:
                    return run

    async def next_review(self) -> None:
        """Wait until a trial or a judgement was recorded and reviewed."""
        await ended(self.reviewed.get())

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query on the database."""
        return await self.database.read(
            lambda connection: [tuple(row) for row in connection.exec_driver_sql(statement)]
        )


@asynccontextmanager
async def deployed(
    folder: Path,
    models: Models | None = None,
    *,
    working: bool = True,
    tenants: Sequence[Tenant] = (),
    gate: GateRule | None = None,
    held_out: Sequence[HeldOutQuestion] = (),
) -> AsyncIterator[Deployed]:
    """Open all of a gateway but its edge, with a second version next to the configured model.

    `working` runs the trials. `tenants` are stored before the start. With `gate` None, the test
    makes all decisions.
    """
    models = models or Models()
    async with AsyncExitStack() as stack:
        database = await Database.open(f"sqlite:///{folder / 'runs.db'}")
        stack.push_async_callback(database.close)
        for tenant in tenants:
            await SQLAccounts(database).set_tenant(tenant)
        live = LiveRuns()
        archive = SQLArchive(database)
        book = SQLVersionBook(database)
        journal = await stack.enter_async_context(
            LogJournal.writing(database, on_cancel=live.cancel)
        )

        async def load(version: str) -> str:
            return f'{{"version": "{version}"}}'

        async def traffic() -> Traffic:
            return await versions.traffic()

        executors = VersionRouting(models.executor, BASE, traffic, load)
        lifecycle = RunLifecycle(journal, archive, live, {}, 60.0)
        examination = HeldOutTest(held_out, executors, models.search, lifecycle)
        versions = Versions(
            book,
            load,
            gate,
            canary_share=0.5,
            on_change=executors.refresh if held_out else None,
            held_out=examination if held_out else None,
        )
        await versions.ensure_base(BASE)
        await versions.register(NEW)
        await executors.refresh()
        reviewed: asyncio.Queue[None] = asyncio.Queue()

        async def review() -> None:
            await versions.review()
            reviewed.put_nowait(None)

        judge = Judge(role("judge", models.judge)) if models.judge else None
        trials = Trials(
            executors,
            models.search,
            lifecycle=lifecycle,
            book=book,
            archive=archive,
            review=review,
            judge=judge,
        )
        roles: dict[RoleName, Role] = {"delegation": role("delegation", models.delegator)}
        gateway = Gateway(
            topologies={"factorized": Topology(models.search(executors), roles)},
            executor=executors,
            roles=roles,
            lifecycle=lifecycle,
            vocabulary=Vocabulary(words(f"{QUESTION} {SUB_QUERY}"), ["Heat"]),
            on_answered=trials.consider,
        )
        runs = Runs(archive, live, trials.judge)
        if working:
            await stack.enter_async_context(background_tasks(trials.work()))
            await ended(reviewed.get())  # of what was learnt before
        yield Deployed(
            database, versions, executors, trials, gateway, runs, book, reviewed, live, lifecycle
        )


async def test_a_shadow_s_report_is_never_used(tmp_path: Path) -> None:
    """The client gets the active version's answer; the trial has both answers."""
    async with deployed(tmp_path) as here:
        await here.set("shadow")
        run = await here.ask()
        await here.next_review()
        trial = await here.book.trial(run.id)
        assert "Al Pacino" not in repr(await here.runs.get(run.id, OWNER))
    assert trial is not None
    assert (trial.candidate, trial.active, trial.stage) == (NEW, BASE, "shadow")
    assert (trial.by_active.answer, trial.by_candidate.answer) == ("Michael Mann", "Al Pacino")
    spent = sum(
        call.usage.total_tokens for call in run.calls if call.role == "execution" and call.usage
    )
    assert (trial.by_active.tokens, trial.by_active.failed, trial.by_candidate.failed) == (
        spent,
        False,
        False,
    )


async def test_a_shadow_searches_the_indexes_of_its_run(tmp_path: Path) -> None:
    """There is no other index, so that a search in another one would fail."""
    retriever = NamedRetriever({SUB_QUERY: [PASSAGE]})
    identity = msgspec.structs.replace(OWNER, indexes=("acme",))
    async with deployed(tmp_path, Models(retriever=Indexes({"acme": retriever}))) as here:
        await here.set("shadow")
        run = await here.ask(identity)
        await here.next_review()
        trial = await here.book.trial(run.id)
    assert trial is not None
    assert (trial.by_candidate.answer, trial.by_candidate.failed) == ("Al Pacino", False)
    assert retriever.queries == [SUB_QUERY] * 2


async def test_a_shadow_is_booked_apart(tmp_path: Path) -> None:
    """The run of a shadow belongs to the tenant `shadow`. Each of its calls has the purpose
    `shadow` and names the version, and none counts against the client's tenant.
    """
    async with deployed(tmp_path) as here:
        await here.set("shadow")
        run = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT tenant, kind, status FROM runs ORDER BY started_at") == [
            ("owner", "answer", "finished"),
            ("shadow", "shadow", "finished"),
        ]
        rows = await here.rows(
            "SELECT DISTINCT tenant, purpose, role, executor_version FROM calls ORDER BY 1, 3"
        )
        assert rows == [
            ("owner", "first", "answer", ""),
            ("owner", "first", "delegation", ""),
            ("owner", "first", "execution", BASE),
            ("shadow", "shadow", "answer", ""),
            ("shadow", "shadow", "delegation", ""),
            ("shadow", "shadow", "execution", NEW),
        ]
        report = await SQLUsages(here.database).usage(UsageQuery(by=("tenant",)))
        tokens = {row.tenant: row.prompt_tokens + row.completion_tokens for row in report.rows}
        spent = dict(
            await here.rows("SELECT tenant, tokens FROM spending WHERE length(period) = 10")
        )
    assert tokens == spent
    assert tokens["owner"] == sum(call.usage.total_tokens for call in run.calls if call.usage)


async def test_a_trial_whose_reports_agree_calls_the_executor_alone(tmp_path: Path) -> None:
    """Equal reports lead to equal answers, so the trial calls neither delegator nor answerer."""
    models = Models()
    models.executors[NEW] = ScriptedModel(reports("Michael Mann"), NEW)
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        run = await here.ask()
        await here.next_review()
        trial = await here.book.trial(run.id)
        assert {
            role for (role,) in await here.rows("SELECT role FROM calls WHERE tenant = 'shadow'")
        } == {"execution"}
    assert trial is not None
    assert trial.by_candidate == trial.by_active


async def test_a_canary_is_served_and_the_active_version_is_tried_alongside(tmp_path: Path) -> None:
    """The client of a canary's run gets the canary's answer. As many runs of the active version are
    tried.
    """
    async with deployed(tmp_path) as here:
        await here.set("canary", 0.3)
        runs = [await here.ask() for _ in range(16)]
        served = [run for run in runs if run.result.answer == "Al Pacino"]  # type: ignore[union-attr]
        assert served == [run for run in runs if here.executors.traffic.serving(run.id) == NEW]
        tried = [run for run in runs if here.executors.traffic.other(run.id)]
        for run in tried:
            async with asyncio.timeout(10):
                while (trial := await here.book.trial(run.id)) is None:
                    await here.reviewed.get()
            assert (trial.stage, trial.candidate_served) == ("canary", run in served)
            assert (trial.by_candidate.answer, trial.by_active.answer) == (
                "Al Pacino",
                "Michael Mann",
            )
        assert await here.rows("SELECT COUNT(*) FROM version_trials") == [(len(tried),)]


@pytest.mark.parametrize("identity", [OWNER, LOCAL])
@pytest.mark.parametrize("before_the_trial", [True, False])
async def test_feedback_judges_a_trial_before_and_after_its_end(
    tmp_path: Path, before_the_trial: bool, identity: Identity
) -> None:
    """The gate sees the judgement with its source and tenant."""
    async with deployed(tmp_path, working=False) as here:
        await here.set("canary", 0.5)
        run = await here.ask_served(BASE)
        if before_the_trial:
            await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), identity)
        async with background_tasks(here.trials.work()):
            while (trial := await here.book.trial(run.id)) is None:
                await here.next_review()
            if not before_the_trial:
                await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), identity)
            pairs = here.book.pairs
            while not (
                judgements := [
                    pair.judgement for pair in await pairs(NEW, "canary", 0.0) if pair.judgement
                ]
            ):
                await here.next_review()
    assert not trial.candidate_served
    source_and_tenant: tuple[Source, str] = (
        ("client", "owner") if identity is OWNER else ("operator", "")
    )
    assert judgements == [Judgement(True, False, *source_and_tenant, judgements[0].judged_at)]


def verdicts(prompt: Prompt) -> str:
    """Judge Mann's answer correct; expect the evidence and no right answer in the prompt."""
    shown = prompt.messages[-1].content
    assert "<evidence>It says so.</evidence>" in shown and "<right_answer>" not in shown
    return (
        "<verdict>correct</verdict>"
        if "<answer>Michael Mann</answer>" in shown
        else "<verdict>incorrect</verdict>"
    )


@pytest.mark.parametrize("stage", ["shadow", "canary"])
async def test_a_judge_is_asked_about_each_answer_separately(tmp_path: Path, stage: str) -> None:
    """The judge's calls are booked with the trial. The client's feedback does not override the
    verdict, the operator's does.
    """
    models = Models(judge=ScriptedModel(verdicts, "judge"))
    async with deployed(tmp_path, models) as here:
        await here.set(stage, 0.5 if stage == "canary" else 0.0)
        run = await here.ask()
        await here.next_review()

        async def judged() -> list[Source]:
            pairs = await here.book.pairs(NEW, stage, 0.0)  # type: ignore[arg-type]
            return [
                pair.judgement.source
                for pair in pairs
                if pair.judgement and pair.judgement.sign == -1
            ]

        assert await judged() == ["judge"]
        assert await here.rows(
            "SELECT tenant, COUNT(*) FROM calls WHERE role = 'judge' GROUP BY 1"
        ) == [("shadow", 2)]
        await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), OWNER)
        assert await judged() == ["judge"]
        await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), LOCAL)
        assert await judged() == ([] if stage == "canary" else ["judge"])


async def test_a_judge_that_fails_or_agrees_is_no_evidence(tmp_path: Path) -> None:
    """The trial counts all the same. Equal answers are not judged."""
    models = Models(judge=ScriptedModel([down(), "hm", "<verdict>correct</verdict>"], "judge"))
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        for _ in range(2):
            await here.ask()
            await here.next_review()
        models.executors[NEW] = models.executors[BASE]
        here.executors.of.cache_clear()
        await here.ask()
        await here.next_review()
        pairs = await here.book.pairs(NEW, "shadow", 0.0)
    assert [pair.judgement for pair in pairs] == [None] * 3


async def test_held_out_questions_are_asked_with_both_versions(tmp_path: Path) -> None:
    """Each question is a run of the operator and never listed. A second comparison is free."""
    async with deployed(tmp_path) as here:
        await here.set("canary", 0.5)
        questions = [
            HeldOutQuestion(QUESTION, ("Al Pacino", "De Niro")),
            HeldOutQuestion(QUESTION, ("Michael Mann",)),
        ]
        held_out = HeldOutTest(questions, here.executors, Models().search, here.lifecycle)
        for _ in range(2):
            assert await held_out.compare(NEW, BASE, 1.5) == [(True, False), (False, True)]
        assert await here.rows("SELECT DISTINCT tenant, kind FROM runs") == [("default", "shadow")]
        assert await here.rows("SELECT COUNT(*) FROM runs") == [(4,)]
        assert await HeldOutTest(
            questions[:1], here.executors, Models().search, here.lifecycle
        ).compare(NEW, BASE, 2.5) == [(True, False)]
        assert await here.rows("SELECT COUNT(*) FROM runs") == [(6,)]


async def test_a_version_goes_from_shadow_to_active_by_the_gate_alone(tmp_path: Path) -> None:
    """Clients ask meanwhile, and the operator gives the right answers."""
    questions = [
        HeldOutQuestion(f"{QUESTION}{' ' * number}", ("Al Pacino",)) for number in range(4)
    ]
    gate = GateRule(0.5, 0.5, 100.0, 10_000)
    async with deployed(tmp_path, gate=gate, held_out=questions) as here:
        await here.set("shadow")
        async with asyncio.timeout(30):
            while (await here.versions.traffic()).active != NEW:
                run = await here.ask()
                await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), LOCAL)
        decisions = [
            record.decision
            for record in await here.versions.decisions(NEW)
            if record.decided_by == "gate"
        ]
        assert [decision for decision in decisions if decision != "wait"] == ["canary", "promote"]
        assert (await here.ask()).result.answer == "Al Pacino"  # type: ignore[union-attr]
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE tenant = 'default'") == [(8,)]


async def test_held_out_questions_that_fail_upstream_decide_nothing(tmp_path: Path) -> None:
    """A comparison is refused if many questions fail, or if a version is not in use."""
    models = Models()
    models.executors[BASE] = ScriptedModel(down, BASE)
    async with deployed(tmp_path, models) as here:
        question = HeldOutQuestion(QUESTION, ("Al Pacino",))
        held_out = HeldOutTest([question], here.executors, models.search, here.lifecycle)
        with pytest.raises(BadVersion, match="is not on trial at this gateway"):
            await held_out.compare(NEW, BASE, 1.0)
        await here.set("canary", 0.5)
        with pytest.raises(BadVersion, match="1 of 1 held-out questions failed"):
            await held_out.compare(NEW, BASE, 1.0)


async def test_feedback_on_a_run_without_a_trial_is_kept_and_judges_nothing(tmp_path: Path) -> None:
    async with deployed(tmp_path) as here:
        run = await here.ask()
        assert await here.runs.feedback(Feedback(run.id, accepted=True), OWNER)
        assert await here.rows("SELECT COUNT(*) FROM feedback") == [(1,)]


async def test_runs_that_cannot_be_compared_are_not_tried(tmp_path: Path) -> None:
    """Sub-query reports, completions, questions out of scope, repeated answers, runs cut by the
    client's budget, runs of tenants with redaction or without training, runs with shared reports,
    and runs of another topology.
    """
    models = Models()
    tenants = [Tenant("private", redact=True), Tenant("untrained", training=False)]
    async with deployed(tmp_path, models, working=False, tenants=tenants) as here:
        await here.set("shadow")
        await here.gateway.execute(SUB_QUERY, RequestOptions(OWNER))
        completion = CompletionRequest(
            "delegation", (Message("system", "delegate"), Message("user", "Who?")), (), 0
        )
        await here.gateway.complete(completion, RequestOptions(OWNER))
        await here.gateway.answer("Who wrote Faust?", RequestOptions(OWNER), lambda _event: None)
        await here.ask(Identity("private", SCOPES))
        await here.ask(Identity("untrained", SCOPES))
        cut_run = await here.ask(budget=Budget(role_tokens={"delegation": 85}))
        assert cut_run.result.outcome == "budget_exhausted"  # type: ignore[union-attr]
        first = await here.ask(request_id="mine")
        assert await here.ask(request_id="mine") == first
        assert isinstance(first.result, Trajectory)
        shared_executions = [
            msgspec.structs.replace(execution, shared_from=("run-0",))
            for execution in first.result.executions
        ]
        result_with_shared = msgspec.structs.replace(
            first.result, executions=tuple(shared_executions)
        )
        here.trials.consider(msgspec.structs.replace(first, id="run-1", result=result_with_shared))
        host_result = msgspec.structs.replace(first.result, topology="host")
        here.trials.consider(msgspec.structs.replace(first, id="run-2", result=host_result))
        async with background_tasks(here.trials.work()):
            await here.next_review()
            await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(first.id,)]
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE kind = 'shadow'") == [(1,)]


@pytest.mark.parametrize("stage", ["shadow", "canary"])
async def test_reports_that_are_too_long_count_against_their_version(
    tmp_path: Path, stage: str
) -> None:
    models = Models()

    def break_on_other_reports(prompt: Prompt) -> str | ContextTooLong:
        failing_report = "Al Pacino" if stage == "shadow" else "Michael Mann"
        return (
            ContextTooLong("too long", endpoint="e")
            if failing_report in prompt.messages[1].content
            else answers(prompt)
        )

    models.answerer = ScriptedModel(break_on_other_reports, "fixed")
    async with deployed(tmp_path, models) as here:
        await here.set(stage, 0.5 if stage == "canary" else 0.0)
        run = await here.ask_served(NEW if stage == "canary" else BASE)
        while (trial := await here.book.trial(run.id)) is None:
            await here.next_review()

    if stage == "canary":
        unserved = trial.by_active
        served = trial.by_candidate
    else:
        unserved = trial.by_candidate
        served = trial.by_active
    assert (unserved.answer, unserved.failed, served.failed) == ("", True, False)
    assert unserved.tokens == served.tokens > 0


def down(_prompt: Prompt | None = None) -> UpstreamUnavailable:
    """Return the failure of an upstream that is unavailable for now."""
    return UpstreamUnavailable("down for now", endpoint="e", unspent=True)


class DownOnce(FixedRetriever):
    """A retriever that is unavailable for the first search."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        passages = await super().search(queries, top_k)
        if len(self.queries) == 1:
            raise down()
        return passages


@pytest.mark.parametrize(
    "culprit", ["delegator", "answerer", "executor", "breaker", "retriever", "quota"]
)
async def test_a_trial_that_an_upstream_spoils_is_given_up(tmp_path: Path, culprit: str) -> None:
    """A failure that is not the version's fault speaks neither for nor against it: a few such
    trials would decide on it.
    """
    models = Models()
    tenants = [Tenant("shadow", tokens_per_day=165)] if culprit == "quota" else []
    async with deployed(tmp_path, models, working=False, tenants=tenants) as here:
        await here.set("shadow")
        await here.ask()
        match culprit:
            case "delegator" | "answerer":
                setattr(models, culprit, ScriptedModel(down, culprit))
            case "executor":
                models.executors[NEW] = ScriptedModel(down, NEW)
            case "breaker":
                for _ in range(3):
                    here.executors.of(NEW).role(lasting()).endpoint.breaker.open()
            case "retriever":
                models.retriever = Unfiltered(DownOnce({}))
        trial_events: asyncio.Queue[str] = asyncio.Queue()

        def note_trial_event(_logger: object, _level: str, event: Any) -> Any:
            if event["event"].startswith("trial."):
                trial_events.put_nowait(event["event"])
            return event

        with capture_logs(processors=[note_trial_event]):
            async with background_tasks(here.trials.work()):
                assert await ended(trial_events.get()) == "trial.given_up"
        assert await here.rows("SELECT COUNT(*) FROM version_trials") == [(0,)]


async def test_a_run_that_an_upstream_spoiled_is_not_tried(tmp_path: Path) -> None:
    """The failure is not the served version's fault."""
    models = Models()
    models.retriever = Unfiltered(DownOnce({SUB_QUERY: [PASSAGE]}))
    models.delegator = ScriptedModel([block(SUB_QUERY), *[block(SUB_QUERY), STOP] * 3], "backbone")
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        spoiled = await here.ask()
        assert spoiled.result.executions[0].outcome == "retrieval_failed"  # type: ignore[union-attr]
        run = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(run.id,)]
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE kind = 'shadow'") == [(1,)]


async def test_an_execution_without_a_report_is_a_failure(tmp_path: Path) -> None:
    """It counts even if the run has an answer."""
    models = Models()
    models.executors[NEW] = ScriptedModel(lambda _prompt: "I do not know.", NEW)
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        run = await here.ask()
        await here.next_review()
        trial = await here.book.trial(run.id)
    assert trial is not None
    assert (trial.by_candidate.failed, trial.by_active.failed) == (True, False)
    assert trial.by_candidate.answer


@pytest.mark.parametrize(
    "output",
    [
        UpstreamRefused("no such model", endpoint="e"),
        UpstreamUnavailable("it broke down", endpoint="e"),
        UpstreamProtocolError("not JSON", endpoint="e"),
        "I do not know.",
        "",
    ],
    ids=["not there", "breaks down", "protocol_error", "malformed", "silent"],
)
async def test_a_canary_s_failure_reaches_the_gate_and_not_the_client(
    output: Answer, tmp_path: Path
) -> None:
    """The client gets an answer from the active version, and the trial records the failure."""
    models = Models()
    models.executors[NEW] = ScriptedModel(lambda _prompt: output, NEW)
    async with deployed(tmp_path, models) as here:
        await here.set("canary", 0.5)
        run = await here.ask_served(NEW)
        while (trial := await here.book.trial(run.id)) is None:
            await here.next_review()
    assert run.result.answer == "Michael Mann"  # type: ignore[union-attr]
    assert (trial.by_candidate.failed, trial.by_active) == (
        True,
        Side("Michael Mann", False, trial.by_active.tokens),
    )


async def test_a_trial_that_is_cut_by_closing_is_not_recorded(tmp_path: Path) -> None:
    """Closing waits for no trial; the trial's run is stored as cancelled."""
    models = Models()
    held = HeldModel(ScriptedModel([]))
    models.executors[NEW] = held
    async with deployed(tmp_path, models, working=False) as here:
        await here.set("shadow")
        async with background_tasks(here.trials.work()):
            await here.ask()
            await ended(held.called.wait())
        assert held.cancelled.is_set()
        assert await here.rows("SELECT COUNT(*) FROM version_trials") == [(0,)]
        assert await here.rows("SELECT status FROM runs WHERE kind = 'shadow'") == [("cancelled",)]


async def test_a_cancelled_trial_is_not_recorded_and_the_next_is_made(tmp_path: Path) -> None:
    """An operator may cancel a trial like any other run."""
    models = Models()
    held = HeldModel(ScriptedModel(reports("Al Pacino"), NEW))
    models.executors[NEW] = held
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        untried = await here.ask()
        await ended(held.called.wait())
        ((shadow,),) = await here.rows("SELECT run_id FROM runs WHERE kind = 'shadow'")
        here.live.cancel(shadow)
        await ended(held.cancelled.wait())
        held.let.set()
        tried = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(tried.id,)]
        assert await here.book.trial(untried.id) is None


async def test_trials_beyond_the_queue_are_dropped_and_counted(tmp_path: Path) -> None:
    """Four trials run and 64 wait; no client waits for them."""
    models = Models()
    held = HeldModel(ScriptedModel([]))
    models.executors[NEW] = held
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        run = await here.ask()
        await ended(held.called.wait())
        for _ in range(100):
            here.trials.consider(run)
        assert here.trials.dropped == 100 - 64
        # Meanwhile three more are at work, and the answer below takes a free place
        assert (await here.ask()).status == "finished"
        for _ in range(3):
            here.trials.consider(run)
        assert here.trials.dropped == 100 - 64 + 1
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE kind = 'shadow'") == [(4,)]


async def test_a_trial_that_waited_since_the_shadow_stage_is_dropped(tmp_path: Path) -> None:
    """The active version served all of these runs, at another time."""
    async with deployed(tmp_path, working=False) as here:
        await here.set("shadow")
        waiting = [await here.ask() for _ in range(6)]
        await here.set("canary", 0.5)
        run = await here.ask_served(BASE)
        async with background_tasks(here.trials.work()):
            while await here.book.trial(run.id) is None:
                await here.next_review()
        assert [await here.book.trial(run_before.id) for run_before in waiting] == [None] * 6


async def test_a_trial_of_traffic_that_has_changed_is_not_recorded(tmp_path: Path) -> None:
    """The comparison became obsolete before it ended."""
    models = Models()
    held = HeldModel(ScriptedModel(reports("Al Pacino"), NEW))
    models.executors[NEW] = held
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        await here.ask()
        await ended(held.called.wait())
        await here.set("registered")
        held.let.set()
        await ended(here.live.ended())
        for _ in range(50):
            await asyncio.sleep(0)  # until it is given up
        await here.set("shadow")
        run = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(run.id,)]
