"""Operators and the gate try, promote and roll back versions, and every change is recorded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from router.errors import BadRequest, BadVersion
from router.store import Database, SQLVersionBook
from router.versions import GateRule, Versions
from router.versions.book import EvidenceSource, Judgement, Side, Traffic, Trial
from router.versions.versions import Examination
from tests.router.store.stored import put, run

BASE = "mini-executor"
FIRST = "executor-000001"
SECOND = "executor-000002"
RULE = GateRule(margin=0.1, error=0.05, max_tokens_ratio=2.0, max_trials=200)
BROKEN = "executor-000666"


class Loaded:
    """A loader of every version but one that records the names it has loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.broken = {BROKEN}
        self.replaced = ""

    async def __call__(self, name: str) -> str:
        if name in self.broken:
            raise BadVersion(f"{name}: its files are not what was published.")
        self.names.append(name)
        content = f"another {name}" if name == self.replaced else name
        return f'{{"version":"{content}"}}'


class Setting:
    """A gateway's versions over a store, and the number of changes that they reported."""

    def __init__(self, database: Database, gate: GateRule | None = RULE) -> None:
        self.database = database
        self.book = SQLVersionBook(database)
        self.load = Loaded()
        self.changes = 0
        self.versions = self.with_held_out(None, gate)
        self._runs = 0

    def with_held_out(self, held_out: Examination | None, gate: GateRule | None = RULE) -> Versions:
        """Return versions over the same book, with held-out questions."""
        self.versions = Versions(
            self.book, self.load, gate, 0.25, on_change=self._changed, held_out=held_out
        )
        return self.versions

    async def _changed(self) -> None:
        self.changes += 1

    async def states(self) -> dict[str, str]:
        return {version.version: version.state for version, _ in await self.versions.list()}

    async def decided(self) -> Sequence[tuple[str, str, str]]:
        """Return version, decision and decider of every decision after those on the base."""
        decisions = await self.versions.decisions()
        return [
            (decision.version, decision.decision, decision.decided_by) for decision in decisions
        ][2:]

    async def show(self, times: int, *, right: bool | None, candidate_tokens: int = 100) -> None:
        """Add trials of the candidate, served by either version in turn; the active version is
        right in three of four. With `right` None, nothing is judged.
        """
        traffic = await self.versions.traffic()
        assert traffic.candidate and traffic.stage
        runs = [run(f"run-{self._runs + number}") for number in range(times)]
        self._runs += times
        await put(self.database, *runs)
        now = max(version.state_at for version in await self.book.versions()) + 1
        for number, trial_run in enumerate(runs):
            sides = Side("a", False, candidate_tokens), Side("b", False, 100)
            await self.book.add_trial(
                Trial(
                    trial_run.id,
                    traffic.candidate,
                    traffic.active,
                    traffic.stage,
                    bool(number % 2),
                    *sides,
                    now,
                )
            )
            if right is not None:
                await self.book.judge(trial_run.id, Judgement(right, number % 8 > 1, "judge"))


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    """Versions with an active base and two registered candidates."""
    database = await Database.open(f"sqlite:///{tmp_path / 'versions.db'}")
    setting = Setting(database)
    await setting.versions.ensure_base(BASE)
    for name in (FIRST, SECOND):
        await setting.versions.register(name)
    setting.changes = 0
    yield setting
    await database.close()


async def test_the_base_is_active_from_the_start(setting: Setting) -> None:
    """It is registered once. Another base in a later config changes nothing."""
    await setting.versions.ensure_base(BASE)
    await setting.versions.ensure_base("another", '{"a": 1}')
    assert await setting.versions.traffic() == Traffic(BASE)
    assert await setting.states() == {
        "another": "registered",
        SECOND: "registered",
        FIRST: "registered",
        BASE: "active",
    }
    registered, promoted, *_ = await setting.versions.decisions()
    assert (registered.decision, registered.from_state, promoted.decision, promoted.to_state) == (
        "register",
        None,
        "promote",
        "active",
    )
    assert registered.decided_by == promoted.decided_by == "config"
    assert setting.changes == 0


async def test_gateways_that_start_together_agree_on_one_base(tmp_path: Path) -> None:
    """Holds also if their configs name different bases."""
    url = f"sqlite:///{tmp_path / 'versions.db'}"
    databases = [await Database.open(url) for _ in range(4)]
    settings = [Setting(database) for database in databases]
    names = [BASE, BASE, "another", "another"]
    await asyncio.gather(
        *(setting.versions.ensure_base(name) for setting, name in zip(settings, names, strict=True))
    )
    states = await settings[0].states()
    assert sorted(states.values()) == ["active", "registered"]
    for database in databases:
        await database.close()


