"""The table as a fold of its reports: order does not matter, nothing is lost, given cells stay."""

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.folding import sought
from router.protocol import Report
from router.table import Table
from router.table.assembly import Assembly, assemble, read_report
from router.table.cell_value import row_key
from router.table.support import tied
from router.trace import Execution
from router.trace.table import Ask, Cell, Column, RowKey, Schema
from router.trace.values import ExecutionOutcome
from tests.router.table.reports import SCHEMA, discovery, executed, fill, listed

HEAD = "| city | founder | founded |\n|---|---|---|\n"
KRUROU = "Krurou: Krurou was founded by Ana Ruiz in 1321."


def cells(table: Table) -> dict[str, list[tuple[str, str]]]:
    """Values and states by the first cell of each row."""
    return {
        row.cells[0].value: [(cell.value, cell.state) for cell in row.cells] for row in table.rows
    }


def test_a_discovery_adds_rows_and_fills_set_their_cells() -> None:
    """Rows stand in the order in which discoveries name them."""
    reports = [
        (
            fill("bel", "founder", "founded"),
            executed("founder: Bo\nfounded: n/a", "Bel: Bo built it."),
        ),
        (discovery(2), executed("- Tal\n- **KRUROU**", "Tal: Tal is a city.", KRUROU)),
        (
            discovery(1),
            executed(
                HEAD + "| Krurou | Ana Ruiz | 1,321 |\n| Bel | | |", KRUROU, "Bel: Bel lies far."
            ),
        ),
        (fill("krurou", "founder"), executed("Ana Ruiz", "Annals: Ana Ruiz founded Krurou.")),
    ]
    table = assemble(SCHEMA, [], reports)
    assert cells(table) == {
        "Krurou": [("Krurou", "single"), ("Ana Ruiz", "agreed"), ("1,321", "single")],
        "Bel": [("Bel", "single"), ("Bo", "single"), ("", "missing")],
        "Tal": [("Tal", "single"), ("", "missing"), ("", "missing")],
    }
    assert table.rows[0].found_by == (discovery(1), discovery(2))
    claim = table.rows[0].cells[2].claims[0]
    assert (claim.canonical, claim.support, claim.ask) == ("1321", "stated", discovery(1))
    assert claim.citations[0].quote == "Krurou was founded by Ana Ruiz in 1321."


def test_a_fill_before_its_discovery_adds_its_row_last() -> None:
    """The row has the key of the fill, spelled as the title of the page."""
    fills = [
        (fill("bel", "founder"), executed("Bo", "Bel: Bo built it.")),
        (discovery(), listed("- Krurou")),
    ]
    assert cells(assemble(SCHEMA, [], fills)) == {
        "Krurou": [("Krurou", "single"), ("", "missing"), ("", "missing")],
        "Bel": [("Bel", "missing"), ("Bo", "single"), ("", "missing")],
    }


def test_a_report_that_names_a_manager_counts_only_with_evidence() -> None:
    """Without evidence it gives the reason for the missing values."""
    page = executed("Ana Ruiz", KRUROU)
    for points, cell in (("It says so.",), ("Ana Ruiz", "single")), ((), ("", "missing")):
        handed_on = replace(
            page, report=Report("Ana Ruiz", points, escalate_to="pages"), outcome="escalated"
        )
        table = assemble(SCHEMA, [["Krurou", "", ""]], [(fill("krurou", "founder"), handed_on)])
        assert cells(table)["Krurou"][1] == cell


def test_two_equally_supported_values_conflict() -> None:
    """A stated value stands before an invented one."""
    row = discovery(1), executed(HEAD + "| Krurou | Ana Ruiz | 1321 |", KRUROU)
    other = fill("krurou", "founder"), executed("Bo Li", "Annals: Krurou was founded by Bo Li.")
    invented = fill("krurou", "founder", attempt=2), executed("Cy", KRUROU)
    table = assemble(SCHEMA, [], [row, invented])
    assert cells(table)["Krurou"][1] == ("Ana Ruiz", "single")
    assert [claim.support for claim in table.rows[0].cells[1].claims] == ["stated", "unsupported"]
    table = assemble(SCHEMA, [], [row, invented, other])
    assert table.rows[0].cells[1].state == "conflict"
    assert [claim.value for claim in table.rows[0].cells[1].claims] == ["Ana Ruiz", "Bo Li", "Cy"]


