"""Tables that a model writes: read, checked by what was found, and stored as others are."""

import asyncio
import html
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.errors import MalformedOutput, UpstreamRefused
from router.ledger import Budget
from router.models import Prompt, ScriptedModel
from router.runs import RequestOptions
from router.table import TableLimits, TableRequest, table_cost, table_of
from router.table.completeness import completeness
from router.table.filling import independent_discoveries
from router.table.table_text import to_markdown
from router.trace import Event, Run
from router.trace.table import TableTopologyName
from router.trace.values import Planned, Reported, RowChanged, SubQueryDispatched
from tests.router.deployment import HeldModel
from tests.router.table.small_world import COLUMNS, ENOUGH, QUESTION, REQUEST, Reader, World
from tests.router.table.test_filling import filled, outcome, result, values

WRITTEN: tuple[TableTopologyName, ...] = ("wide_written", "wide_single")


def asked_for(topology: TableTopologyName, *rows: tuple[str, ...], **changes: Any) -> TableRequest:
    """The request, of a topology."""
    return msgspec.structs.replace(REQUEST, topology=topology, rows=rows, **changes)


def leads(world: World) -> ScriptedModel:
    """A delegator that asks for the parts of the register, then for each city that a report
    names, then stops.
    """

    def write(prompt: Prompt) -> str:
        turn = len(prompt.messages) // 2 - 1
        if turn == 0:
            asked = [
                f"Which cities does part {part} list?" for part in range(1, len(world.parts) + 1)
            ]
        else:
            named = [city for city in world.cities if city in prompt.messages[-1].content]
            asked = [
                text
                for city in named
                for text in (f"Who founded {city}?", f"When was {city} founded?")
            ]
        return f"<search>{msgspec.json.encode(asked).decode()}</search>" if turn < 2 else ENOUGH

    return ScriptedModel(write, "backbone")


def table_in(prompt: Prompt, *, invented: str = "") -> str:
    """The table that a prompt's reports or passages state."""
    shown = html.unescape("\n".join(message.content for message in prompt.messages))
    rows = []
    for city in dict.fromkeys(re.findall(r"\bKru[a-z]{2}\b", shown)):
        founder = re.search(
            rf"(?:Who founded {city}\?</request><answer>|{city} was founded by )(Ana \w+)", shown
        )
        founded = re.search(
            rf"(?:When was {city} founded\?</request><answer>|{city} was founded in )(\d+)", shown
        )
        rows.append(
            (city, invented or (founder[1] if founder else ""), founded[1] if founded else "")
        )
    return f"Here it is.\n<answer>\n```markdown\n{to_markdown(COLUMNS, rows)}```\n</answer>"


def alone(world: World, **knobs: str) -> ScriptedModel:
    """A single agent that looks up the parts of the register and then each city, and writes the
    table.
    """
    queries = [*(f"part {part}" for part in range(1, len(world.parts) + 1)), *world.cities]

    def write(prompt: Prompt) -> str:
        turn = len(prompt.messages) // 2 - 1
        return (
            f"<search>{queries[turn]}</search>"
            if turn < len(queries)
            else table_in(prompt, **knobs)
        )

    return ScriptedModel(write, "backbone")


async def written(
    folder: Path,
    topology: TableTopologyName,
    world: World,
    request: TableRequest | None = None,
    **terms: Any,
) -> Run:
    """The run of a table that models write who read what is there."""
    terms.setdefault("delegator", leads(world) if topology == "wide_written" else alone(world))
    terms.setdefault("answerer", ScriptedModel(table_in))
    return await filled(folder, world, request=request or asked_for(topology), **terms)


@pytest.mark.parametrize("topology", WRITTEN)
async def test_a_table(tmp_path: Path, topology: TableTopologyName) -> None:
    """Is what the model wrote, each value with the sentence that states it, whoever found it;
    all cost is overhead.
    """
    world = World(8, unstated=1)
    events = list[Event]()
    run = await written(tmp_path, topology, world, on_event=events.append)
    table = table_of(result(run))
    assert (outcome(run), result(run).topology, values(run)) == ("filled", topology, world.rows())
    claims = [claim for row in table.rows for cell in row.cells for claim in cell.claims]
    assert {claim.support for claim in claims} == {"stated"}
    assert {at.document for at in table.rows[1].cells[1].claims[0].citations} == {world.cities[1]}
    cost = table_cost(table, result(run).asks, run.calls)
    spent = [call.usage for call in run.calls]
    assert cost.overhead.tokens == sum(usage.total_tokens for usage in spent if usage)
    assert not any(amount.tokens for amount in cost.rows)
    known = completeness(
        table, independent_discoveries(zip(result(run).asks, result(run).executions, strict=True))
    )
    assert (known.rows, known.estimated_rows) == (8, None)
    assert isinstance(
        next(each for each in events if isinstance(each, Planned | SubQueryDispatched)), Planned
    )
    number = len(result(run).asks) - 1
    last = [each.index for each in events if isinstance(each, SubQueryDispatched | Reported)][-2:]
    assert last == [number, number]
    assert [each.row for each in events if isinstance(each, RowChanged)] == list(table.rows)


