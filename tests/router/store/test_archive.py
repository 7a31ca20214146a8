"""The archive: stored runs are read back."""

import asyncio
import base64
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from router.access import Tenant
from router.errors import BadRequest, NotFound, StoreFailed
from router.models import Message, Usage
from router.runs import RunFilter
from router.runs.archive import RunFigures, RunSummary
from router.store import Database, LogJournal, SQLArchive
from router.store.database import Args, Value, engine_of
from router.store.schema import FEEDBACK, RUNS
from router.trace import Conversation, Run
from router.trace.run import Feedback
from router.trace.values import Condensing, Reported
from tests.router.store.entries import NOW, start
from tests.router.store.query_plan import explained
from tests.router.store.stored import ANSWER, EXECUTIONS, call, put, run


@pytest.fixture
def archive(database: Database) -> SQLArchive:
    return SQLArchive(database)


async def exported(archive: SQLArchive, wanted: RunFilter = RunFilter()) -> list[Run]:  # noqa: B008 - frozen
    return [stored.run async for stored in archive.export(wanted)]


async def listed(
    archive: SQLArchive, size: int, wanted: RunFilter | None = None
) -> list[list[str]]:
    """Identifiers of all pages."""
    wanted = wanted or RunFilter()
    pages = []
    page = ""
    while True:
        listing = await archive.list(wanted, size, page)
        pages.append([run.id for run in listing.runs])
        if not (page := listing.next_page):
            return pages


async def test_a_stored_run_is_read_back_unchanged(database: Database, archive: SQLArchive) -> None:
    """Its events are included. Their executions are stored once, in its result."""
    kept = run(
        "run-1",
        calls=[call("run-1", 0), call("run-1", 1, usage=None, nano_usd=None)],
        request_id="mine",
    )
    await put(database, kept)

    assert [await archive.load("run-1"), *await exported(archive)] == [kept, kept]
    (stored,) = await database.read(
        lambda connection: connection.execute(select(RUNS.c.trace)).one()
    )
    # Evidence and passage of each
    assert stored.count(b"Heat is a film by Michael Mann.") == 2 * len(EXECUTIONS)


async def test_a_large_run_of_similar_texts_is_stored_compactly(
    database: Database, archive: SQLArchive
) -> None:
    """It is read back unchanged, and so is a run that was not compressed."""
    kept = run("run-1", result=msgspec.structs.replace(ANSWER, executions=EXECUTIONS * 100))
    await put(database, kept)
    trace = msgspec.msgpack.encode(msgspec.structs.replace(kept, events=()))
    (stored,) = await database.read(
        lambda connection: connection.execute(select(RUNS.c.trace)).one()
    )
    assert 10 * len(stored) < len(trace)
    assert await archive.load("run-1") == kept
    await database.write(lambda connection: connection.execute(RUNS.update().values(trace=trace)))
    assert await archive.load("run-1") == msgspec.structs.replace(kept, events=())


async def test_events_whose_execution_is_not_in_the_result_are_read_back(
    database: Database, archive: SQLArchive
) -> None:
    """A cut run may have announced a report that its result does not hold yet."""
    cut = msgspec.structs.replace(ANSWER, executions=EXECUTIONS[:1])
    await put(
        database,
        run("run-1", result=cut, status="cancelled"),
        run("run-2", result=None, status="failed"),
    )

    for run_id, known in (("run-1", [None, EXECUTIONS[0]]), ("run-2", [None, None])):
        events = (await archive.load(run_id)).events
        assert [event.execution for event in events if isinstance(event, Reported)] == known


CALLS_SO_FAR = (
    call(
        "run-1",
        0,
        role="delegation",
        executor_version=None,
        sub_query_index=None,
        first_token_s=None,
    ),
    call("run-1", 1, outcome="cancelled", usage=Usage(10, 3, 4, 1, lower_bound=True)),
    call("run-1", 2, outcome="cancelled", usage=Usage(10, 3, estimated=True), nano_usd=None),
    call("run-1", 4, outcome="unavailable", usage=None, nano_usd=None),
)


async def test_a_running_run_has_calls_only_at_its_own_gateway(
    database: Database, archive: SQLArchive
) -> None:
    """These are the calls that have ended; other gateways return none."""
    bare = run("run-1", status="running", result=None, events=(), settings={}, request_id="mine")
    await put(database, bare)

    assert await archive.load("run-1") == bare
    here = SQLArchive(database, {"run-1": CALLS_SO_FAR}.__getitem__)
    assert await here.load("run-1") == msgspec.structs.replace(bare, calls=CALLS_SO_FAR)
    assert await exported(archive) == []


