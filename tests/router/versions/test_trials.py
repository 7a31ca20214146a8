"""Trials: the other version works on what was answered; nobody waits for it, and no tenant pays
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
from router.models import Message, Model, Prompt, Sampling, ScriptedModel
from router.models.model import Answer
from router.protocol import Passage, Vocabulary
from router.protocol.vocabulary import words
from router.runs import Gateway, RequestOptions, RunLifecycle, Runs
from router.runs.gateway import CompletionRequest
from router.runs.live import LiveRuns
from router.search import Answerer, Delegator, Executor, FactorizedSearch, Retriever, Topology
from router.search.agent import ExecutorLimits
from router.search.answerer import Judge
from router.search.executor import Executes
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.testing.retriever import FixedRetriever
from router.trace import RoleName, Run, Trajectory
from router.trace.identity import LOCAL, SCOPES, Identity
from router.trace.run import Feedback
from router.versions import GateRule, HeldOutQuestion, HeldOutTest, Trials, VersionRouting, Versions
from router.versions.book import Judgement, Side, Source, Traffic
from tests.router.clock import ended
from tests.router.deployment import PASSAGE, STOP, HeldModel, block, lasting, report, role

BASE = "base"
NEW = "executor-000001"
QUESTION = "Was the director of Heat born before 1950?"
SUB_QUERY = "Who directed Heat?"
OWNER = Identity("owner", SCOPES)


def delegates(prompt: Prompt) -> str:
    """One round of one sub-query."""
    return block(SUB_QUERY) if len(prompt.messages) == 2 else STOP


def answers(prompt: Prompt) -> str:
    """The first report's answer."""
    text = prompt.messages[1].content
    return f"<answer>{text.split('</request><answer>')[1].split('</answer>')[0]}</answer>"


def reports(answer: str) -> Callable[[Prompt], str]:
    """An executor that searches once and reports this."""
    return lambda prompt: (
        f"<search>{SUB_QUERY}</search>"
        if len(prompt.messages) == 2
        else report(answer, "It says so.")
    )


@dataclass
class Models:
    """Who says what."""

    executors: dict[str, Model] = field(
        default_factory=lambda: {
            BASE: ScriptedModel(reports("Michael Mann"), BASE),
            NEW: ScriptedModel(reports("Al Pacino"), NEW),
        }
    )
    delegator: Model = field(default_factory=lambda: ScriptedModel(delegates, "backbone"))
    answerer: Model = field(default_factory=lambda: ScriptedModel(answers, "fixed"))
    judge: Model | None = None
    retriever: Retriever = field(default_factory=lambda: FixedRetriever({SUB_QUERY: [PASSAGE]}))

    def executor(self, version: str) -> Executor:
        """The executor of a version."""
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
        """The search loop with an executor."""
        return FactorizedSearch(
            Delegator(role("delegation", self.delegator), 8),
            executor,
            Answerer(role("answer", self.answerer)),
        )


@dataclass
class Deployed:
    """A gateway over a real store, whose versions and trials can be reached."""

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
        """The answer to the question."""
        return await self.gateway.answer(
            QUESTION, RequestOptions(identity, **terms), lambda _event: None
        )

    async def set(self, state: Any, share: float = 0.0) -> None:
        """Let the new version be tried."""
        await self.versions.set_traffic(NEW, state, share)
        await self.executors.refresh()

    async def ask_served(self, version: str) -> Run:
        """The answer to the question, asked until this version serves it."""
        while True:
            with suppress(ContextTooLong):  # of the other version's reports
                if self.executors.traffic.serving((run := await self.ask()).id) == version:
                    return run

    async def next_review(self) -> None:
        """Wait until something was learnt, and looked at."""
        await ended(self.reviewed.get())

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What the database holds."""
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
    """Everything of a gateway but its edge, with a version beside the configured model. `working`:
    whether trials are made. `tenants`: settings that are there when it begins. `gate`: None leaves
    all decisions to the test.
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
    """The client's answer is the active version's, whatever the shadow reports; the trial has
    both.
    """
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


