"""Tables over a real channel."""

import asyncio
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
from router.edge.grpc.convert_table import table_to_proto
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.grpc.table_service import TableServicer
from router.models import Usage
from router.runs import RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.trace import Call
from router.trace.table import Ask, Column, Schema
from router.trace.values import Planned, Reported, SubQueryDispatched, TableRun
from tests.router.clock import ended
from tests.router.deployment import Kept
from tests.router.edge.wire import refusal, served
from tests.router.scripted_tables import SCRIPT, ScriptedTables
from tests.router.store.stored import call, run
from tests.router.table.reports import SCHEMA, executed, fill
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
    """A column with choices."""
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
        self.server = Server(None, None, RunServicer(runs), TableServicer(self.script, runs))


@asynccontextmanager
async def wired() -> AsyncIterator[Wired]:
    """While its server is open."""
    found = Wired()
    async with served(found.server) as channel:
        found.tables = TableServiceStub(channel)
        found.runs = RunServiceStub(channel)
        yield found


def values(table: pb.Table) -> list[list[str]]:
    """The values of its rows."""
    return [[cell.value for cell in row.cells] for row in table.rows]


async def test_a_table() -> None:
    """Rows and cells, with what they rest on and how far it came."""
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
        pb.SUPPORT_UNSUPPORTED,
    ]
    assert [at.quote for at in krurou[2].citations] == ["Krurou was founded in 1200 by Ana."]
    assert table.completeness.rows == 3
    assert (table.completeness.estimated_rows, table.completeness.rows_seen_once) == (3, 1)
    assert table.markdown.splitlines()[3] == "| Krurou | Ana | 1200 |"
    (asked,) = services.script.requests
    assert (asked.question, asked.rows) == (QUESTION, (("Tal", "Cy", ""),))


async def test_rivals() -> None:
    """Another value stands beside that of the cell, with its sub-query; another precision of a
    date does not.
    """
    schema = msgspec.structs.replace(SCHEMA, columns=(*SCHEMA.columns[:2], SCHEMA.columns[2]))
    asks = [fill("bel", "founded"), fill("bel", "founded", attempt=2)]
    executions = [
        executed("founded: 900", "Bel: Bel was founded in 900."),
        executed("founded: 901", "Annals: Bel was founded in 901."),
    ]
    result = TableRun(schema, (("Bel", "", ""),), tuple(asks), tuple(executions))
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    cell = table.rows[0].cells[2]
    assert (cell.value, cell.state) == ("900", pb.CELL_STATE_CONFLICT)
    assert [(claim.value, claim.sub_query_index, claim.support) for claim in cell.rivals] == [
        ("901", 1, pb.SUPPORT_STATED)
    ]
    assert [at.document for at in cell.citations] == ["Bel"]


async def test_one_that_a_model_will_write() -> None:
    """Has no rows yet, and executors whose work no cell is asked of."""
    events = (
        Planned(SCHEMA.columns),
        SubQueryDispatched(0, 1, "Which?"),
        Reported(0, executed("Bel")),
    )
    going_on = msgspec.structs.replace(
        run("run-1"), kind="table", status="running", result=None, events=events
    )
    table = await table_to_proto(going_on)
    assert ([*table.rows], [column.name for column in table.columns]) == (
        [],
        [one.name for one in SCHEMA.columns],
    )


_SPENT = st.tuples(
    st.none() | st.integers(0, len(SCRIPT)), st.integers(0, 999), st.none() | st.integers(0, 999)
)


@given(st.lists(_SPENT, max_size=12))
def test_the_cost_adds_up(spent: list[tuple[int | None, int, int | None]]) -> None:
    """That of rows and the overhead is that of the usage, in tokens and in money."""
    calls = tuple(_call(*one) for one in spent)
    result = TableRun(
        SCHEMA, (), tuple(ask for ask, _ in SCRIPT), tuple(execution for _, execution in SCRIPT)
    )
    ran = msgspec.structs.replace(run("run-1"), kind="table", result=result, calls=calls)
    table = asyncio.run(table_to_proto(ran))
    used = [(row.prompt_tokens + row.completion_tokens, row.cost_nano_usd) for row in table.usage]
    assert sum(row.tokens for row in table.rows) + table.overhead_tokens == sum(
        tokens for tokens, _ in used
    )
    assert sum(row.cost_nano_usd for row in table.rows) + table.overhead_nano_usd == sum(
        cost for _, cost in used
    )