def test_a_stated_value_wins_against_any_number_of_values_without_their_row() -> None:
    """They are rivals of it, and do not make it agreed."""
    stated = (
        fill("krurou", "founder"),
        executed("Ana Ruiz", "Annals: Krurou was built by Ana Ruiz."),
    )
    elsewhere = "Bel: Bel was founded by {}.".format, "Tal: Tal was founded by {}.".format
    for name, state in (("Bo Li", "single"), ("Ana Ruiz", "single")):
        value_only = [
            (fill("krurou", "founder", attempt=attempt), executed(name, page(name)))
            for attempt, page in enumerate(elsewhere, 2)
        ]
        table = assemble(SCHEMA, [], [*value_only, stated])
        assert cells(table)["krurou"][1] == ("Ana Ruiz", state)
    assert cells(assemble(SCHEMA, [], value_only))["krurou"][1] == ("Ana Ruiz", "agreed")


def test_a_value_without_support_fills_no_cell() -> None:
    """It is a rival of the missing value. One of a given value changes nothing."""
    invented = [
        (fill("krurou", "founder", attempt=attempt), executed("Cy", KRUROU)) for attempt in (1, 2)
    ]
    for given_value, state in (("", "missing"), ("Ana Ruiz", "given")):
        table = assemble(SCHEMA, [["Krurou", given_value, ""]], invented)
        cell = table.rows[0].cells[1]
        assert (cell.value, cell.state) == (given_value, state)
        assert [claim.value for claim in cell.claims] == ["Cy", "Cy"]


@pytest.mark.parametrize(
    ("passage", "rows"),
    [
        ("Krurou: It lies far.", 1),
        ("Annals: Krurou lies far.", 1),
        ("Annals: Nobody lives there.", 0),
    ],
)
def test_a_name_that_no_passage_and_no_title_contains_makes_no_row(passage: str, rows: int) -> None:
    """The report says how many there are."""
    report = discovery(), executed("- Krurou", passage)
    assert len(assemble(SCHEMA, [], [report]).rows) == rows
    assert read_report(SCHEMA, *report).unsupported == 1 - rows


def test_a_part_of_a_key_may_come_from_the_question() -> None:
    """At least one part must be in the passages."""
    schema = Schema((Column("country", key=True), Column("city", key=True)))
    ask = Ask("discover", (), discovery=1)
    text = "|country|city|\n|---|---|\n|Vorland|Krurou|\n|Vorland|Bel|\n|Norland|Krurou|"
    report = replace(executed(text, "Krurou: A city."), sub_query="Which cities are in Vorland?")
    assert [row.key for row in assemble(schema, [], [(ask, report)]).rows] == [
        ("vorland", "krurou")
    ]


def test_yes_and_no_have_the_support_of_the_evidence() -> None:
    """So do choices whose words are in no passage."""
    schema = Schema(
        (
            Column("city", key=True),
            Column("coastal", "boolean"),
            Column("size", "choice", choices=("small", "large")),
        )
    )
    ask = Ask("fill", ("coastal", "size"), ("krurou",))
    page = executed("coastal: no\nsize: small", "Krurou: Krurou lies inland. 40 people live there.")
    for evidence, support in (
        ("Krurou lies inland.", "stated"),
        ("Krurou lies on the sea.", "unsupported"),
        ("", "unsupported"),
    ):
        report = replace(page, report=Report(page.report.answer, (evidence,)))
        row = assemble(schema, [], [(ask, report)]).rows[0]
        assert [cell.claims[0].support for cell in row.cells[1:]] == [support] * 2
        if support == "stated":
            assert [cell.value for cell in row.cells[1:]] == ["no", "small"]
            assert row.cells[1].claims[0].citations[0].quote == "Krurou lies inland."