async def test_who_is_shown_what(tmp_path: Path) -> None:
    """The delegator and the answerer see every report, and the columns; the executors work as for
    other tables, no more of them at a time than allowed.
    """
    world = World(8)
    lead = leads(World(8))
    writer = ScriptedModel(table_in)
    reader = Reader()
    limits = TableLimits(width=3)
    run = await written(
        tmp_path,
        "wide_written",
        world,
        delegator=lead,
        answerer=writer,
        executor=reader,
        limits=limits,
    )
    assert [one.report.answer.count("\n") for one in result(run).executions[:2]] == [3, 3]
    for shown in (lead.prompts[-1].messages[-1].content, writer.prompts[0].messages[1].content):
        assert "<answer>Ana Krubason</answer>" in shown
    for shown in (lead.prompts[0].messages[1].content, writer.prompts[0].messages[1].content):
        assert f"{QUESTION}\n\nColumns, keys with a star: city*, founder, founded:integer" in shown
    assert reader.most == 3
    assert writer.prompts[0].stop == ()


@pytest.mark.parametrize("topology", WRITTEN)
async def test_inventions(tmp_path: Path, topology: TableTopologyName) -> None:
    """Are told apart by their support: no passage holds them."""
    world = World(4)
    terms: dict[str, Any] = {
        "answerer": ScriptedModel(lambda prompt: table_in(prompt, invented="Nobody Inventedson"))
    }
    if topology == "wide_single":
        terms = {"delegator": alone(world, invented="Nobody Inventedson")}
    run = await written(tmp_path, topology, world, **terms)
    supports = [
        [cell.claims[0].support for cell in row.cells] for row in table_of(result(run)).rows
    ]
    assert supports == [["stated", "unsupported", "stated"]] * 4


@pytest.mark.parametrize("topology", WRITTEN)
async def test_given_rows(tmp_path: Path, topology: TableTopologyName) -> None:
    """Are shown and kept, whatever is written; a closed table gets no other row."""
    world = World(4)
    rows = (("Kruba", "Somebody", ""), ("Bel", "Else", "7"))
    run = await written(tmp_path / "open", topology, world, asked_for(topology, *rows))
    right = world.rows()
    assert values(run) == [
        ("Kruba", "Somebody", "1001"),
        ("Bel", "Else", "7"),
        right[0],
        *right[2:],
    ]
    (rival,) = table_of(result(run)).rows[0].cells[1].claims
    assert rival.value == "Ana Krubason"
    main = result(run).delegation
    assert main is not None
    assert (
        "There may be other rows.\n| city | founder | founded |\n| --- | --- | --- |\n| "
        "Kruba | Somebody |  |"
    ) in (main.messages[1].content)
    run = await written(
        tmp_path / "closed", topology, world, asked_for(topology, *rows, closed=True)
    )
    assert (outcome(run), values(run)) == (
        "filled",
        [("Kruba", "Somebody", "1001"), ("Bel", "Else", "7")],
    )


@pytest.mark.parametrize("topology", WRITTEN)
async def test_rows(tmp_path: Path, topology: TableTopologyName) -> None:
    """More than are allowed are cut, a table that breaks off ends at its last whole row, and
    the outcome says so.
    """
    run = await written(tmp_path / "many", topology, World(8), asked_for(topology, max_rows=5))
    assert (outcome(run), values(run)) == ("rows_exhausted", World(8).rows()[:5])
    short = (
        "<answer>| city | founder | founded |\n| --- | --- | --- |\n| Kruaa | Ana Kruaason | "
        "1000 |\n| … | | |"
    )
    told = ["<search>part 1</search>", short] if topology == "wide_single" else [short]
    terms: dict[str, Any] = {
        "delegator" if topology == "wide_single" else "answerer": ScriptedModel(told)
    }
    run = await written(tmp_path / "short", topology, World(4), **terms)
    assert (outcome(run), values(run)) == ("rows_exhausted", World(4).rows()[:1])