def _call(sub_query_index: int | None, tokens: int, nano_usd: int | None) -> Call:
    return msgspec.structs.replace(
        call("run-1"),
        sub_query_index=sub_query_index,
        usage=Usage(tokens, 1),
        nano_usd=nano_usd,
        reserved=Amount(),
    )


async def test_events_and_the_same_again() -> None:
    """Rows are told as they change; whoever watches later, from any event on, is told the same,
    the last rows apart.
    """
    async with wired() as services:
        request = pb.StreamTableRequest(question=QUESTION, columns=COLUMNS)
        told = [event async for event in services.tables.StreamTable(request)]
        assert [event.event_number for event in told] == list(range(1, len(told) + 1))
        kinds = [event.WhichOneof("event") for event in told]
        assert kinds[:3] == ["run_started", "planned", "sub_query_dispatched"]
        assert kinds[-2:] == ["usage_counted", "done"]
        dispatched = [
            event.sub_query_dispatched for event in told if event.HasField("sub_query_dispatched")
        ]
        assert [one.row_id for one in dispatched] == ["", "", '["krurou"]', '["bel"]']
        assert dispatched[2].columns == ["founder", "founded"]
        rows = {
            event.row_changed.row_id: event.row_changed.row
            for event in told
            if event.HasField("row_changed")
        }
        assert [[cell.value for cell in row.cells] for row in rows.values()] == VALUES
        run_id = told[0].run_started.run_id
        for after in (0, 5, len(told) - 1):
            watched = services.runs.WatchRun(
                run_pb.WatchRunRequest(run_id=run_id, after_event_number=after)
            )
            again = [event.table_event async for event in watched]
            assert [event.event_number for event in again] == [
                event.event_number for event in told[after:]
            ]
            assert again[-1] == told[-1]


async def test_a_detached_one() -> None:
    """The run goes on although its client is gone; what there is can be read on the way, and
    watched.
    """
    async with wired() as services:
        services.script.let.clear()
        request = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        async with ended_call(services, request) as begun:
            assert begun.run_id
            assert not begun.HasField("table")
        await ended(services.script.waiting.wait())
        so_far = await services.tables.GetTable(pb.GetTableRequest(run_id=begun.run_id))
        assert so_far.running
        assert values(so_far.table) == [["Krurou", "", ""], ["Bel", "", ""]]
        assert so_far.table.outcome == pb.TABLE_OUTCOME_UNSPECIFIED
        assert so_far.table.duration.ToNanoseconds() > 0
        watching = services.runs.WatchRun(
            run_pb.WatchRunRequest(run_id=begun.run_id, after_event_number=8)
        )
        services.script.let.set()
        last = [event.table_event async for event in watching][-1]
        whole = await services.tables.GetTable(pb.GetTableRequest(run_id=begun.run_id))
    assert not whole.running
    assert values(whole.table) == VALUES
    assert whole.table == last.done


@asynccontextmanager
async def ended_call(
    services: Wired, request: pb.FillTableRequest
) -> AsyncIterator[pb.FillTableResponse]:
    """The response to a call whose deadline is shorter than the work."""
    yield await services.tables.FillTable(request, timeout=5)


async def test_a_detached_one_of_a_gateway_that_stops() -> None:
    """It is cancelled, and stored so, before the server is gone."""
    async with wired() as services:
        services.script.let.clear()
        request = pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        begun = await services.tables.FillTable(request)
        await ended(services.script.waiting.wait())
    (stored,) = services.store.runs
    assert (stored.id, stored.status) == (begun.run_id, "cancelled")


