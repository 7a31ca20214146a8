"""The service of tables over a real channel."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from router.amount import Amount
from router.edge.grpc.convert import row_id
from router.edge.grpc.convert_table import EventsToProto, table_to_proto
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.grpc.table_service import TableServicer
from router.models import Usage
from router.runs import RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.table.conditions import with_conditions
from router.trace import Call, Event
from router.trace.table import Ask, Column, Condition, Schema
from router.trace.values import Planned, Reported, SubQueryDispatched, TableRun
from tests.router.accounts import open_access
from tests.router.clock import ended
from tests.router.deployment import Deployment, Kept
from tests.router.edge.wire import refusal, served
from tests.router.scripted_tables import SCRIPT, ScriptedTables
from tests.router.store.stored import call, run
from tests.router.table.reports import SCHEMA, discovery, executed, fill
from tests.router.table.small_world import QUESTION as ALL_CITIES
from tests.router.table.small_world import World, gateway

if TYPE_CHECKING:
    from rolegate.v1.run_service_pb2_grpc import RunServiceAsyncStub
    from rolegate.v1.table_service_pb2_grpc import TableServiceAsyncStub

COLUMNS = [
    pb.Column(name="city", key=True),
    pb.Column(name="founder"),
    pb.Column(name="founded", type=pb.COLUMN_TYPE_INTEGER),
]
QUESTION = "the cities of Vorland"


def _kind(number: int, *choices: str) -> pb.Column:
    """Return a column with choices."""
    return pb.Column(name=f"kind {number}", type=pb.COLUMN_TYPE_CHOICE, choices=choices)


VALUES = [["Krurou", "Ana", "1200"], ["Bel", "Bo", "900"]]


class Wired:
    """Services over a store in memory, and their stubs."""

    tables: "TableServiceAsyncStub"
    runs: "RunServiceAsyncStub"

    def __init__(self) -> None:
        self.store = Kept()
        live = LiveRuns()
        self.script = ScriptedTables(RunLifecycle(self.store, self.store, live, {}, 60.0))
        runs = Runs(self.store, live)
        gateway = Deployment().gateway(self.store, live=live)
        self.server = Server(
            gateway, RunServicer(runs), TableServicer(self.script, runs, open_access())
        )


@asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    """Serve the services, and open their stubs."""
    services = Wired()
    async with served(services.server) as channel:
        services.tables = TableServiceStub(channel)
        services.runs = RunServiceStub(channel)
        yield services


def values(table: pb.Table) -> list[list[str]]:
    """Return the values of a table's rows."""
    return [[cell.value for cell in row.cells] for row in table.rows]


async def test_a_table_has_rows_cells_support_and_completeness() -> None:
    async with wired() as services:
        filled = await services.tables.FillTable(
            pb.FillTableRequest(
                question=QUESTION, columns=COLUMNS, rows=[pb.GivenRow(values=["Tal", "Cy", ""])]
            )
        )
    table = filled.table
    assert filled.run_id == table.run_id
    assert values(table) == [["Tal", "Cy", ""], *VALUES]
    assert [row.row_id for row in table.rows] == ['["tal"]', '["krurou"]', '["bel"]']
    assert table.columns[2] == COLUMNS[2]
    assert table.outcome == pb.TABLE_OUTCOME_FILLED
    tal, krurou, bel = (row.cells for row in table.rows)
    assert [cell.state for cell in tal] == [
        pb.CELL_STATE_GIVEN,
        pb.CELL_STATE_GIVEN,
        pb.CELL_STATE_MISSING,
    ]
    assert [cell.support for cell in (krurou[1], bel[1])] == [
        pb.SUPPORT_STATED,
        pb.SUPPORT_VALUE_ONLY,
    ]
    assert [at.quote for at in krurou[2].citations] == ["Krurou was founded in 1200 by Ana."]
    assert table.completeness.rows == 3
    assert (table.completeness.estimated_rows, table.completeness.rows_seen_once) == (3, 1)
    assert table.markdown.splitlines()[3] == "| Krurou | Ana | 1200 |"
    (request,) = services.script.requests
    assert (request.question, request.rows) == (QUESTION, (("Tal", "Cy", ""),))