@pytest.mark.parametrize(
    ("limits", "rows", "ends"),
    [
        (TableLimits(max_rounds=1), 8, "rounds_exhausted"),
        (TableLimits(max_rounds=1, max_tasks=2), 8, "tasks_exhausted"),
    ],
)
async def test_limits(tmp_path: Path, limits: TableLimits, rows: int, ends: str) -> None:
    """End in the table that is written of what there is."""
    run = await written(tmp_path, "wide_written", World(8), limits=limits)
    assert (outcome(run), len(values(run))) == (ends, rows)


@pytest.mark.parametrize("topology", WRITTEN)
async def test_a_deadline(tmp_path: Path, topology: TableTopologyName) -> None:
    """Ends the search, and what was found by then is written; where the writer is too slow, the
    given rows are left.
    """
    world = World(8)
    given = ("Bel", "Else", "7")
    options = RequestOptions(time_s=4.0)
    slow: dict[str, Any] = {"executor": HeldModel(Reader(slow=0), 8)}
    held: dict[str, Any] = {"answerer": HeldModel(ScriptedModel(table_in))}
    if topology == "wide_single":
        slow = {"delegator": Late(world)}
        held = {"delegator": HeldModel(alone(world), 3)}
    some, none = await asyncio.gather(
        written(tmp_path / "some", topology, world, options=options, **slow),
        written(
            tmp_path / "none", topology, world, asked_for(topology, given), options=options, **held
        ),
    )
    assert (outcome(some), bool(values(some))) == ("time_exhausted", True)
    assert (outcome(none), values(none)) == ("time_exhausted", [given])
    if topology == "wide_written":
        assert sum(call.outcome == "cancelled" for call in some.calls) <= TableLimits().width


class Late(HeldModel):
    """A single agent that does not come to the end of its searches, and writes what it knows
    when it is told to.
    """

    def __init__(self, world: World) -> None:
        super().__init__(alone(world), 5)

    async def stream(self, prompt: Prompt, on_delta: Any, *, live: bool = True) -> Any:
        if prompt.messages[-1].content.endswith("Write the answer now."):
            return await ScriptedModel([table_in(prompt)]).stream(prompt, on_delta)
        return await super().stream(prompt, on_delta, live=live)


@pytest.mark.parametrize("topology", WRITTEN)
async def test_a_budget(tmp_path: Path, topology: TableTopologyName) -> None:
    """Is never exceeded; where it does not last for the table, the given rows are left."""
    given = ("Bel", "Else", "7")
    for most in (2500, 300):
        options = RequestOptions(budget=Budget(max_total_tokens=most))
        run = await written(
            tmp_path / f"{most}", topology, World(24), asked_for(topology, given), options=options
        )
        assert outcome(run) == "budget_exhausted"
        assert sum(call.charged.tokens for call in run.calls) <= most
        assert values(run)[0] == given


@pytest.mark.parametrize("topology", WRITTEN)
async def test_no_table(tmp_path: Path, topology: TableTopologyName) -> None:
    """A model that writes none, or fails, is an error where nothing was given; else the given
    rows are left.
    """
    world = World(4)
    given = ("Bel", "Else", "7")
    refused = UpstreamRefused("no", endpoint="")
    saying = (
        ("I have no table.", MalformedOutput),
        ("<answer></answer>", MalformedOutput),
        (refused, UpstreamRefused),
    )
    for number, (said, error) in enumerate(saying):
        outputs: list[Any] = (
            ["<search>part 1</search>", said, said, said] if topology == "wide_single" else [said]
        )
        model = ScriptedModel(outputs)
        terms: dict[str, Any] = {"delegator" if topology == "wide_single" else "answerer": model}
        with pytest.raises(error):
            await written(tmp_path / str(number), topology, world, **terms)
    model = ScriptedModel(
        ["<search>part 1</search>", refused] if topology == "wide_single" else [refused]
    )
    terms = {"delegator" if topology == "wide_single" else "answerer": model}
    run = await written(tmp_path / "given", topology, world, asked_for(topology, given), **terms)
    assert (outcome(run), values(run)) == ("delegation_failed", [given])


async def test_nothing_found(tmp_path: Path) -> None:
    """Nobody writes a table of nothing."""
    writer = ScriptedModel([])
    lead = ScriptedModel(['<search>["Which cities are there?"]</search>', ENOUGH])
    executor = ScriptedModel(
        lambda prompt: "<search>Kru</search>" if len(prompt.messages) == 2 else "I cannot say."
    )
    run = await written(
        tmp_path, "wide_written", World(4), delegator=lead, answerer=writer, executor=executor
    )
    assert (outcome(run), values(run), writer.prompts) == ("filled", [], [])