async def test_cancelling_a_detached_one() -> None:
    """By `CancelRun`; what was found by then is there."""
    async with wired() as services:
        services.script.let.clear()
        begun = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, detached=True)
        )
        await ended(services.script.waiting.wait())
        await services.runs.CancelRun(run_pb.CancelRunRequest(run_id=begun.run_id))
        assert (await ended(services.store.next())).status == "cancelled"
        watched = services.runs.WatchRun(run_pb.WatchRunRequest(run_id=begun.run_id))
        assert await refusal(_drained(watched)) == ("CANCELLED", "RUN_CANCELLED")


async def _drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_a_value_of_another_type() -> None:
    """It is kept, and marked."""
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


async def test_pages() -> None:
    """Rows of a page, and figures of the whole table, whatever is read between them."""
    async with wired() as services:
        run_id = (
            await services.tables.FillTable(pb.FillTableRequest(question=QUESTION, columns=COLUMNS))
        ).run_id
        first = await services.tables.GetTable(pb.GetTableRequest(run_id=run_id, page_size=1))
        given = [pb.GivenRow(values=["Tal", "Cy", "800"])]
        other = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, rows=given)
        )
        read = await services.tables.GetTable(pb.GetTableRequest(run_id=other.run_id, page_size=1))
        assert values(read.table) == [["Tal", "Cy", "800"]]
        second = await services.tables.GetTable(
            pb.GetTableRequest(run_id=run_id, page_size=1, page_token=first.next_page_token)
        )
    assert [values(page.table) for page in (first, second)] == [VALUES[:1], VALUES[1:]]
    assert (first.next_page_token, second.next_page_token) == ("1", "")
    assert first.table.completeness == second.table.completeness


@pytest.mark.parametrize(
    ("method", "request_", "match"),
    [
        ("FillTable", pb.FillTableRequest(question=QUESTION), "columns: none is a key"),
        ("FillTable", pb.FillTableRequest(columns=[pb.Column(name="a")]), "none is a key"),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["x"])]),
            r"rows\[0\] has 1 values",
        ),
        ("FillTable", pb.FillTableRequest(columns=COLUMNS, max_rows=-1), "max_rows: must be 0"),
        (
            "FillTable",
            pb.FillTableRequest(columns=[pb.Column(name="a", type=99)]),  # type: ignore[arg-type]
            r"columns\[0\].type is 99",
        ),
        ("FillTable", pb.FillTableRequest(columns=COLUMNS[1:], detached=True), "none is a key"),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["a"])] * 3, max_rows=2),
            "rows: 3 given, but max_rows is 2",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["a"] * 65)]),
            r"rows\[0\].values has 65 entries; at most 64",
        ),
        (
            "FillTable",
            pb.FillTableRequest(columns=COLUMNS, rows=[pb.GivenRow(values=["", "a" * 1025])]),
            r"rows\[0\].values has 1025 characters; at most 1024",
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
            "columns: 1200 choices in all, at most 1024",
        ),
        ("GetTable", pb.GetTableRequest(run_id="run-x"), "no such run"),
        ("GetTable", pb.GetTableRequest(page_size=-1), "page_size is -1"),
        ("GetTable", pb.GetTableRequest(page_token="²"), "page_token is invalid"),
    ],
)
async def test_what_is_refused(method: str, request_: Any, match: str) -> None:
    """With what is wrong, where, and what to do."""
    async with wired() as services:
        code, _ = await refusal(getattr(services.tables, method)(request_), match)
    assert code in ("INVALID_ARGUMENT", "NOT_FOUND")