@pytest.mark.parametrize(
    ("run_id", "tenant"), [("run-2", None), ("run-1", "other"), ("run-1\0", None), ("", None)]
)
async def test_unknown_and_foreign_runs_are_refused_in_equal_words(
    database: Database, archive: SQLArchive, run_id: str, tenant: str | None
) -> None:
    await put(database, run("run-1"))

    for reading in (
        archive.load(run_id, tenant),
        archive.add_feedback(Feedback(run_id, True, tenant=tenant)),
    ):
        with pytest.raises(NotFound) as caught:
            await reading
        assert (
            str(caught.value)
            == f"run_id {run_id!r}: no such run is stored here; check the identifier."
        )
    assert (await archive.load("run-1", "default")).id == "run-1"
    assert await database.read(lambda connection: connection.execute(select(FEEDBACK)).all()) == []


async def test_a_damaged_trace_is_reported_with_the_remedy_and_not_shown(
    database: Database, archive: SQLArchive
) -> None:
    await put(database, run("run-1"))
    await database.write(
        lambda connection: connection.execute(RUNS.update().values(trace=b"\xa3Heat"))
    )

    with pytest.raises(
        StoreFailed, match=r"^The trace of run run-1 is damaged; run `rolegate store check`.$"
    ):
        await archive.load("run-1")


async def test_pages_list_each_run_once_newest_first(
    database: Database, archive: SQLArchive
) -> None:
    """Many runs start at the same time. The last page has no successor."""
    times = [5.0, 3.0, 3.0, 3.0, 3.0, 4.0, 1.0]
    await put(
        database, *(run(f"run-{number}", started_at) for number, started_at in enumerate(times))
    )

    newest_first = ["run-0", "run-5", "run-4", "run-3", "run-2", "run-1", "run-6"]
    for size in range(1, 9):
        pages = await listed(archive, size)
        assert [run_id for page in pages for run_id in page] == newest_first
        assert [len(page) for page in pages[:-1]] == [size] * (len(pages) - 1)
        assert pages[-1]


async def test_a_follow_up_is_listed_and_found_as_it_was_searched(
    journal: LogJournal, archive: SQLArchive
) -> None:
    """The text that was asked comes after it. A question that was asked back is listed as asked."""
    asked = "And where was he born?"
    for run_id, searched in (("run-1", "Where was Mann born?"), ("run-2", "")):
        await journal.begin(msgspec.structs.replace(start(run_id), request=asked))
        result = msgspec.structs.replace(ANSWER, condensing=Condensing((), searched))
        await journal.finish(run(run_id, NOW, request=asked, result=result))

    pages = [await archive.list(RunFilter(text=text), 5) for text in ("where was he", "mann born")]

    assert [{listed.id: listed.request for listed in page.runs} for page in pages] == [
        {"run-1": f"Where was Mann born? (asked: {asked})", "run-2": asked},
        {"run-1": f"Where was Mann born? (asked: {asked})"},
    ]
    assert (await archive.load("run-1")).request == asked


async def test_unknown_fields_of_a_listed_run_are_none_or_empty(
    database: Database, archive: SQLArchive
) -> None:
    await put(
        database,
        run("run-1", 2.0, request_id="mine", tenant="acme"),
        run("run-2", 1.0, kind="execute", status="failed", result=None),
    )

    page = await archive.list(RunFilter(), 5)

    request = "Who directed Heat?"
    assert page.runs == (
        RunSummary(
            "run-1",
            "acme",
            "answer",
            "mine",
            request,
            "finished",
            "answered",
            2.0,
            2.5,
            "Michael Mann",
            "factorized",
        ),
        RunSummary("run-2", "default", "execute", "", request, "failed", None, 1.0, 2.5),
    )