def test_a_value_of_a_wrong_type_stands_behind_an_equally_supported_one() -> None:
    """It stands before a value with less support."""
    vague = fill("krurou", "founded"), executed("long ago", "Krurou: Founded long ago.")
    stated = fill("krurou", "founded", attempt=2), executed("1321", KRUROU)
    invented = fill("krurou", "founded", attempt=2), executed("1066", KRUROU)
    shown = [assemble(SCHEMA, [], [vague, other]).rows[0].cells[2] for other in (stated, invented)]
    assert [(cell.value, cell.state) for cell in shown] == [
        ("1321", "conflict"),
        ("long ago", "single"),
    ]


def test_dates_that_differ_only_in_precision_agree() -> None:
    """The more precise one is shown. A third that fits neither conflicts."""
    schema = Schema((Column("city", key=True), Column("founded", "date")))
    asks = [Ask("fill", ("founded",), ("krurou",), attempt=attempt) for attempt in (1, 2, 3)]
    year = asks[0], executed("1321", "Krurou: Founded in 1321.")
    day = asks[1], executed("5 May 1321", "Annals: Krurou was founded on 5 May 1321.")
    month = asks[2], executed("June 1321", "Bel: Krurou was founded in June 1321.")
    assert assemble(schema, [], [year, day]).rows[0].cells[1].state == "agreed"
    assert assemble(schema, [], [year, day]).rows[0].cells[1].value == "5 May 1321"
    assert assemble(schema, [], [year, day, month]).rows[0].cells[1].state == "conflict"


def test_a_cell_is_not_found_after_the_allowed_attempts() -> None:
    """Executors that failed do not count as attempts."""
    outcomes: list[ExecutionOutcome] = [
        "no_report",
        "timed_out",
        "model_failed",
        "budget_exhausted",
    ]
    failed = [
        (fill("krurou", "founder", attempt=at), executed("", outcome=outcome))
        for at, outcome in enumerate(outcomes, 1)
    ]
    assert cells(assemble(SCHEMA, [["Krurou", "", "1321"]], failed))["Krurou"][1] == ("", "missing")
    looked = fill("krurou", "founder", attempt=5), executed("not found")
    table = assemble(SCHEMA, [["Krurou", "", "1321"]], [*failed, looked])
    assert cells(table)["Krurou"] == [("Krurou", "given"), ("", "not_found"), ("1321", "given")]


FORMER = "Krurou is the former name of New Bel."
ALSO = "New Bel, also known as Krurou, lies on the sea."


def test_two_names_are_one_row_where_two_documents_tie_them() -> None:
    """The passages may have been shown to any executors. Otherwise the names are two rows."""
    both = (
        discovery(1),
        executed("- Krurou\n- New Bel\n- Tal", "Annals: Krurou, New Bel and Tal are cities."),
    )
    founder = (
        fill("krurou", "founder"),
        executed("Ana Ruiz", "New Bel: Ana Ruiz founded it.", f"Sea: {ALSO}"),
    )
    tie = discovery(2), executed("- Tal", f"Annals: {FORMER} Tal is old.")
    assert len(assemble(SCHEMA, [], [both, founder]).rows) == 3
    table = assemble(SCHEMA, [], [both, founder, tie])
    assert [(row.key, row.aliases) for row in table.rows] == [
        (("krurou",), (("new bel",),)),
        (("tal",), ()),
    ]
    assert table.rows[0].cells[1].value == "Ana Ruiz"
    kept = assemble(SCHEMA, [["New Bel", "", ""], ["Krurou", "", ""]], [both, founder, tie])
    assert [row.key for row in kept.rows] == [("new bel",), ("krurou",), ("tal",)]


@pytest.mark.parametrize(
    "passages",
    [
        [f"Annals: {FORMER}"],
        [f"Annals: {FORMER} {ALSO}"],
        [f"Annals: {FORMER}", f"Annals: {ALSO}"],
        [f"Annals: {FORMER}", f"Copy: Once more. {FORMER}"],
        [f"Annals: {FORMER}", "Sea: Krurou was renamed Tal in 1321."],
        ["Annals: Krurou (New Bel) is a port.", "Sea: New Bel (Krurou) is old."],
    ],
)
def test_one_document_merges_no_rows(passages: list[str]) -> None:
    """Two of its passages, a copy of its sentence, or a tie to a third name do not either."""
    names = "- Krurou\n- New Bel\n- Tal"
    report = discovery(1), executed(names, f"Names: {names}", *passages)
    assert [row.aliases for row in assemble(SCHEMA, [], [report]).rows] == [(), (), ()]