async def test_a_shadow_is_booked_apart(tmp_path: Path) -> None:
    """Its run is the tenant `shadow`'s, each of its calls has the purpose `shadow` and names the
    version, and nothing of it counts against the client's tenant.
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


async def test_where_reports_agree_nobody_else_is_asked(tmp_path: Path) -> None:
    """What followed from the same reports is the same, so that the trial costs the executor's
    calls alone.
    """
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


async def test_a_canary_is_served_and_the_other_version_works_beside_it(tmp_path: Path) -> None:
    """The client of a canary's run gets what the canary found; as many of the others' runs are
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
@pytest.mark.parametrize("before", [True, False])
async def test_feedback_judges_a_trial_whenever_it_comes(
    tmp_path: Path, before: bool, identity: Identity
) -> None:
    """Given before the trial has ended, or after it; the gate sees the judgement, and whose it
    is.
    """
    async with deployed(tmp_path, working=False) as here:
        await here.set("canary", 0.5)
        run = await here.ask_served(BASE)
        if before:
            await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), identity)
        async with background_tasks(here.trials.work()):
            while (trial := await here.book.trial(run.id)) is None:
                await here.next_review()
            if not before:
                await here.runs.feedback(Feedback(run.id, right_answer="Al Pacino"), identity)
            pairs = here.book.pairs
            while not (
                judged := [
                    pair.judgement for pair in await pairs(NEW, "canary", 0.0) if pair.judgement
                ]
            ):
                await here.next_review()
    assert not trial.candidate_served
    whose: tuple[Source, str] = ("client", "owner") if identity is OWNER else ("operator", "")
    assert judged == [Judgement(True, False, *whose, judged[0].judged_at)]


def verdicts(prompt: Prompt) -> str:
    """A judge for whom Mann is right, if it was shown what was found, and no right answer."""
    shown = prompt.messages[-1].content
    assert "<evidence>It says so.</evidence>" in shown and "<right_answer>" not in shown
    return (
        "<verdict>correct</verdict>"
        if "<answer>Michael Mann</answer>" in shown
        else "<verdict>incorrect</verdict>"
    )