async def test_without_a_version_there_is_no_traffic(tmp_path: Path) -> None:
    database = await Database.open(f"sqlite:///{tmp_path / 'versions.db'}")
    with pytest.raises(BadVersion, match="no version of the executor is active"):
        await Setting(database).versions.traffic()
    await Setting(database).versions.review()
    await database.close()


async def test_a_registered_version_is_loaded_and_gets_no_traffic(setting: Setting) -> None:
    """Its manifest is recorded."""
    assert setting.load.names == [FIRST, SECOND]
    version = await setting.versions.register("executor-0000003")
    assert (version.state, version.manifest) == ("registered", '{"version":"executor-0000003"}')
    assert (await setting.versions.traffic()) == Traffic(BASE)
    with pytest.raises(BadRequest, match="is registered already"):
        await setting.versions.register(FIRST)
    assert setting.load.names == [FIRST, SECOND, "executor-0000003"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        BASE,
        "executor-1",
        "executor-00000x",
        "../executor-000001",
        f"{FIRST}\n",
        "executor-٠٠٠٠٠١",
    ],
)
async def test_an_invalid_name_is_refused_before_anything_is_loaded(
    setting: Setting, name: str
) -> None:
    with pytest.raises(BadRequest, match="is not a valid name"):
        await setting.versions.register(name)
    assert setting.load.names == [FIRST, SECOND]


async def test_a_version_that_cannot_be_loaded_is_refused(setting: Setting) -> None:
    """It is not registered, and gets no traffic if it becomes unloadable later."""
    with pytest.raises(BadVersion):
        await setting.versions.register(BROKEN)
    setting.load.broken.add(FIRST)
    for put_to_work in (
        setting.versions.set_traffic(FIRST, "shadow"),
        setting.versions.promote(FIRST),
    ):
        with pytest.raises(BadVersion):
            await put_to_work
    assert await setting.states() == {SECOND: "registered", FIRST: "registered", BASE: "active"}
    assert (await setting.versions.set_traffic(FIRST, "registered")).state == "registered"


async def test_a_version_whose_files_were_replaced_is_refused(setting: Setting) -> None:
    """The new files are whole, but not the registered ones."""
    setting.load.replaced = FIRST
    for put_to_work in (
        setting.versions.set_traffic(FIRST, "shadow"),
        setting.versions.promote(FIRST),
    ):
        with pytest.raises(BadVersion, match="files have changed since it was registered"):
            await put_to_work
    assert await setting.versions.traffic() == Traffic(BASE)


async def test_setting_traffic_replaces_the_candidate(setting: Setting) -> None:
    """Every change is recorded."""
    versions = setting.versions
    await versions.set_traffic(FIRST, "shadow")
    assert await versions.traffic() == Traffic(BASE, FIRST, "shadow")
    canary = await versions.set_traffic(FIRST, "canary", 0.5)
    assert await versions.traffic() == Traffic(BASE, FIRST, "canary", 0.5)
    assert (await versions.set_traffic(FIRST, "canary", 0.75)).state_at == canary.state_at
    await versions.set_traffic(FIRST, "canary", 0.75)
    await versions.set_traffic(SECOND, "shadow")
    assert await versions.traffic() == Traffic(BASE, SECOND, "shadow")
    await versions.set_traffic(SECOND, "registered")
    assert await versions.traffic() == Traffic(BASE)
    assert await setting.decided() == [
        (FIRST, "register", "operator"),
        (SECOND, "register", "operator"),
        (FIRST, "shadow", "operator"),
        (FIRST, "canary", "operator"),
        (FIRST, "canary", "operator"),
        (FIRST, "stop", "operator"),
        (SECOND, "shadow", "operator"),
        (SECOND, "stop", "operator"),
    ]
    assert setting.changes == 5