def test_a_document_that_ties_every_row_to_another_merges_none() -> None:
    cities = [f"City {number}" for number in range(60)]
    pairs = " ".join(
        f"{city} formerly {other_city}."
        for city, other_city in zip(cities[::2], cities[1::2], strict=True)
    )
    chain = " ".join(f"{city}, also known as City 0, is old." for city in cities[1:])
    for sentences in (pairs, chain):
        report = (
            discovery(1),
            executed("\n".join(f"- {city}" for city in cities), f"Evil: {sentences}"),
        )
        assert len(assemble(SCHEMA, [], [report]).rows) == 60


def test_keys_that_differ_in_signs_only_are_separate_rows() -> None:
    """Nothing ties them."""
    table = assemble(
        SCHEMA, [], [(discovery(), listed("- C\n- C++\n- C#\n- The Hague\n- Hague\n- hague."))]
    )
    assert [row.key for row in table.rows] == [
        ("c",),
        ("c++",),
        ("c#",),
        ("the hague",),
        ("hague",),
    ]


def test_both_columns_of_a_key_tell_rows_apart() -> None:
    schema = Schema(
        (Column("year", "integer", key=True), Column("song", key=True), Column("place", "integer"))
    )
    text = "|year|song|place|\n|---|---|---|\n|2020|Ode|1|\n||Lay|2|\n|2021|Ode|3|\n|2,020|ode|1|"
    ask = Ask("discover", ("year", "song", "place"), discovery=1)
    table = assemble(schema, [], [(ask, listed(text))])
    assert [row.key for row in table.rows] == [("2020", "ode"), ("2020", "lay"), ("2021", "ode")]
    assert [row.cells[2].value for row in table.rows] == ["1", "2", "3"]


def test_rows_that_a_report_lost_are_counted() -> None:
    """They can be asked for again."""
    reading = read_report(
        SCHEMA, discovery(), listed(HEAD + "| Krurou | | |\n| ... | | |\n| | Ana Ruiz | |")
    )
    assert (len(reading.rows), reading.lost) == (1, 2)
    assert Assembly(SCHEMA).add(discovery(), listed("- Krurou\n- ...")).lost == 1


_CITIES = ("Krurou", "Bel", "New Bel", "Tal")
_FOUNDERS = ("Ana Ruiz", "Bo Li", "", "Cy")
_YEARS = ("1321", "1400", "")
_SENTENCES = st.one_of(
    st.builds("{} was founded by {}.".format, st.sampled_from(_CITIES), st.sampled_from(_FOUNDERS)),
    st.builds("{} was founded in {}.".format, st.sampled_from(_CITIES), st.sampled_from(_YEARS)),
    st.builds(
        "{} is the former name of {}.".format, st.sampled_from(_CITIES), st.sampled_from(_CITIES)
    ),
    st.builds("{} was renamed {}.".format, st.sampled_from(_CITIES), st.sampled_from(_CITIES)),
)
_PASSAGES = st.lists(
    st.builds(
        "{}: {}".format,
        st.sampled_from((*_CITIES, "Annals")),
        st.lists(_SENTENCES, max_size=3).map(" ".join),
    ),
    max_size=3,
)
_ROWS = st.lists(st.tuples(*map(st.sampled_from, (_CITIES, _FOUNDERS, _YEARS))), max_size=4)


@st.composite
def reports(draw: st.DrawFn) -> list[tuple[Ask, Execution]]:
    """Different asks with their executions."""
    discoveries = st.builds(discovery, st.integers(1, 3), st.integers(1, 2))
    columns = st.sampled_from([("founder",), ("founded",), ("founder", "founded")])
    fills = st.builds(
        Ask,
        st.sampled_from(["fill", "settle"]),
        columns,
        st.sampled_from(_CITIES).map(lambda c: (c.casefold(),)),
        attempt=st.integers(1, 2),
    )
    asks = draw(st.lists(discoveries | fills, unique=True, max_size=7))
    return [(ask, draw(_executions(ask))) for ask in asks]