@pytest.mark.parametrize("stage", ["shadow", "canary"])
async def test_a_judge_is_asked_about_both_answers(tmp_path: Path, stage: str) -> None:
    """Each alone, booked with the trial; a client's word does not change what it says, the
    operator's does.
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
    """The trial counts all the same; about one answer nobody is asked."""
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
    """Each in a run of its own, booked to the operator and never listed; asked again, nothing
    is paid for twice.
    """
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


async def test_all_the_way(tmp_path: Path) -> None:
    """From shadow to active by itself, while clients ask and the operator tells what is right."""
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
        decided = [
            each.decision
            for each in await here.versions.decisions(NEW)
            if each.decided_by == "gate"
        ]
        assert [each for each in decided if each != "wait"] == ["canary", "promote"]
        assert (await here.ask()).result.answer == "Al Pacino"  # type: ignore[union-attr]
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE tenant = 'default'") == [(8,)]


async def test_held_out_questions_that_others_spoil_say_nothing(tmp_path: Path) -> None:
    """Where there are many of them, nothing is decided; nor where the versions do not work here."""
    models = Models()
    models.executors[BASE] = ScriptedModel(down, BASE)
    async with deployed(tmp_path, models) as here:
        question = HeldOutQuestion(QUESTION, ("Al Pacino",))
        held_out = HeldOutTest([question], here.executors, models.search, here.lifecycle)
        with pytest.raises(BadVersion, match="is not in use here"):
            await held_out.compare(NEW, BASE, 1.0)
        await here.set("canary", 0.5)
        with pytest.raises(BadVersion, match="1 of 1 held-out questions failed"):
            await held_out.compare(NEW, BASE, 1.0)


async def test_feedback_on_a_run_that_was_not_tried(tmp_path: Path) -> None:
    """It is kept, and judges nothing."""
    async with deployed(tmp_path) as here:
        run = await here.ask()
        assert await here.runs.feedback(Feedback(run.id, accepted=True), OWNER)
        assert await here.rows("SELECT COUNT(*) FROM feedback") == [(1,)]


async def test_what_is_not_tried(tmp_path: Path) -> None:
    """Reports on sub-queries, completions, questions that are out of scope, answers of earlier
    runs, runs that the client's budget cut short, runs of tenants whose texts are not kept or must
    not train, runs with another run's reports, and those of another topology.
    """
    models = Models()
    tenants = [Tenant("private", redact=True), Tenant("untrained", training=False)]
    async with deployed(tmp_path, models, working=False, tenants=tenants) as here:
        await here.set("shadow")
        await here.gateway.execute(SUB_QUERY, RequestOptions(OWNER))
        asked = CompletionRequest(
            "delegation", (Message("system", "delegate"), Message("user", "Who?")), (), 0
        )
        await here.gateway.complete(asked, RequestOptions(OWNER))
        await here.gateway.answer("Who wrote Faust?", RequestOptions(OWNER), lambda _event: None)
        await here.ask(Identity("private", SCOPES))
        await here.ask(Identity("untrained", SCOPES))
        cut = await here.ask(budget=Budget(role_tokens={"delegation": 85}))
        assert cut.result.outcome == "budget_exhausted"  # type: ignore[union-attr]
        first = await here.ask(request_id="mine")
        assert await here.ask(request_id="mine") == first
        assert isinstance(first.result, Trajectory)
        shared = [
            msgspec.structs.replace(each, shared_from=("run-0",))
            for each in first.result.executions
        ]
        used = msgspec.structs.replace(first.result, executions=tuple(shared))
        here.trials.consider(msgspec.structs.replace(first, id="run-1", result=used))
        pair = msgspec.structs.replace(first.result, topology="host")
        here.trials.consider(msgspec.structs.replace(first, id="run-2", result=pair))
        async with background_tasks(here.trials.work()):
            await here.next_review()
            await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(first.id,)]
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE kind = 'shadow'") == [(1,)]


@pytest.mark.parametrize("stage", ["shadow", "canary"])
async def test_a_trial_whose_reports_are_too_long(tmp_path: Path, stage: str) -> None:
    """It counts against the version that wrote them."""
    models = Models()

    def breaks(prompt: Prompt) -> str | ContextTooLong:
        other = "Al Pacino" if stage == "shadow" else "Michael Mann"
        return (
            ContextTooLong("too long", endpoint="e")
            if other in prompt.messages[1].content
            else answers(prompt)
        )

    models.answerer = ScriptedModel(breaks, "fixed")
    async with deployed(tmp_path, models) as here:
        await here.set(stage, 0.5 if stage == "canary" else 0.0)
        run = await here.ask_served(NEW if stage == "canary" else BASE)
        while (trial := await here.book.trial(run.id)) is None:
            await here.next_review()
    other = trial.by_candidate
    served = trial.by_active
    if stage == "canary":
        other, served = served, other
    assert (other.answer, other.failed, served.failed) == ("", True, False)
    assert other.tokens == served.tokens > 0


def down(_prompt: Prompt | None = None) -> UpstreamUnavailable:
    """What whoever is not to be had for now says."""
    return UpstreamUnavailable("down for now", endpoint="e", unspent=True)


class DownOnce(FixedRetriever):
    """Is not to be had for the first search."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        found = await super().search(queries, top_k)
        if len(self.queries) == 1:
            raise down()
        return found