def token(value: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode()


@pytest.mark.parametrize(
    "page",
    [
        *(
            "x",
            "é",
            "run-1",
            "!!!!",
            "\0",
            token("run-1"),
            token([1.0]),
            token(["a", "b"]),
            token([math.nan, "a"]),
        ),
        *(token([1.0, "run-1", "more"]), token([math.inf, "a"]), token([1.0, "run-1"])[:-3]),
    ],
)
async def test_an_invalid_page_token_is_refused(archive: SQLArchive, page: str) -> None:
    with pytest.raises(BadRequest, match="page_token"):
        await archive.list(RunFilter(), 1, page)


async def test_a_forged_page_token_shows_only_what_the_filter_admits(
    database: Database, archive: SQLArchive
) -> None:
    await put(database, run("run-1", tenant="acme"), run("run-2", tenant="other"))

    page = await archive.list(RunFilter(tenant="acme"), 5, token([1e9, "run-\0"]))

    assert [listed_run.id for listed_run in page.runs] == ["run-1"]


MANY = (
    run("run-1", 1.0, tenant="acme"),
    run("run-2", 2.0, tenant="acme", kind="execute", result=EXECUTIONS[0], events=(), key_id="k"),
    run("run-3", 3.0, status="failed", result=None, events=(), error="UpstreamUnavailable: …"),
    run("run-4", 4.0, tenant="shy", status="cancelled"),
    run("run-5", 5.0, status="running", result=None, events=(), settings={}),
    run("run-6", 6.0, kind="complete", events=(), result=Conversation((Message("user", "?"),))),
    run("run-7", 7.0, tenant="acme", redacted=True, request="", result=None, events=()),
    run("run-8", 8.0, kind="shadow", tenant="shadow"),
)


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (RunFilter(), "1234567"),
        (RunFilter(tenant="acme"), "127"),
        (RunFilter(tenant="nobody"), ""),
        (RunFilter(tenant="acme\0"), ""),
        (RunFilter(kind="answer"), "13457"),
        (RunFilter(kind="execute"), "2"),
        (RunFilter(status="finished"), "1267"),
        (RunFilter(status="running"), "5"),
        (RunFilter(kind="shadow"), "8"),
        (RunFilter(kind="shadow", training=True), ""),
        (RunFilter(key_id="k"), "2"),
        (RunFilter(tenant="acme", key_id="other\0"), ""),
        (RunFilter(start=2.0), "234567"),
        (RunFilter(end=2.0), "1"),
        (RunFilter(start=2.0, end=4.0), "23"),
        (RunFilter(training=True), "123567"),
        (RunFilter("acme", "answer", "finished", 0.5, 6.5, training=True), "1"),
    ],
)
async def test_a_list_and_an_export_choose_equal_runs(
    database: Database, archive: SQLArchive, wanted: RunFilter, chosen: str
) -> None:
    """An export leaves out running runs. Shadows are included only on request."""
    await put(database, *MANY, tenants=[Tenant("shy", training=False), Tenant("acme", redact=True)])

    assert [run_id[-1] for page in await listed(archive, 2, wanted) for run_id in page] == list(
        reversed(chosen)
    )
    assert await exported(archive, wanted) == [
        candidate for candidate in MANY if candidate.id[-1] in chosen.replace("5", "")
    ]


async def test_unsupported_answers_are_listed_by_their_column(
    database: Database, archive: SQLArchive
) -> None:
    result = msgspec.structs.replace(ANSWER, unsupported=True)
    await put(
        database,
        run("run-1", 1.0),
        run("run-2", 2.0, result=result),
        run("run-3", 3.0, result=None),
    )
    page = await archive.list(RunFilter(unsupported=True), 5)
    assert [(listed_run.id, listed_run.unsupported) for listed_run in page.runs] == [
        ("run-2", True)
    ]
    whole = await archive.list(RunFilter(), 5)
    assert [listed_run.unsupported for listed_run in whole.runs] == [False, True, False]


