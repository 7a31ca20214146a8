"""The version book: no change is half written, and gateways never decide the same thing twice."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from router.access import Tenant
from router.errors import BadRequest
from router.store import Database, SQLAccounts, SQLVersionBook
from router.store.archive import delete_old
from router.store.check import check
from router.versions import ExecutorVersion, VersionDecision
from router.versions.book import (
    EvidenceSource,
    GateEvidence,
    Judgement,
    Pair,
    Side,
    Trial,
    TrialFigures,
    VersionState,
)
from tests.router.store.entries import rows
from tests.router.store.stored import put, run

BASE = "mini-executor"
FIRST = "executor-000001"
SECOND = "executor-000002"
FIGURES = TrialFigures(
    9,
    8,
    7,
    6,
    5,
    4,
    3,
    2,
    (GateEvidence("tokens", 1e217, 0.1 + 0.2),),
    (EvidenceSource("client", "é", 2, 1),),
)


def version(name: str, state: VersionState = "registered", **fields: float) -> ExecutorVersion:
    """Return a version in the state of its registration, with `fields` replaced."""
    known = {"share": 0.0, "state_at": 1000.1, "registered_at": 1000.1, **fields}
    return ExecutorVersion(name, state, **known, manifest='{"é": 1}')


def decision(
    name: str, decided: str = "registered", to: VersionState = "registered", **fields: object
) -> VersionDecision:
    """Return a decision of an operator, with `fields` replaced."""
    return VersionDecision(name, decided, None, to, "operator", 1000.5, **fields)  # type: ignore[arg-type]


def trial(
    number: int, stage: str = "shadow", active: str = BASE, ended_at: float = 2000.0
) -> Trial:
    """Return a trial of `FIRST` for run `number`, which its token counts identify."""
    sides = Side("Mann\0", False, number), Side("no", True, 2 * number)
    return Trial(f"run-{number}", FIRST, active, stage, False, *sides, ended_at)  # type: ignore[arg-type]


@pytest.fixture
async def book(database: Database) -> SQLVersionBook:
    """A book with an active and a registered version, over a store with ten runs."""
    await put(database, *(run(f"run-{number}") for number in range(10)))
    book = SQLVersionBook(database)
    await book.add(version(BASE, "active"), decision(BASE, to="active"))
    await book.add(version(FIRST, registered_at=1001.0), decision(FIRST))
    return book


@pytest.fixture
async def other(url: str, book: SQLVersionBook) -> AsyncIterator[SQLVersionBook]:
    """The book as another gateway has it open."""
    database = await Database.open(url)
    yield SQLVersionBook(database)
    await database.close()


async def states(book: SQLVersionBook) -> dict[str, str]:
    return {version.version: version.state for version in await book.versions()}


async def test_versions_and_decisions_are_read_back_exactly(book: SQLVersionBook) -> None:
    """Versions come newest first, decisions oldest first."""
    assert await book.versions() == [version(FIRST, registered_at=1001.0), version(BASE, "active")]
    canary = version(FIRST, "canary", registered_at=1001.0, share=0.1 + 0.2, state_at=1002.3)
    why = decision(FIRST, "canary", "canary", reason="é \" '", figures=FIGURES)
    assert await book.change(await book.versions(), [canary], [why])
    assert (await book.versions())[0] == canary
    known = [decision(BASE, to="active", number=1), decision(FIRST, number=2)]
    assert await book.decisions(None, 0, 9) == [*known, msgspec.structs.replace(why, number=3)]
    assert [noted.number for noted in await book.decisions(FIRST, 2, 9)] == [3]
    assert [noted.number for noted in await book.decisions(None, 0, 2)] == [1, 2]
    assert await book.decisions("nobody\0", 0, 9) == []


async def test_a_name_is_used_once(book: SQLVersionBook) -> None:
    """The second registration is refused and leaves nothing behind."""
    with pytest.raises(BadRequest, match=FIRST):
        await book.add(version(FIRST, state_at=5.0), decision(FIRST))
    assert len(await book.decisions(None, 0, 9)) == 2
    assert (await book.versions())[0].state_at == 1000.1


async def test_a_change_with_stale_expectations_is_refused_whole(
    book: SQLVersionBook, other: SQLVersionBook
) -> None:
    """This includes a version that the change leaves alone."""
    read = await other.versions()
    assert await book.change([], [version(BASE, "active", state_at=7.0)], [])
    retired = [version(FIRST, "retired"), version(BASE, "active")]
    assert not await other.change(read, [version(FIRST, "retired")], [decision(FIRST)])
    assert not await other.change(read, retired, [])
    assert not await other.change([version(SECOND)], [version(FIRST, "retired")], [])
    assert await states(book) == {FIRST: "registered", BASE: "active"}
    assert len(await book.decisions(None, 0, 9)) == 2
    assert await other.change(await other.versions(), [version(FIRST, "retired")], [])


@pytest.mark.parametrize("state", ["active", "shadow", "canary"])
async def test_no_change_leads_to_two_active_or_two_tried_versions(
    book: SQLVersionBook, state: VersionState
) -> None:
    """The expectations of the change make no difference."""
    await book.add(version(SECOND), decision(SECOND))
    assert await book.change([], [version(SECOND, "shadow")], [])
    assert not await book.change([], [version(FIRST, state)], [])
    assert await book.change(
        [], [version(FIRST, state), version(BASE, "retired"), version(SECOND, "retired")], []
    )


async def test_of_concurrent_decisions_of_gateways_one_is_made(
    book: SQLVersionBook, other: SQLVersionBook
) -> None:
    """Decisions are numbered without gaps and duplicates."""
    for _ in range(10):
        read = await book.versions()
        state: VersionState = "shadow" if read[0].state == "registered" else "registered"
        to = [version(FIRST, state, state_at=read[0].state_at + 1, registered_at=1001.0)]
        taken = await asyncio.gather(
            *(
                gateway_book.change(read, to, [decision(FIRST), decision(FIRST)])
                for gateway_book in (book, other, book, other)
            )
        )
        assert sorted(taken) == [False, False, False, True]
    assert [gateway_book.number for gateway_book in await other.decisions(None, 0, 99)] == list(
        range(1, 23)
    )


async def test_a_new_waiting_note_replaces_the_last(book: SQLVersionBook) -> None:
    """Its number is new to readers who follow. Decisions stay."""

    async def numbers() -> list[tuple[int, str]]:
        return [(noted.number, noted.decision) for noted in await book.decisions(FIRST, 0, 9)]

    shadow = version(FIRST, "shadow")
    assert await book.change([], [shadow], [decision(FIRST, "shadow", "shadow")])
    waits = decision(FIRST, "wait", "shadow", figures=FIGURES)
    await book.wait(waits)
    assert await numbers() == [(2, "registered"), (3, "shadow"), (4, "wait")]
    await book.wait(waits)
    assert await numbers() == [(2, "registered"), (3, "shadow"), (5, "wait")]
    assert await book.change(
        [shadow], [version(FIRST, "canary")], [decision(FIRST, "canary", "canary")]
    )
    await book.wait(msgspec.structs.replace(waits, to_state="canary"))
    await book.wait(waits)
    assert await numbers() == [
        (2, "registered"),
        (3, "shadow"),
        (5, "wait"),
        (6, "canary"),
        (7, "wait"),
    ]


async def test_a_run_has_one_trial(book: SQLVersionBook) -> None:
    """Characters that cannot be stored are left out of its texts."""
    await book.add_trial(trial(1))
    await book.add_trial(trial(1, "canary"))
    kept = msgspec.structs.replace(trial(1), by_candidate=Side("Mann\ufffd", False, 1))
    assert await book.trial("run-1") == kept
    assert await book.trial("run-2") is None
    assert await book.trial("run-\0") is None


async def test_the_most_trusted_judgement_counts(book: SQLVersionBook) -> None:
    """The first judgement of a client replaces the judge's, and the operator's replaces both.

    A run without a trial has none.
    """
    await book.add_trial(trial(1))

    async def judged() -> Judgement | None:
        (pair,) = await book.pairs(FIRST, "shadow", 0.0)
        assert pair == Pair(False, True, 1, 2, False, pair.judgement)
        return pair.judgement and msgspec.structs.replace(pair.judgement, judged_at=0.0)

    assert await judged() is None
    client = Judgement(True, False, "client", "acme")
    judge = Judgement(True, True, "judge")
    for given, stands in (
        (client, client),
        (Judgement(False, True, "client", "acme"), client),
        (judge, judge),
        (client, judge),
        (Judgement(False, True, "operator"), Judgement(False, True, "operator")),
        (Judgement(True, True, "operator"), Judgement(False, True, "operator")),
        (judge, Judgement(False, True, "operator")),
    ):
        await book.judge("run-1", given)
        await book.judge("run-2", given)
        assert await judged() == stands


async def test_trials_of_tenants_excluded_from_training_steer_nothing(
    book: SQLVersionBook, database: Database
) -> None:
    """The setting counts at any time."""
    await put(database, run("run-30", tenant="private"))
    await book.add_trial(trial(30))
    assert len(await book.pairs(FIRST, "shadow", 0.0)) == 1
    await SQLAccounts(database).set_tenant(Tenant("private", training=False))
    assert await book.pairs(FIRST, "shadow", 0.0) == []


async def test_pairs_come_in_order_of_their_end(book: SQLVersionBook) -> None:
    """They are limited to this stay in this state and to this active version."""
    for number, ended_at in ((1, 2004.0), (2, 2003.0), (3, 2002.0), (4, 2001.0), (5, 1999.0)):
        await book.add_trial(trial(number, ended_at=ended_at))
    await book.add_trial(trial(6, "canary"))
    await book.add_trial(trial(7, active=SECOND))
    for number in (1, 4, 5):
        await book.judge(f"run-{number}", Judgement(True, True, "operator"))

    async def tokens_of(since: float, stage: str = "shadow") -> Sequence[int]:
        pairs = await book.pairs(FIRST, stage, since)  # type: ignore[arg-type]
        return [pair.candidate_tokens for pair in pairs]

    assert await tokens_of(2000.0) == [4, 3, 2, 1]
    assert await tokens_of(1999.0) == [5, 4, 3, 2, 1]
    assert await tokens_of(2000.0, "canary") == [6]
    assert await book.pairs(SECOND, "shadow", 0.0) == []
    assert await book.change([], [version(BASE, "retired")], [])
    assert await tokens_of(0.0) == []


async def test_redacted_tenants_and_deleted_runs_have_no_trials(
    book: SQLVersionBook, database: Database
) -> None:
    await put(database, run("run-20", tenant="quiet"), tenants=[Tenant("quiet", redact=True)])
    await book.add_trial(trial(20))
    await book.add_trial(trial(21))
    assert await rows(database, "SELECT * FROM version_trials") == []


async def test_trials_are_deleted_with_their_runs(book: SQLVersionBook, database: Database) -> None:
    """Versions and decisions stay, and the store is consistent."""
    await book.add_trial(trial(1))
    assert (await check(database)).problems == []
    await delete_old(database, keep_days=1)
    assert await rows(database, "SELECT run_id FROM runs") == []
    assert await book.trial("run-1") is None
    assert len(await book.versions()) == len(await book.decisions(None, 0, 9)) == 2
    assert (await check(database)).problems == []