@pytest.mark.parametrize(
    ("name", "state", "share", "message"),
    [
        (FIRST, "canary", 0.0, "above 0"),
        (FIRST, "canary", 1.1, "at most 1"),
        (FIRST, "canary", float("nan"), "above 0"),
        (FIRST, "shadow", 0.1, "unless state is canary"),
        (FIRST, "active", 0.0, "got active"),
        (BASE, "shadow", 0.0, "is active"),
        ("executor-000009", "shadow", 0.0, "is not registered"),
        ("executor-000009", "registered", 0.0, "is not registered"),
    ],
)
async def test_invalid_traffic_is_refused_and_changes_nothing(
    setting: Setting, name: str, state: str, share: float, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        await setting.versions.set_traffic(name, state, share)  # type: ignore[arg-type]
    assert await setting.versions.traffic() == Traffic(BASE)
    assert setting.changes == 0


async def test_a_rolled_back_version_is_replaced_by_the_one_before(setting: Setting) -> None:
    """A promotion retires the active version and leaves the candidate in place."""
    versions = setting.versions
    await versions.set_traffic(SECOND, "shadow")
    assert (await versions.promote(FIRST)).state == "active"
    assert await setting.states() == {SECOND: "shadow", FIRST: "active", BASE: "retired"}
    with pytest.raises(BadRequest, match="is active already"):
        await versions.promote(FIRST)
    await versions.promote(SECOND)
    assert await versions.traffic() == Traffic(SECOND)
    for rolled_back, restored in ((SECOND, FIRST), (FIRST, BASE)):
        active = await versions.roll_back(rolled_back)
        assert active and (active.version, active.state) == (restored, "active")
    assert await setting.states() == {SECOND: "rolled_back", FIRST: "rolled_back", BASE: "active"}
    assert [decision[:2] for decision in await setting.decided()][-4:] == [
        (SECOND, "roll_back"),
        (FIRST, "promote"),
        (FIRST, "roll_back"),
        (BASE, "promote"),
    ]


async def test_rolling_back_a_candidate_leaves_the_active_version(setting: Setting) -> None:
    await setting.versions.set_traffic(FIRST, "canary", 0.5)
    active = await setting.versions.roll_back(FIRST)
    assert active and active.version == BASE
    assert await setting.states() == {SECOND: "registered", FIRST: "rolled_back", BASE: "active"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (BASE, "has no retired version"),
        (FIRST, "is registered, so it cannot be rolled back"),
        ("executor-000009", "is not registered"),
    ],
)
async def test_a_version_that_cannot_be_rolled_back_is_refused(
    setting: Setting, name: str, message: str
) -> None:
    with pytest.raises(BadRequest, match=message):
        await setting.versions.roll_back(name)
    assert setting.changes == 0


class RecordedExamination:
    """Held-out questions that record their comparisons; the candidate is right on `right` of
    them.
    """

    size = 40

    def __init__(self, right: int) -> None:
        self.right = right
        self.comparisons = list[tuple[str, str, float]]()

    async def compare(self, candidate: str, active: str, since: float) -> list[tuple[bool, bool]]:
        """See `HeldOut`."""
        self.comparisons.append((candidate, active, since))
        return [(number < self.right, number >= 30) for number in range(self.size)]


async def test_the_gate_takes_a_good_version_from_shadow_to_active(setting: Setting) -> None:
    """Each step rests on the trials of that stage alone, and the last one on held-out questions.
    Decisions have figures and are logged.
    """
    examination = RecordedExamination(40)
    setting.with_held_out(examination)
    await setting.versions.set_traffic(FIRST, "shadow")
    with capture_logs() as logs:
        await setting.show(96, right=True)
        await setting.versions.review()
        assert await setting.versions.traffic() == Traffic(BASE, FIRST, "canary", 0.25)
        await setting.versions.review()
        assert (await setting.versions.traffic()).stage == "canary"
        await setting.show(96, right=True)
        canary = next(
            version for version, _ in await setting.versions.list() if version.state == "canary"
        )
        await setting.versions.review()
    assert await setting.states() == {SECOND: "registered", FIRST: "active", BASE: "retired"}
    assert examination.comparisons == [(FIRST, BASE, canary.state_at)]
    *_, to_canary, waits, retired, promoted = await setting.versions.decisions()
    assert (to_canary.decision, to_canary.decided_by) == ("canary", "gate")
    assert (
        "now answer 40 held-out questions, for about 8,000 executor tokens, plus tokens of the "
        "other roles" in waits.reason
    )
    assert (retired.version, retired.to_state, promoted.decision) == (BASE, "retired", "promote")
    assert promoted.reason.startswith(
        "Not worse than the active version by more than 0.1: right in 96 of 96"
    )
    assert promoted.reason.endswith(
        "30 that only the candidate has right, 0 that only the active version has right "
        "(p = 3.9e-11)."
    )
    assert promoted.figures and (promoted.figures.trials, promoted.figures.active_right) == (96, 72)
    assert promoted.figures.sources == (EvidenceSource("judge", "", 24, 24),)
    assert [
        (log["version"], log["decision"], log["judged"])
        for log in logs
        if log["event"] == "gate.decided"
    ] == [(FIRST, "canary", 96), (FIRST, "wait", 96), (BASE, "retire", 96), (FIRST, "promote", 96)]
    assert setting.changes == 3