async def test_an_export_holds_no_transaction(database: Database, archive: SQLArchive) -> None:
    """It lists each run once, oldest first, though many start at the same time.

    A slow reader delays no other client, and deleted runs are skipped.
    """
    await put(database, *(run(f"run-{number:03}", float(number // 40)) for number in range(100)))
    run_ids: list[str] = []
    async for stored in archive.export(RunFilter()):
        if not run_ids:
            await database.write(
                lambda connection: connection.execute(
                    RUNS.delete().where(RUNS.c.run_id == "run-060")
                )
            )
        run_ids.append(stored.run.id)
    assert run_ids == [f"run-{number:03}" for number in range(100) if number != 60]


SAID = {
    "run-1": [Feedback("run-1", accepted=True), Feedback("run-1", comment="so so")],
    "run-2": [Feedback("run-2", score=0.4)],
    "run-3": [Feedback("run-3", comment="hm")],
    "run-4": [Feedback("run-4", accepted=False, score=0.9)],
}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (RunFilter(text="DIRECTED heat"), "1"),
        (RunFilter(text="mann"), "14"),
        (RunFilter(text="100%"), "5"),
        (RunFilter(text="%"), "5"),
        (RunFilter(text="_"), ""),
        (RunFilter(text="\\"), "3"),
        (RunFilter(text="x\0"), ""),
        (RunFilter(text="é"), "2"),
        (RunFilter(text="heat", tenant="other"), ""),
        (RunFilter(outcome="answered"), "1"),
        (RunFilter(outcome="filled"), ""),
        (RunFilter(topology="factorized"), "14"),
        (RunFilter(topology="host"), ""),
        (RunFilter(executor_version="executor-000002"), "25"),
        (RunFilter(executor_version="executor-000002", text="%"), "5"),
        (RunFilter(feedback="right"), "1"),
        (RunFilter(feedback="wrong"), "24"),
        (RunFilter(feedback="any"), "1234"),
    ],
)
async def test_runs_are_found_by_text_actions_spending_and_feedback(
    database: Database, archive: SQLArchive, wanted: RunFilter, expected: str
) -> None:
    """Text is matched literally, in any case."""
    second: dict[str, Any] = {"executor_version": "executor-000002"}
    await put(
        database,
        run("run-1", 1.0, [call("run-1")]),
        run("run-2", 2.0, [call("run-2", 0, **second), call("run-2", 1)], request="é", result=None),
        run("run-3", 3.0, request="back\\slash", result=None),
        run("run-4", 4.0, request="who?", status="failed"),
        run("run-5", 5.0, [call("run-5", nano_usd=20, **second)], request="100% sure", result=None),
    )
    for feedback in (feedback for entries in SAID.values() for feedback in entries):
        await archive.add_feedback(feedback)

    page = await archive.list(wanted, 10)

    assert "".join(sorted(run.id[-1] for run in page.runs)) == expected
    assert {run.id: run.good for run in page.runs} == {
        run.id: {"run-1": True, "run-2": False, "run-4": False}.get(run.id) for run in page.runs
    }
    assert page.next_page == ""


async def test_figures_of_runs_are_summed_by_span_of_time(
    database: Database, archive: SQLArchive
) -> None:
    """Percentiles are of finished runs, and the latest verdict on a run counts."""
    finished = [run(f"run-{number}", 100.0 + number, duration_s=number / 2) for number in range(20)]
    others = (
        run("run-failed", 110.0, [call("run-failed", nano_usd=5)], status="failed", result=None),
        run("run-running", 110.0, status="running", result=None, duration_s=0.0),
        run("run-shadow", 110.0, kind="shadow"),
        run(
            "run-other",
            110.0,
            tenant="other",
            result=msgspec.structs.replace(ANSWER, unsupported=True),
        ),
        run("run-later", 199.9, [call("run-later", nano_usd=2)]),
        run("run-latest", 200.0, duration_s=9.0),
    )
    await put(database, *finished, *others)
    for feedback in (
        Feedback("run-1", accepted=False),
        Feedback("run-1", score=0.9),
        Feedback("run-1", comment="no verdict"),
        Feedback("run-2", accepted=True),
        Feedback("run-2", score=0.1),
        Feedback("run-later", accepted=True),
    ):
        await archive.add_feedback(feedback)

    wanted = RunFilter(start=100.0, end=300.0)
    assert await archive.figures(wanted, [100.0, 150.0, 200.0, 250.0]) == [
        RunFigures(23, 1, 1, 1, 1, 5, 4.5, 9.0),
        RunFigures(1, right=1, nano_usd=2, p50_s=2.5, p95_s=2.5),
        RunFigures(1, p50_s=9.0, p95_s=9.0),
        RunFigures(),
    ]
    other = RunFilter("other", start=100.0)
    assert await archive.figures(other, [100.0]) == [
        RunFigures(1, unsupported=1, p50_s=2.5, p95_s=2.5)
    ]


@settings(max_examples=25, deadline=None)
@given(marked=st.sets(st.integers(0, 39)), within=st.integers(1, 50), size=st.integers(1, 8))
def test_paging_through_a_search_finds_each_run_once(
    marked: set[int], within: int, size: int
) -> None:
    """All matching runs come newest first, however few runs a page examines."""

    async def searched() -> list[list[str]]:
        database = await Database.open(f"sqlite:///{folder}/runs.db")
        says = {number: "yes" if number in marked else "no" for number in range(40)}
        await put(
            database,
            *(
                run(f"run-{n:02}", float(n // 3), request=text, result=None)
                for n, text in says.items()
            ),
        )
        pages = await listed(SQLArchive(database, searched=within), size, RunFilter(text="yes"))
        await database.close()
        return pages

    with TemporaryDirectory() as folder:
        pages = asyncio.run(searched())
    assert [run_id for page in pages for run_id in page] == [
        f"run-{n:02}" for n in sorted(marked, reverse=True)
    ]
    assert len(pages) <= 40 // within + len(marked) // size + 2


async def test_feedback_is_read_with_its_run_oldest_first(
    database: Database, archive: SQLArchive
) -> None:
    """The text is left out for a tenant whose texts are not kept."""
    runs = run("run-1"), run("run-2", tenant="acme"), run("run-3")
    await put(database, *runs, tenants=[Tenant("acme", redact=True)])
    given = [
        *(
            Feedback("run-1", True),
            Feedback("run-1", score=0.25, right_answer="é\n日本\0"),
            Feedback("run-1", comment="…"),
        ),
        Feedback("run-2", False, 0.5, "Michael Mann", "a secret", "acme"),
    ]
    assert len({await archive.add_feedback(feedback) for feedback in given}) == 4
    kept = given[0], Feedback("run-1", score=0.25, right_answer="é\n日本\ufffd"), given[2]
    assert await archive.feedback("run-1") == kept
    exported_feedback = {
        stored.run.id: stored.feedback async for stored in archive.export(RunFilter())
    }
    assert exported_feedback == {
        "run-1": kept,
        "run-2": (Feedback("run-2", False, 0.5, tenant="acme"),),
        "run-3": (),
    }


async def test_concurrent_feedback_keeps_to_the_limit_of_a_run(
    url: str, database: Database
) -> None:
    """Several gateways write it."""
    await put(database, run("run-1"))
    other = await Database.open(url)
    archives = SQLArchive(database), SQLArchive(other)
    given = [
        archives[number % 2].add_feedback(Feedback("run-1", comment=str(number)))
        for number in range(80)
    ]
    outcomes = await asyncio.gather(*given, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(BadRequest) == 30
    assert len(await archives[0].feedback("run-1")) == 50
    assert (
        len(await database.read(lambda connection: connection.execute(select(FEEDBACK)).all()))
        == 50
    )
    await other.close()


async def test_only_a_running_run_can_be_cancelled(database: Database, archive: SQLArchive) -> None:
    await put(
        database,
        run("run-1", status="running", result=None),
        run("run-2"),
        run("run-3", status="running"),
    )

    for run_id in ("run-1", "run-2", "run-4\0"):
        await archive.request_cancel(run_id)

    asked = select(RUNS.c.run_id).where(RUNS.c.cancel_requested)
    assert await database.read(lambda connection: connection.execute(asked).scalars().all()) == [
        "run-1"
    ]


class Explained(Database):
    """A database that notes the query plans of reads."""

    plans: str = ""

    async def read(
        self, query: Callable[[Connection, *Args], Value], *args: *Args, behind: bool = False
    ) -> Value:
        def read(connection: Connection) -> Value:
            with explained(connection) as plans:
                value = query(connection, *args)
            self.plans = "\n".join(plans)
            return value

        return await super().read(read, behind=behind)


@pytest.mark.parametrize(
    "wanted",
    [
        RunFilter(),
        RunFilter("acme"),
        RunFilter(status="finished"),
        RunFilter(kind="answer", training=True),
    ],
)
async def test_a_page_is_read_through_an_index_without_sorting(
    tmp_path: Path, wanted: RunFilter
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    await (await Database.open(url)).close()
    database = Explained(engine_of(url))

    await SQLArchive(database).list(wanted, 2, token([2.0, "run-2"]))

    assert "runs_by_time" in database.plans or "runs_by_tenant" in database.plans
    assert "TEMP B-TREE" not in database.plans
    await database.close()