async def test_a_rival_value_stands_next_to_the_cell_s() -> None:
    """The rival has its sub-query. A value that differs in the precision of a date is no rival."""
    schema = msgspec.structs.replace(SCHEMA, columns=(*SCHEMA.columns[:2], SCHEMA.columns[2]))
    sub_queries = [fill("bel", "founded"), fill("bel", "founded", attempt=2)]
    executions = [
        executed("founded: 900", "Bel: Bel was founded in 900."),
        executed("founded: 901", "Annals: Bel was founded in 901."),
    ]
    result = TableRun(schema, (("Bel", "", ""),), tuple(sub_queries), tuple(executions))
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    cell = table.rows[0].cells[2]
    assert (cell.value, cell.state) == ("900", pb.CELL_STATE_CONFLICT)
    assert [(claim.value, claim.sub_query_index, claim.support) for claim in cell.rivals] == [
        ("901", 1, pb.SUPPORT_STATED)
    ]
    assert [at.document for at in cell.citations] == ["Bel"]


async def test_a_table_under_way_may_have_no_rows_yet() -> None:
    """Executors may work before any cell has a sub-query."""
    events = (
        Planned(SCHEMA.columns),
        SubQueryDispatched(0, 1, "Which?"),
        Reported(0, executed("Bel")),
    )
    running = msgspec.structs.replace(
        run("run-1"), kind="table", status="running", result=None, events=events
    )
    table = await table_to_proto(running)
    assert ([*table.rows], [column.name for column in table.columns]) == (
        [],
        [column.name for column in SCHEMA.columns],
    )


_SPENDING = st.tuples(
    st.none() | st.integers(0, len(SCRIPT)), st.integers(0, 999), st.none() | st.integers(0, 999)
)


@given(st.lists(_SPENDING, max_size=12))
def test_costs_of_rows_and_overhead_add_up_to_the_usage(
    spending: list[tuple[int | None, int, int | None]],
) -> None:
    """Holds in tokens and in money."""
    calls = tuple(_call(*call_spending) for call_spending in spending)
    result = TableRun(
        SCHEMA, (), tuple(ask for ask, _ in SCRIPT), tuple(execution for _, execution in SCRIPT)
    )
    finished_run = msgspec.structs.replace(run("run-1"), kind="table", result=result, calls=calls)
    table = asyncio.run(table_to_proto(finished_run))
    usage = [(row.prompt_tokens + row.completion_tokens, row.cost_nano_usd) for row in table.usage]
    assert sum(row.tokens for row in table.rows) + table.overhead_tokens == sum(
        tokens for tokens, _ in usage
    )
    assert sum(row.cost_nano_usd for row in table.rows) + table.overhead_nano_usd == sum(
        cost for _, cost in usage
    )


def _call(sub_query_index: int | None, tokens: int, nano_usd: int | None) -> Call:
    return msgspec.structs.replace(
        call("run-1"),
        sub_query_index=sub_query_index,
        usage=Usage(tokens, 1),
        nano_usd=nano_usd,
        reserved=Amount(),
    )


async def test_a_watch_repeats_the_events_of_a_table() -> None:
    """Rows are streamed as they change. A later watch, from any event on, gets the same events;
    only its rows are in their last state.
    """
    async with wired() as services:
        request = pb.StreamTableRequest(question=QUESTION, columns=COLUMNS)
        streamed = [event async for event in services.tables.StreamTable(request)]
        assert [event.event_number for event in streamed] == list(range(1, len(streamed) + 1))
        kinds = [event.WhichOneof("event") for event in streamed]
        assert kinds[:3] == ["run_started", "planned", "sub_query_dispatched"]
        assert kinds[-2:] == ["usage_counted", "done"]
        dispatched = [
            event.sub_query_dispatched
            for event in streamed
            if event.HasField("sub_query_dispatched")
        ]
        assert [sub_query.row_id for sub_query in dispatched] == ["", "", '["krurou"]', '["bel"]']
        assert dispatched[2].columns == ["founder", "founded"]
        rows = {
            event.row_changed.row_id: event.row_changed.row
            for event in streamed
            if event.HasField("row_changed")
        }
        assert [[cell.value for cell in row.cells] for row in rows.values()] == VALUES
        run_id = streamed[0].run_started.run_id
        for event_number in (0, 5, len(streamed) - 1):
            watched = services.runs.WatchRun(
                run_pb.WatchRunRequest(run_id=run_id, after_event_number=event_number)
            )
            watched_events = [event.table_event async for event in watched]
            assert [event.event_number for event in watched_events] == [
                event.event_number for event in streamed[event_number:]
            ]
            assert watched_events[-1] == streamed[-1]