async def test_held_out_questions_that_are_not_passed_end_the_trial(setting: Setting) -> None:
    """They are asked once."""
    examination = RecordedExamination(2)
    setting.with_held_out(examination)
    await setting.versions.set_traffic(FIRST, "canary", 0.5)
    await setting.show(96, right=True)
    await setting.versions.review()
    last = (await setting.versions.decisions())[-1]
    assert (last.decision, last.to_state, len(examination.comparisons)) == ("stop", "registered", 1)
    assert "Right in 2 of 40 held-out questions (active: 10)" in last.reason


async def test_without_held_out_questions_a_canary_goes_no_further(setting: Setting) -> None:
    """The decision names what is missing; an operator may promote the version."""
    await setting.versions.set_traffic(FIRST, "canary", 0.5)
    await setting.show(96, right=True)
    await setting.versions.review()
    last = (await setting.versions.decisions())[-1]
    assert (last.decision, last.to_state) == ("wait", "canary")
    assert "name a file of them in versions.held_out" in last.reason
    await setting.show(104, right=True)
    await setting.versions.review()
    assert (await setting.versions.decisions())[-1].decision == "stop"
    assert (await setting.versions.promote(FIRST)).state == "active"


@pytest.mark.parametrize("stage", ["shadow", "canary"])
async def test_the_gate_rolls_a_bad_version_back(setting: Setting, stage: str) -> None:
    await setting.versions.set_traffic(FIRST, stage, 0.5 if stage == "canary" else 0.0)  # type: ignore[arg-type]
    await setting.show(40, right=False)
    await setting.versions.review()
    assert await setting.states() == {SECOND: "registered", FIRST: "rolled_back", BASE: "active"}
    last = (await setting.versions.decisions())[-1]
    assert (last.decision, last.decided_by, "correctness" in last.reason) == (
        "roll_back",
        "gate",
        True,
    )
    await setting.versions.review()
    assert (await setting.versions.decisions())[-1] == last


async def test_the_gate_waits_while_evidence_is_weak(setting: Setting) -> None:
    """The wait is recorded once."""
    await setting.versions.set_traffic(FIRST, "shadow")
    await setting.versions.review()
    for _ in range(2):
        await setting.show(3, right=True)
        for _ in range(3):
            await setting.versions.review()
    assert (await setting.decided())[2:] == [(FIRST, "shadow", "operator"), (FIRST, "wait", "gate")]
    *_, waits = await setting.versions.decisions()
    assert (waits.number, waits.from_state, waits.to_state) == (7, "shadow", "shadow")
    assert waits.figures and waits.figures.trials == 6
    assert setting.changes == 1


async def test_the_gate_stops_after_the_maximum_of_trials(setting: Setting) -> None:
    """The operator decides then, and the version costs no more."""
    await setting.versions.set_traffic(FIRST, "canary", 0.5)
    for count, verdict in ((RULE.max_trials - 1, "wait"), (1, "stop")):
        await setting.show(count, right=None)
        await setting.versions.review()
        last = (await setting.versions.decisions())[-1]
        assert (last.decision, last.decided_by) == (verdict, "gate")
    assert last.reason.startswith(
        "Not decided in 200 trials on correctness (evidence 1 of 20): no run has been judged"
    )
    assert await setting.states() == {SECOND: "registered", FIRST: "registered", BASE: "active"}
    assert (await setting.versions.traffic()).candidate is None


async def test_gateways_that_review_together_decide_once(setting: Setting) -> None:
    other_setting = Setting(setting.database)
    await setting.versions.set_traffic(FIRST, "shadow")
    await setting.show(96, right=True)
    await asyncio.gather(
        *(
            setting_.versions.review()
            for setting_ in (setting, other_setting, setting, other_setting)
        )
    )
    assert [decision for decision in await setting.decided() if decision[2] == "gate"] == [
        (FIRST, "canary", "gate")
    ]


async def test_without_a_gate_nothing_is_decided(setting: Setting) -> None:
    """Figures come without evidence."""
    manual = Setting(setting.database, gate=None)
    await manual.versions.set_traffic(FIRST, "shadow")
    await manual.show(50, right=False)
    await manual.versions.review()
    ((version, figures), *other_versions) = [
        version_with_figures
        for version_with_figures in await manual.versions.list()
        if version_with_figures[1]
    ]
    assert (version.version, version.state, other_versions) == (FIRST, "shadow", [])
    assert figures and (figures.trials, figures.evidence) == (50, ())
    (_, (_, gate_figures), _) = await setting.versions.list()
    assert gate_figures and [evidence.measure for evidence in gate_figures.evidence] == [
        "correctness",
        "failures",
        "tokens",
    ]