def _executions(ask: Ask) -> st.SearchStrategy[Execution]:
    table = _ROWS.map(lambda rows: HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))
    pairs = st.tuples(st.sampled_from(_FOUNDERS), st.sampled_from(_YEARS)).map(
        "founder: {0[0]}\nfounded: {0[1]}".format
    )
    outcomes = st.sampled_from(["reported"] * 5 + ["no_report", "timed_out"])
    answers = table if ask.row is None else pairs
    return st.builds(
        lambda answer, passages, outcome: executed(answer, *passages, outcome=outcome),
        answers,
        _PASSAGES,
        outcomes,
    )


GIVEN = st.lists(
    st.tuples(*map(st.sampled_from, (_CITIES, _FOUNDERS, _YEARS))),
    max_size=2,
    unique_by=lambda row: row[0],
)


@given(GIVEN, reports(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_changes_nothing(
    rows: Sequence[Sequence[str]], reported: list[tuple[Ask, Execution]], chance: random.Random
) -> None:
    """Reading the table in between changes nothing either."""
    shuffled = chance.sample(reported, len(reported))
    assembly = Assembly(SCHEMA, rows)
    for ask, execution in shuffled:
        assembly.add(ask, execution)
        if chance.random() < 0.5:
            assembly.table()
    assert assembly.table() == assemble(SCHEMA, rows, reported)


def plainly(
    rows: Sequence[Sequence[str]], reported: Sequence[tuple[Ask, Execution]]
) -> list[tuple[RowKey, set[RowKey]]]:
    """Keys of each row in order and their other keys, with ties applied one after the other."""
    given = [row_key(SCHEMA, row) for row in rows]
    read = [
        read_report(SCHEMA, *report)
        for report in sorted(reported, key=lambda report: report[0].rank)
    ]
    keys = list(dict.fromkeys([*given, *(row.key for reading in read for row in reading.rows)]))
    names = [{sought(key[0])} for key in keys]
    pairs = [
        set(pair)
        for pair in tied({tie for reading in read for tie in reading.ties}, set().union(*names))
    ]
    for _ in pairs:
        for name in names:
            name.update(*(pair for pair in pairs if pair & name))
    homes = dict[RowKey, set[RowKey]]()
    for key, same in zip(keys, names, strict=True):
        others = (
            home for home in keys[: keys.index(key)] if len(same) > 1 and sought(home[0]) in same
        )
        home = key if key in given else next(others, key)
        homes.setdefault(home, set()).update({key} - {home})
    return list(homes.items())


@given(GIVEN, reports(), st.randoms(use_true_random=False))
def test_the_table_after_each_step_equals_one_made_of_its_reports(
    rows: Sequence[Sequence[str]], reported: list[tuple[Ask, Execution]], chance: random.Random
) -> None:
    shuffled = chance.sample(reported, len(reported))
    assembly = Assembly(SCHEMA, rows)
    for number, report in enumerate(shuffled, 1):
        assembly.add(*report)
        if chance.random() < 0.7:
            table = assembly.table()
            assert table == assemble(SCHEMA, rows, shuffled[:number])
            assert [(row.key, {*row.aliases}) for row in table.rows] == plainly(
                rows, shuffled[:number]
            )


@given(GIVEN, reports())
def test_another_report_loses_nothing(
    rows: Sequence[Sequence[str]], reported: list[tuple[Ask, Execution]]
) -> None:
    """Each claim stands in the row of its key, and a stated claim keeps its cell stated."""
    table = assemble(SCHEMA, rows, reported)
    known = {key: row for row in table.rows for key in (row.key, *row.aliases)}
    read = [
        reading
        for ask, execution in reported
        for reading in read_report(SCHEMA, ask, execution).rows
    ]
    for reading in read:
        for claim, cell in zip(reading.claims, known[reading.key].cells, strict=True):
            if claim:
                same = [
                    held
                    for held in cell.claims
                    if (held.ask, held.canonical) == (claim.ask, claim.canonical)
                ]
                assert len(same) == 1
                assert (
                    same[0] == claim
                    or len({reading.key for reading in read if reading.ask == claim.ask}) > 1
                )
                assert cell.value or claim.support == "unsupported"
                assert claim.support != "stated" or cell.claims[0].support == "stated"


@given(GIVEN, reports())
def test_given_cells_stay_first_and_in_order_for_any_reports(
    rows: Sequence[Sequence[str]], reported: list[tuple[Ask, Execution]]
) -> None:
    table = assemble(SCHEMA, rows, reported)
    assert [row.given for row in table.rows] == [True] * len(rows) + [False] * (
        len(table.rows) - len(rows)
    )
    for values, row in zip(rows, table.rows, strict=False):
        assert [cell.value for value, cell in zip(values, row.cells, strict=True) if value] == list(
            filter(None, values)
        )
        assert all(
            (cell.state == "given") == bool(value)
            for value, cell in zip(values, row.cells, strict=True)
        )


def test_unchanged_rows_are_identical_objects() -> None:
    """Changes are detected by identity."""
    assembly = Assembly(SCHEMA, [["Krurou", "", ""], ["Bel", "", ""]])
    before = assembly.table()
    assembly.add(fill("bel", "founder"), executed("Bo"))
    after = assembly.table()
    assert [a is b for a, b in zip(before.rows, after.rows, strict=True)] == [True, False]
    assert after.rows[1].cells[2] == Cell("", "missing")


@pytest.mark.parametrize(
    "answer", ["```\n```", "|" * 1000, "not found", "", "``` | ```", "- \n- -\n"]
)
def test_reports_without_rows_change_nothing(answer: str) -> None:
    assert assemble(SCHEMA, [], [(discovery(), executed(answer))]).rows == ()


@given(GIVEN, reports(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_a_table_with_a_row_limit_does_not_depend_on_the_order(
    rows: Sequence[Sequence[str]],
    reported: list[tuple[Ask, Execution]],
    max_rows: int,
    chance: random.Random,
) -> None:
    """Its changes are announced.

    Where no passage ties names, its rows are the first rows of the whole table.
    """
    assembly = Assembly(SCHEMA, rows, max_rows=max_rows)
    seen = {row.key: row for row in assembly.take_changed()}
    for ask, execution in chance.sample(reported, len(reported)):
        assembly.add(ask, execution)
        seen |= {row.key: row for row in assembly.take_changed()}
    table = assembly.table()
    whole = assemble(SCHEMA, rows, reported)
    assert table == assemble(SCHEMA, rows, reported, max_rows=max_rows)
    assert [seen[row.key] for row in table.rows] == list(table.rows)
    if not any(read_report(SCHEMA, *report).ties for report in reported):
        assert [row.key for row in table.rows] == [row.key for row in whole.rows[:max_rows]]
        assert assembly.overflows == (len(whole.rows) > max_rows)


def test_a_discovery_beyond_the_row_limit_is_read_up_to_one_more_row() -> None:
    """The extra row shows that there are others."""
    report = listed("- Bel\n" + "\n".join(f"- City {number}" for number in range(5000)))
    reported_rows = read_report(SCHEMA, discovery(), report, 100).rows
    assert (len(reported_rows), reported_rows[0].key, reported_rows[100].key) == (
        101,
        ("bel",),
        ("city 99",),
    )
    assembly = Assembly(SCHEMA, max_rows=100)
    assembly.add(discovery(), report)
    assert assembly.overflows
    assert len(assembly.table().rows) == 100


def test_the_cost_of_a_discovery_depends_on_its_own_rows() -> None:
    """It does not depend on the rows that are already known."""

    def cost(discoveries: int) -> float:
        texts = [
            "\n".join(f"- City {number * 10 + at}" for at in range(10))
            for number in range(discoveries)
        ]
        reported = [(discovery(number), listed(text)) for number, text in enumerate(texts, 1)]
        assembly = Assembly(SCHEMA)
        begun = time.thread_time()
        for ask, execution in reported:
            assembly.add(ask, execution)
        return time.thread_time() - begun

    assert min(cost(400) for _ in range(2)) < 10 * cost(80)