@pytest.mark.parametrize(
    "who", ["delegator", "answerer", "executor", "breaker", "retriever", "quota"]
)
async def test_a_trial_that_others_spoil_is_none(tmp_path: Path, who: str) -> None:
    """What a version cannot help speaks neither for nor against it: a few such trials would
    decide on it.
    """
    models = Models()
    tenants = [Tenant("shadow", tokens_per_day=165)] if who == "quota" else []
    async with deployed(tmp_path, models, working=False, tenants=tenants) as here:
        await here.set("shadow")
        await here.ask()
        match who:
            case "delegator" | "answerer":
                setattr(models, who, ScriptedModel(down, who))
            case "executor":
                models.executors[NEW] = ScriptedModel(down, NEW)
            case "breaker":
                for _ in range(3):
                    here.executors.of(NEW).role(lasting()).endpoint.breaker.open()
            case "retriever":
                models.retriever = DownOnce({})
        told: asyncio.Queue[str] = asyncio.Queue()

        def hear(_logger: object, _level: str, event: Any) -> Any:
            if event["event"].startswith("trial."):
                told.put_nowait(event["event"])
            return event

        with capture_logs(processors=[hear]):
            async with background_tasks(here.trials.work()):
                assert await ended(told.get()) == "trial.given_up"
        assert await here.rows("SELECT COUNT(*) FROM version_trials") == [(0,)]


async def test_a_run_that_others_spoiled_is_not_tried(tmp_path: Path) -> None:
    """The version that was served could not help it."""
    models = Models()
    models.retriever = DownOnce({SUB_QUERY: [PASSAGE]})
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
    """Also where the run came to an answer."""
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
    "says",
    [
        UpstreamRefused("no such model", endpoint="e"),
        UpstreamUnavailable("it broke down", endpoint="e"),
        UpstreamProtocolError("not JSON", endpoint="e"),
        "I do not know.",
        "",
    ],
    ids=["not there", "breaks down", "protocol_error", "malformed", "silent"],
)
async def test_a_canary_that_fails(says: Answer, tmp_path: Path) -> None:
    """The client gets an answer all the same, and the gate hears of the failure."""
    models = Models()
    models.executors[NEW] = ScriptedModel(lambda _prompt: says, NEW)
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


async def test_a_trial_that_is_cut_at_the_end_is_none(tmp_path: Path) -> None:
    """Closing waits for no trial; its run is stored as cancelled."""
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


async def test_a_cancelled_trial_is_none_and_the_next_one_is_made(tmp_path: Path) -> None:
    """An operator may cancel it as any other run."""
    models = Models()
    held = HeldModel(ScriptedModel(reports("Al Pacino"), NEW))
    models.executors[NEW] = held
    async with deployed(tmp_path, models) as here:
        await here.set("shadow")
        first = await here.ask()
        await ended(held.called.wait())
        ((shadow,),) = await here.rows("SELECT run_id FROM runs WHERE kind = 'shadow'")
        here.live.cancel(shadow)
        await ended(held.cancelled.wait())
        held.let.set()
        second = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(second.id,)]
        assert await here.book.trial(first.id) is None


async def test_trials_that_are_too_many_are_dropped(tmp_path: Path) -> None:
    """Four at once, 64 waiting; those beyond are counted, and no client waits."""
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
        # Meanwhile three more are at work, and it takes one's place
        assert (await here.ask()).status == "finished"
        for _ in range(3):
            here.trials.consider(run)
        assert here.trials.dropped == 100 - 64 + 1
        assert await here.rows("SELECT COUNT(*) FROM runs WHERE kind = 'shadow'") == [(4,)]


async def test_what_a_shadow_left_waiting_is_no_canary_s_trial(tmp_path: Path) -> None:
    """As all of it was served by the active version, at another time."""
    async with deployed(tmp_path, working=False) as here:
        await here.set("shadow")
        left = [await here.ask() for _ in range(6)]
        await here.set("canary", 0.5)
        run = await here.ask_served(BASE)
        async with background_tasks(here.trials.work()):
            while await here.book.trial(run.id) is None:
                await here.next_review()
        assert [await here.book.trial(each.id) for each in left] == [None] * 6


async def test_a_trial_that_traffic_has_overtaken_is_none(tmp_path: Path) -> None:
    """What was compared by then is of no interest any more."""
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
        second = await here.ask()
        await here.next_review()
        assert await here.rows("SELECT run_id FROM version_trials") == [(second.id,)]