async def test_a_detached_table_is_filled_without_its_client() -> None:
    """The table can be read and watched meanwhile."""
    async with wired() as services:
        services.script.let.clear()
        request = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        async with ended_call(services, request) as response:
            assert response.run_id
            assert not response.HasField("table")
        await ended(services.script.waiting.wait())
        partial = await services.tables.GetTable(pb.GetTableRequest(run_id=response.run_id))
        assert partial.running
        assert values(partial.table) == [["Krurou", "", ""], ["Bel", "", ""]]
        assert partial.table.outcome == pb.TABLE_OUTCOME_UNSPECIFIED
        assert partial.table.duration.ToNanoseconds() > 0
        watching = services.runs.WatchRun(
            run_pb.WatchRunRequest(run_id=response.run_id, after_event_number=8)
        )
        services.script.let.set()
        last_event = [event.table_event async for event in watching][-1]
        finished = await services.tables.GetTable(pb.GetTableRequest(run_id=response.run_id))
    assert not finished.running
    assert values(finished.table) == VALUES
    assert finished.table == last_event.done


async def test_events_are_converted_for_one_watcher_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many watchers do not hold the event loop for the sum of their conversions."""
    converted = Counter[int]()
    caught_up = asyncio.Event()
    step = 0
    convert = EventsToProto.one

    async def counted(self: EventsToProto, number: int, event: Event) -> Any:
        converted[step] += 1
        if converted.total() == 20 * 8:  # all watchers have the events so far
            caught_up.set()
        return await convert(self, number, event)

    async def count_steps() -> None:
        nonlocal step
        while True:
            await asyncio.sleep(0)
            step += 1

    async with wired() as services:
        services.script.let.clear()
        response = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        )
        await ended(services.script.waiting.wait())
        monkeypatch.setattr(EventsToProto, "one", counted)
        counting = asyncio.create_task(count_steps())
        request = run_pb.WatchRunRequest(run_id=response.run_id)
        watching = [
            asyncio.create_task(_drained(services.runs.WatchRun(request))) for _ in range(20)
        ]
        await ended(caught_up.wait())
        services.script.let.set()
        await ended(asyncio.gather(*watching))
        counting.cancel()
    assert converted.total() >= 20 * 9
    assert max(converted.values()) == 1


@asynccontextmanager
async def ended_call(
    services: Wired, request: pb.FillTableRequest
) -> AsyncIterator[pb.FillTableResponse]:
    """Yield the response to a call whose deadline is shorter than the work."""
    yield await services.tables.FillTable(request, timeout=5)


async def test_a_detached_table_is_interrupted_when_the_gateway_stops() -> None:
    """The run is stored before the server is closed."""
    async with wired() as services:
        services.script.let.clear()
        request = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        response = await services.tables.FillTable(request)
        await ended(services.script.waiting.wait())
    (stored,) = services.store.runs
    assert (stored.id, stored.status) == (response.run_id, "interrupted")


async def test_a_detached_table_can_be_cancelled() -> None:
    """`CancelRun` stores the run as cancelled and ends its watches."""
    async with wired() as services:
        services.script.let.clear()
        response = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        )
        await ended(services.script.waiting.wait())
        await services.runs.CancelRun(run_pb.CancelRunRequest(run_id=response.run_id))
        assert (await ended(services.store.next())).status == "cancelled"
        watched = services.runs.WatchRun(run_pb.WatchRunRequest(run_id=response.run_id))
        assert await refusal(_drained(watched)) == ("CANCELLED", "RUN_CANCELLED")


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_value_of_another_type_is_kept_and_marked() -> None:
    async with wired() as services:
        given = [pb.GivenRow(values=["Tal", "Cy", "long ago"])]
        filled = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, rows=given)
        )
    assert values(filled.table)[0] == ["Tal", "Cy", "long ago"]
    assert [[cell.mistyped for cell in row.cells] for row in filled.table.rows] == [
        [False, False, True],
        *[[False] * 3] * 2,
    ]


async def test_pages_have_their_rows_and_the_figures_of_the_whole_table() -> None:
    """Another table may be read between two pages."""
    async with wired() as services:
        run_id = (
            await services.tables.FillTable(pb.FillTableRequest(question=QUESTION, columns=COLUMNS))
        ).run_id
        first_page = await services.tables.GetTable(pb.GetTableRequest(run_id=run_id, page_size=1))
        given = [pb.GivenRow(values=["Tal", "Cy", "800"])]
        other_table = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, rows=given)
        )
        other_page = await services.tables.GetTable(
            pb.GetTableRequest(run_id=other_table.run_id, page_size=1)
        )
        assert values(other_page.table) == [["Tal", "Cy", "800"]]
        second_page = await services.tables.GetTable(
            pb.GetTableRequest(run_id=run_id, page_size=1, page_token=first_page.next_page_token)
        )
    assert [values(page.table) for page in (first_page, second_page)] == [VALUES[:1], VALUES[1:]]
    assert (first_page.next_page_token, second_page.next_page_token) == ("1", "")
    assert first_page.table.completeness == second_page.table.completeness


AFTER = pb.Condition(column=pb.Column(name="Founded"), operator=pb.OPERATOR_AFTER, values=["1000"])
CONTINENT = pb.Condition(
    column=pb.Column(name="continent", type=pb.COLUMN_TYPE_TEXT), values=["Orrin"]
)


async def test_excluded_rows_are_apart_with_the_sentence_that_excludes_them() -> None:
    """Every row has the result of each condition. Columns of conditions alone are not sent."""
    async with wired() as services:
        filled = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, conditions=[AFTER, CONTINENT])
        )
    table = filled.table
    assert (values(table), [row.row_id for row in table.excluded]) == (VALUES[:1], ['["bel"]'])
    assert [condition.text for condition in table.conditions] == [
        "founded after 1000",
        "continent equals Orrin",
    ]
    assert [column.name for column in table.columns] == ["city", "founder", "founded"]
    assert [check.state for check in table.rows[0].checks] == [
        pb.CHECK_STATE_MET,
        pb.CHECK_STATE_NOT_CHECKED,
    ]
    (excluded,) = table.excluded
    assert [check.state for check in excluded.checks] == [
        pb.CHECK_STATE_CONTRADICTED,
        pb.CHECK_STATE_NOT_CHECKED,
    ]
    assert excluded.checks[0].value == "900"
    assert [at.quote for at in excluded.checks[0].citations] == ["Bel was founded in 900."]
    assert (table.completeness.rows, table.markdown.count("\n")) == (1, 3)


async def test_pages_continue_with_excluded_rows() -> None:
    """Watches show the conditions as soon as they are planned."""
    request = pb.StreamTableRequest(question=QUESTION, columns=COLUMNS, conditions=[AFTER])
    async with wired() as services:
        streamed = [event async for event in services.tables.StreamTable(request)]
        run_id = streamed[0].run_started.run_id
        pages = []
        token = ""
        for _ in range(2):
            page = await services.tables.GetTable(
                pb.GetTableRequest(run_id=run_id, page_size=1, page_token=token)
            )
            pages.append(page.table)
            token = page.next_page_token
    assert token == ""
    assert [(len(page.rows), len(page.excluded)) for page in pages] == [(1, 0), (0, 1)]
    assert streamed[1].planned.conditions == streamed[-1].done.conditions
    assert streamed[-1].done.excluded == pages[1].excluded


async def test_conditions_are_shown_while_the_table_is_filled() -> None:
    async with wired() as services:
        services.script.held = 4
        services.script.let.clear()
        request = pb.FillTableRequest(
            question=QUESTION, columns=COLUMNS, conditions=[AFTER], detached=True
        )
        response = await services.tables.FillTable(request)
        run_id = response.run_id
        partial = pb.GetTableResponse(running=True)
        while not partial.table.excluded:
            partial = await services.tables.GetTable(pb.GetTableRequest(run_id=run_id))
    assert [condition.text for condition in partial.table.conditions] == ["founded after 1000"]
    assert values(partial.table) == VALUES[:1]


async def test_ignored_conditions_are_sent() -> None:
    result = TableRun(SCHEMA, ignored=('<where is="near">: use equals',))
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    assert [*table.ignored_conditions] == [*result.ignored]


async def test_names_that_lists_have_beside_rows_are_sent() -> None:
    result = TableRun(
        SCHEMA,
        asks=(discovery(1),),
        executions=(executed("Bel\nTal", "Register: The cities are Bel, Tal and Nes Vor."),),
    )
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    assert [*table.completeness.left_out] == ["Nes Vor"]


async def test_a_huge_excluded_row_is_shortened() -> None:
    """Its checks are kept."""
    schema = with_conditions(SCHEMA, [Condition(Column("founder"), "equals", ("Ana",))])
    result = TableRun(schema, (("Bel", "Bo" * 2_000_000, ""),))
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    (row,) = table.excluded
    assert row.checks[0].state == pb.CHECK_STATE_CONTRADICTED
    assert row.ByteSize() < 1 << 20


@pytest.mark.parametrize(
    ("method", "request_", "match"),
    [
        ("FillTable", pb.FillTableRequest(question=QUESTION), "columns: no key column given"),
        (
            "FillTable",
            pb.FillTableRequest(
                question=QUESTION,
                columns=[pb.Column(name="a", key=True)],
                conditions=[pb.Condition()],
            ),
            r"conditions\[0\]: has neither a column",
        ),
        ("FillTable", pb.FillTableRequest(columns=[pb.Column(name="a")]), "no key column given"),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["x"])]),
            r"rows\[0\]: must have 3 values",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, max_rows=-1),
            "max_rows: must not be negative",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=[pb.Column(name="a", type=99)]),  # type: ignore[arg-type]
            r"columns\[0\].type is 99",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS[1:], detached=True),
            "no key column given",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["a"])] * 3, max_rows=2),
            "rows: 3 rows given, at most 2",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["a"] * 65)]),
            r"rows\[0\].values has 65 entries; at most 64",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["", "a" * 1025])]),
            r"rows\[0\].values has 1025 characters; the limit is 1024",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=[*COLUMNS, *(_kind(n, "a" * 1025) for n in range(1))]),
            r"columns\[3\].choices has 1025 characters",
        ),
        (
            "FillTable",
            pb.FillTableRequest(
                columns=[*COLUMNS, *(_kind(n, *map(str, range(300))) for n in range(4))]
            ),
            "columns: 1200 choices given in all columns together, at most 1024",
        ),
        ("GetTable", pb.GetTableRequest(run_id="run-x"), "no such run"),
        ("GetTable", pb.GetTableRequest(page_size=-1), "page_size is -1"),
        ("GetTable", pb.GetTableRequest(page_token="²"), "page_token is invalid"),
    ],
)
async def test_an_invalid_request_is_refused(method: str, request_: Any, match: str) -> None:
    """The message says what is wrong, where, and what to do."""
    async with wired() as services:
        code, _ = await refusal(getattr(services.tables, method)(request_), match)
    assert code in ("INVALID_ARGUMENT", "NOT_FOUND")


async def test_a_large_table_fits_into_messages_of_the_default_size() -> None:
    """`GetTable` pages the rows, and the table of `FillTable` has the token of the next page.
    Quotes are cut.
    """
    columns = (Column("city", key=True), *(Column(f"fact {number}") for number in range(40)))
    cities = [f"City {number}" for number in range(120)]
    facts = [f"“Fact”|<&> {number} {'界' * 30}" for number in range(40)]
    padding = "and so on " * 800
    passages = [f"{city}: {city} has {', '.join(facts)}, {padding}." for city in cities]
    sub_queries = [
        Ask("fill", tuple(column.name for column in columns[1:]), (city.casefold(),))
        for city in cities
    ]
    answer = "\n".join(f"fact {number}: {fact}" for number, fact in enumerate(facts))
    executions = tuple(executed(answer, passage) for passage in passages)
    rows = tuple((city, *[""] * 40) for city in cities)
    stored_run = msgspec.structs.replace(
        run("run-1"),
        kind="table",
        result=TableRun(Schema(columns), rows, tuple(sub_queries), executions),
    )
    first_part = await table_to_proto(stored_run)
    assert 500_000 < first_part.ByteSize() < 3 << 19
    assert 0 < len(first_part.rows) < first_part.completeness.rows == 120
    async with wired() as services:
        services.store.runs[:] = [stored_run]
        rows_read = list[pb.Row]()
        token = ""
        while token or not rows_read:
            page = await services.tables.GetTable(
                pb.GetTableRequest(run_id="run-1", page_size=1000, page_token=token)
            )
            rows_read += page.table.rows
            token = page.next_page_token
    assert [row.cells[0].value for row in rows_read] == cities
    assert first_part.next_page_token == str(len(first_part.rows))
    for row in rows_read:
        assert all(len(at.quote) <= 300 for cell in row.cells for at in cell.citations)
        assert all(
            cell.citations and cell.citations[0].quote.endswith("…") for cell in row.cells[1:]
        )


async def test_a_row_larger_than_a_message_is_cut() -> None:
    """Its values are cut, and its sources are left out."""
    columns = (Column("city", key=True), *(Column(f"fact {number}") for number in range(60)))
    rows = (("Krurou", *["界|" * 100_000] * 60),)
    result = TableRun(Schema(columns), rows, (), ())
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    assert table.ByteSize() < 4 << 20
    assert all(cell.value.endswith("…") for cell in table.rows[0].cells[1:])


async def test_a_run_without_a_table_is_refused() -> None:
    """Runs of other kinds, and runs whose texts are redacted."""
    async with wired() as services:
        for stored_run, match in (
            (run("run-1"), "of kind answer, not a table"),
            (
                msgspec.structs.replace(run("run-1"), kind="table", redacted=True),
                "texts of this tenant",
            ),
        ):
            services.store.runs[:] = [stored_run]
            await refusal(services.tables.GetTable(pb.GetTableRequest(run_id="run-1")), match)


async def test_a_repeated_request_gets_the_first_one_s_table() -> None:
    """A stream gets the events of the first run."""
    async with wired() as services:
        response = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, request_id="table-1")
        )
        stream = services.tables.StreamTable(
            pb.StreamTableRequest(question=QUESTION, columns=COLUMNS, request_id="table-1")
        )
        started, *_, last_event = [event async for event in stream]
    assert started.run_started.run_id == response.run_id
    assert last_event.done.rows == response.table.rows


def test_row_ids_of_different_keys_differ() -> None:
    """Holds also if the joined parts of their keys are equal."""
    assert len({row_id(key) for key in (("a", "b"), ("a b",), ("ab",), ('a", "b',))}) == 4


async def test_a_stored_table_equals_the_table_that_was_filled(tmp_path: Path) -> None:
    """Rows and overhead add up to the engines' usage."""
    world = World(9)
    columns = [pb.Column(name=name, key=name == "city") for name in ("city", "founder", "founded")]
    async with gateway(tmp_path, world) as (filling, archive):
        servicer = TableServicer(filling, Runs(archive, LiveRuns()), open_access())
        async with served(Server(filling, None, servicer)) as channel:
            stub: TableServiceAsyncStub = TableServiceStub(channel)
            filled = await stub.FillTable(pb.FillTableRequest(question=ALL_CITIES, columns=columns))
            stored = await stub.GetTable(pb.GetTableRequest(run_id=filled.run_id))
    table = filled.table
    assert stored.table == table
    assert sorted(map(tuple, values(table))) == sorted(world.rows())
    assert {cell.support for row in table.rows for cell in row.cells[1:]} == {pb.SUPPORT_STATED}
    total_tokens = sum(row.prompt_tokens + row.completion_tokens for row in table.usage)
    assert sum(row.tokens for row in table.rows) + table.overhead_tokens == total_tokens > 0