async def test_large_tables_come_in_messages_that_clients_take() -> None:
    """Whatever is quoted: `GetTable` pages what does not fit, and `FillTable`'s table says
    where to go on.
    """
    columns = (Column("city", key=True), *(Column(f"fact {number}") for number in range(40)))
    cities = [f"City {number}" for number in range(120)]
    facts = [f"“Fact”|<&> {number} {'界' * 30}" for number in range(40)]
    padding = "and so on " * 800
    passages = [f"{city}: {city} has {', '.join(facts)}, {padding}." for city in cities]
    asks = [
        Ask("fill", tuple(column.name for column in columns[1:]), (city.casefold(),))
        for city in cities
    ]
    answer = "\n".join(f"fact {number}: {fact}" for number, fact in enumerate(facts))
    executions = tuple(executed(answer, passage) for passage in passages)
    rows = tuple((city, *[""] * 40) for city in cities)
    stored = msgspec.structs.replace(
        run("run-1"), kind="table", result=TableRun(Schema(columns), rows, tuple(asks), executions)
    )
    whole = await table_to_proto(stored)
    assert 500_000 < whole.ByteSize() < 3 << 19
    assert 0 < len(whole.rows) < whole.completeness.rows == 120
    async with wired() as services:
        services.store.runs[:] = [stored]
        rows_read = list[pb.Row]()
        token = ""
        while token or not rows_read:
            page = await services.tables.GetTable(
                pb.GetTableRequest(run_id="run-1", page_size=1000, page_token=token)
            )
            rows_read += page.table.rows
            token = page.next_page_token
    assert [row.cells[0].value for row in rows_read] == cities
    assert whole.next_page_token == str(len(whole.rows))
    for row in rows_read:
        assert all(len(at.quote) <= 300 for cell in row.cells for at in cell.citations)
        assert all(
            cell.citations and cell.citations[0].quote.endswith("…") for cell in row.cells[1:]
        )


async def test_a_row_that_is_larger_than_a_message() -> None:
    """Its values are cut, and its sources left out."""
    columns = (Column("city", key=True), *(Column(f"fact {number}") for number in range(60)))
    rows = (("Krurou", *["界|" * 100_000] * 60),)
    result = TableRun(Schema(columns), rows, (), ())
    table = await table_to_proto(msgspec.structs.replace(run("run-1"), kind="table", result=result))
    assert table.ByteSize() < 4 << 20
    assert all(cell.value.endswith("…") for cell in table.rows[0].cells[1:])


async def test_runs_that_have_no_table() -> None:
    """Other kinds, and those whose texts are not kept."""
    async with wired() as services:
        for stored, match in (
            (run("run-1"), "is not a table"),
            (
                msgspec.structs.replace(run("run-1"), kind="table", redacted=True),
                "texts of this tenant",
            ),
        ):
            services.store.runs[:] = [stored]
            await refusal(services.tables.GetTable(pb.GetTableRequest(run_id="run-1")), match)


async def test_the_same_request_again() -> None:
    """The earlier table; a stream of it is told the events of that run."""
    async with wired() as services:
        first = await services.tables.FillTable(
            pb.FillTableRequest(question=QUESTION, columns=COLUMNS, request_id="table-1")
        )
        again = services.tables.StreamTable(
            pb.StreamTableRequest(question=QUESTION, columns=COLUMNS, request_id="table-1")
        )
        started, *_, last = [event async for event in again]
    assert started.run_started.run_id == first.run_id
    assert last.done.rows == first.table.rows


def test_row_ids_are_different() -> None:
    """Also where parts of keys would be the same text together."""
    assert len({row_id(key) for key in (("a", "b"), ("a b",), ("ab",), ('a", "b',))}) == 4


async def test_tables_of_a_real_gateway(tmp_path: Path) -> None:
    """Read again from the store, a table is what it was; rows and overhead together are what
    the engines counted.
    """
    world = World(9)
    columns = [pb.Column(name=name, key=name == "city") for name in ("city", "founder", "founded")]
    async with gateway(tmp_path, world) as (real, archive):
        servicer = TableServicer(real, Runs(archive, LiveRuns()))
        async with served(Server(real, None, servicer)) as channel:
            stub: TableServiceAsyncStub = TableServiceStub(channel)
            filled = await stub.FillTable(pb.FillTableRequest(question=ALL_CITIES, columns=columns))
            again = await stub.GetTable(pb.GetTableRequest(run_id=filled.run_id))
    table = filled.table
    assert again.table == table
    assert sorted(map(tuple, values(table))) == sorted(world.rows())
    assert {cell.support for row in table.rows for cell in row.cells[1:]} == {pb.SUPPORT_STATED}
    spent = sum(row.prompt_tokens + row.completion_tokens for row in table.usage)
    assert sum(row.tokens for row in table.rows) + table.overhead_tokens == spent > 0
