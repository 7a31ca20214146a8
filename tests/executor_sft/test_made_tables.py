"""Made tables: two answers to a request are compared, and only where they agree they become right
rows.
"""

import asyncio
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from benchmarks.widesearch.tasks import columns_of, read_tasks
from executor_sft.call_cache import KeptCall
from executor_sft.jsonl import read_jsonl
from executor_sft.questions import Question, read_questions
from executor_sft.step import read_manifest
from executor_sft.tables.agreement import Answer, Answers, MadeTable, made_tables
from executor_sft.tables.output import write_tables
from router.models import Prompt
from router.table import TableRequest
from tests.conftest import Rolegate
from tests.executor_sft.test_tables import playing, served, step
from tests.executor_sft.traces import write_lines
from tests.openai_server import USAGE, fails, says
from tests.router.table.small_world import COLUMNS, QUESTION, Reader, World, lead
from tests.scripted_model import ScriptedModel

REQUEST = {"question": QUESTION, "columns": COLUMNS}
ROWS = (("Bel", "Bo", "900"), ("Krurou", "Ana", "1200"), ("Tal", "Cy", "1,300"))
made_of = partial(made_tables, consistency=0.5, min_rows=3, support=0.8)


def pair(*answers: tuple[tuple[str, ...], ...], name: str = "t1") -> Answers:
    first, second = (Answer(rows, 1, 10) for rows in answers)
    return Answers(
        Question(name, QUESTION, (), table=TableRequest(QUESTION, COLUMNS)), (first, second)
    )


def made(first: tuple[tuple[str, ...], ...], second: tuple[tuple[str, ...], ...]) -> MadeTable:
    (table,) = made_of([pair(first, second)])
    return table


def test_cells_that_differ_are_blanked_and_rows_of_one_answer_dropped() -> None:
    """Values are compared by their canonical forms."""
    second = (("BEL", "Bo", "900"), ("Krurou", "Bob", "1200"), ("tal", "Cy", "1300"))
    table = made(ROWS, (*second, ("Old Bel", "", "")))
    assert (table.dropped, table.blanked, table.reason) == (1, 1, "")
    assert {row[0].casefold(): row[1] for row in table.question.rows} == {
        "bel": "Bo",
        "krurou": "",
        "tal": "Cy",
    }
    assert table.support == 8 / 9
    assert table.consistency == pytest.approx(2 * 8 / (9 + 12))


def test_the_answer_with_more_supported_cells_is_canonical() -> None:
    """Only cells that a passage supports have a value."""
    sparse = tuple((key.upper(), founder, "") for key, founder, _ in ROWS)
    assert [row[0] for row in made(sparse, ROWS).question.rows] == ["Bel", "Krurou", "Tal"]
    assert [row[0] for row in made(ROWS, sparse).question.rows] == ["Bel", "Krurou", "Tal"]


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (ROWS, (("Ur", "", ""),), "answers disagree"),
        (ROWS[:2], ROWS[:2], "too few rows"),
        (tuple((row[0], "", "") for row in ROWS),) * 2 + ("too little support",),
        ((), (), "answers disagree"),
    ],
)
def test_a_table_is_left_out_for_a_reason(
    first: tuple[tuple[str, ...], ...], second: tuple[tuple[str, ...], ...], reason: str
) -> None:
    assert made(first, second).reason == reason


def test_no_table_is_kept_twice() -> None:
    """Requests in other words may lead to the same rows."""
    twice = [pair(ROWS, ROWS), pair(ROWS, ROWS[::-1], name="t2")]
    assert [table.reason for table in made_of(twice)] == ["", "same table"]


def test_long_ids_have_short_file_names(tmp_path: Path) -> None:
    """They stay apart, and other files have the ids themselves."""
    ids = ["城市" * 40 + end for end in ("一", "二")]
    tables = [
        Question(name, f"{QUESTION} {name}", (), table=TableRequest("", COLUMNS), rows=ROWS)
        for name in ids
    ]
    files = write_tables(tmp_path, tables)
    gold = {path.name for path in (tmp_path / "gold").iterdir()}
    assert gold == {f"{task.instance_id}.csv" for task in read_tasks(tmp_path)}
    assert len(gold & {name.removeprefix("gold/") for name in files}) == 2
    assert max(len(name) for name in gold) < 150
    questions, _ = read_questions(tmp_path / "questions.jsonl", tables=True)
    assert [question.id for question in questions] == ids


def writer(*turns: str) -> ScriptedModel:
    """Return a model for the synthesis that writes these turns, and repeats the last."""
    return ScriptedModel(lambda prompt: turns[min(len(prompt.messages) // 2, len(turns)) - 1])


REFINED = msgspec.json.encode(REQUEST).decode()


async def test_a_document_becomes_a_table_in_all_forms(rolegate: Rolegate, tmp_path: Path) -> None:
    """A request that cannot be read is corrected once, and the model is shown the reason."""
    world = World(12, unstated=1)
    keyless = '{"question": "Which?", "columns": [{"name": "city"}, {"name": "founder"}]}'
    model = writer("Which cities are there?", f"Here it is:\n{keyless}", f"```\n{REFINED}\n```")
    seeds = write_lines(
        tmp_path / "seeds.jsonl",
        [{"id": "a/b", "title": "Register", "text": "Krua is listed.", "group": "cities"}],
    )
    out = tmp_path / "out"
    async with served(tmp_path, world, playing(world, writer=model, student=Reader())) as config:
        given = ("--config", config, "--seeds", seeds, "--out", out, "--yes", "--for", "rlinf")
        await step(rolegate, "tables", *given)
        calls = len(model.prompts)
        await step(rolegate, "tables", *given)  # nothing is left to do

    assert calls == len(model.prompts) == 3
    assert "Krua is listed." in model.prompts[0].messages[1].content
    assert "no key column given" in model.prompts[2].messages[-1].content
    figures = read_manifest(out).figures
    assert (figures["kept"], figures["rows"], figures["rows_dropped"]) == (1, 12, 0)
    (table,), _ = read_questions(out / "questions.jsonl", tables=True)
    assert (table.id, sorted(table.rows)) == ("a/b", sorted(world.rows()))
    (task,) = read_tasks(out)
    assert (task.instance_id, task.keys, task.group, task.rows) == (
        "a%2Fb",
        ("city",),
        "cities",
        12,
    )
    assert [column.type for column in columns_of(task)] == ["text", "text", "number"]
    assert "city, founder, founded" in task.query
    exported = msgspec.json.decode((out / "rlinf.jsonl").read_bytes())
    assert (exported["question"], exported["unique_columns"]) == (task.query, ["city"])
    assert exported["is_markdown"]
    assert exported["answer"].count("\n") >= 13


async def test_requests_are_left_out_before_they_are_paid_for(
    rolegate: Rolegate, tmp_path: Path
) -> None:
    """Reasons are counted."""
    world = World(4)
    lines = [
        {"id": "kept", **REQUEST},
        {"id": "held", **REQUEST, "question": "List all cities of Vorland."},
        {"id": "narrow", **REQUEST, "question": "Name the cities.", "columns": COLUMNS[:1]},
        {"id": "unread", "text": "A page."},
        {"id": "again", **REQUEST, "question": f"{QUESTION} Please name them."},
    ]
    seeds = write_lines(tmp_path / "seeds.jsonl", lines)
    held_out = write_lines(tmp_path / "held.jsonl", [{"question": "list all cities of Vorland"}])
    out = tmp_path / "out"
    play = playing(world, writer=writer("Which?"), student=Reader())
    async with served(tmp_path, world, play) as config:
        given = ("--config", config, "--seeds", seeds, "--out", out, "--exclude", held_out)
        await step(rolegate, "tables", *given, "--yes")
    assert read_manifest(out).figures["not_kept"] == {
        "held out: same question": 1,
        "too few columns": 1,
        "request could not be read": 1,
        "same table": 1,
    }
    assert len((out / "answers.jsonl").read_bytes().splitlines()) == 2


async def test_a_seed_that_its_endpoint_refuses_stops_no_other(
    rolegate: Rolegate, tmp_path: Path
) -> None:
    """The same command tries it again, or finishes without it."""
    world = World(4)
    seeds = write_lines(
        tmp_path / "seeds.jsonl", [{"id": "refused", "text": "A page."}, {"id": "kept", **REQUEST}]
    )
    usual = playing(world, student=Reader())

    async def play(request: web.Request, model: str, prompt: Prompt) -> web.StreamResponse:
        if model == "writer":
            return await fails(400, "unwanted content")(request)
        return await usual(request, model, prompt)

    out = tmp_path / "out"
    async with served(tmp_path, world, play) as config:
        given = ("--config", config, "--seeds", seeds, "--out", out, "--yes")
        ended = await asyncio.to_thread(rolegate, "sft", "tables", *given)
        assert ended.status == 1
        assert "unwanted content" in ended.out
        assert len((out / "answers.jsonl").read_bytes().splitlines()) == 1
        await step(rolegate, "tables", *given, "--leave-failed")
    figures = read_manifest(out).figures
    assert (figures["kept"], list(figures["failed"])) == (1, ["refused"])
    assert figures["not_kept"] == {"request could not be written": 1}


async def test_endless_nesting_is_a_request_that_cannot_be_read(
    rolegate: Rolegate, tmp_path: Path
) -> None:
    """It is corrected once, like any other."""
    world = World(4)
    nested = f'{{"more": {"[" * 5000}{"]" * 5000}}}'
    model = writer("Which cities are there?", nested, REFINED)
    seeds = write_lines(tmp_path / "seeds.jsonl", [{"id": "deep", "text": "A page."}])
    out = tmp_path / "out"
    async with served(tmp_path, world, playing(world, writer=model, student=Reader())) as config:
        await step(rolegate, "tables", "--config", config, "--seeds", seeds, "--out", out, "--yes")
    assert read_manifest(out).figures["kept"] == 1


async def test_answers_of_other_documents_disagree(rolegate: Rolegate, tmp_path: Path) -> None:
    """The second answers come from the second config."""
    seeds = write_lines(tmp_path / "seeds.jsonl", [REQUEST])
    (tmp_path / "other").mkdir()
    worlds = (World(12), World(6))
    play, other = (playing(world, student=Reader()) for world in worlds)
    async with (
        served(tmp_path, worlds[0], play) as first,
        served(tmp_path / "other", worlds[1], other) as second,
    ):
        given = ("--config", first, "--seeds", seeds, "--second", second, "--yes")
        await step(rolegate, "tables", *given, "--out", tmp_path / "out")
    assert read_manifest(tmp_path / "out").figures["not_kept"] == {"answers disagree": 1}
    (table,) = read_jsonl(tmp_path / "out" / "scores.jsonl", MadeTable, "")
    assert table.consistency == pytest.approx(2 / 3)
    assert (table.dropped, len(table.question.rows)) == (6, 6)


async def test_passages_of_the_index_are_seeds(rolegate: Rolegate, tmp_path: Path) -> None:
    """They are sampled if no file is given."""
    pages = [{"id": f"p{at}", "title": f"Page {at}", "text": f"It is {at}."} for at in range(30)]
    corpus = write_lines(tmp_path / "corpus.jsonl", pages)
    async with served(tmp_path, World(2), playing(World(2), writer=writer("No."))) as config:
        place = f'index = "{tmp_path / "index"}"\ndocuments = ["{corpus}"]'
        text = config.read_text("utf-8")
        head, _, address = text.partition("[retrieval]\n")
        config.write_text(f"{head}[retrieval]\n{place}\n", "utf-8")
        assert address
        built = await asyncio.to_thread(rolegate, "index", "build", "--config", config)
        assert built.status == 0, built.err
        out = tmp_path / "out"
        given = ("--config", config, "--out", out, "--limit", 7)
        refused = await asyncio.to_thread(rolegate, "sft", "tables", *given)
        assert refused.status == 1
        assert "no terminal" in refused.err
        await step(rolegate, "tables", *given, "--yes")
    texts = {query.text for query in read_jsonl(out / "queries.jsonl", Question, "")}
    assert len(texts) == 7
    assert texts < {f"{page['title']}\n{page['text']}" for page in pages}
    assert read_manifest(out).figures["not_kept"] == {"request could not be read": 7}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"group": "cities"}, "has no question"),
        ({"question": "Which?", "columns": [{"name": "city"}]}, "no key column"),
        ({"text": "A page."}, "synthesis: is not set"),
    ],
)
def test_impossible_seeds_are_refused(
    rolegate: Rolegate, line: dict[str, object], why: str, tmp_path: Path
) -> None:
    seeds = write_lines(tmp_path / "seeds.jsonl", [line])
    given = ("--preset", "mini", "--seeds", seeds, "--out", tmp_path / "out", "--yes")
    ended = rolegate("sft", "tables", *given)
    assert ended.status == 1
    assert why in ended.err


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
async def test_a_killed_pipeline_pays_no_completed_call_twice(kills: int, tmp_path: Path) -> None:
    """Resumed again and again, it writes the same tables as in one go."""
    world = World(20, unstated=2)
    lines = [{"id": f"t{at}", **REQUEST, "question": f"{QUESTION} Order {at}."} for at in range(4)]
    seeds = write_lines(tmp_path / "seeds.jsonl", lines)
    bodies: list[str] = []
    limit = 0
    enough = asyncio.Event()

    async def play(request: web.Request, model: str, prompt: Prompt) -> web.StreamResponse:
        seed = prompt.sampling.seed or 0
        reader = Reader(seed=seed, invents=0.02, slow=0)
        played = lead(world) if model == "backbone" else reader
        bodies.append(f"{model} {seed} {prompt.messages}")
        if len(bodies) == limit:
            enough.set()
        # The number of the request is in its usage, and so in the file of completed calls
        usage = {**USAGE, "completion_tokens": len(bodies)}
        return await says((await played.complete(prompt)).text, usage=usage)(request)

    async def run(out: Path, config: Path) -> asyncio.subprocess.Process:
        given = ("--config", config, "--seeds", seeds, "--out", out, "--yes")
        return await asyncio.create_subprocess_exec(
            *map(str, (sys.executable, "-m", "executor_sft", "tables", *given)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

    rng = random.Random(5)
    async with served(tmp_path, world, play) as config:
        whole = tmp_path / "whole"
        assert await (await run(whole, config)).wait() == 0
        needed = len(bodies)
        bodies.clear()

        killed = tmp_path / "killed"
        for left in range(kills, 0, -1):
            enough.clear()
            kept = len(completed(killed))
            limit = len(bodies) + max(1, (needed - kept) // (left + 1)) + rng.randrange(3)
            process = await run(killed, config)
            waiting = asyncio.create_task(enough.wait())
            ended = asyncio.create_task(process.wait())
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            assert process.returncode is None
            os.kill(process.pid, signal.SIGKILL)
            await ended
        assert await (await run(killed, config)).wait() == 0

    times = defaultdict[str, list[int]](list)
    for number, body in enumerate(bodies, start=1):
        times[body].append(number)
    numbers = set(completed(killed))
    paid_again = [body for body, asked in times.items() if numbers.intersection(asked[:-1])]
    assert paid_again == []
    assert len(numbers) <= len(times)
    for name in ("tasks.jsonl", "questions.jsonl", "scores.jsonl"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    counts = Counter(table.reason for table in read_jsonl(whole / "scores.jsonl", MadeTable, ""))
    assert counts


def completed(folder: Path) -> list[int]:
    """Return the numbers of the requests whose completions are kept."""
    path = folder / "calls_1.jsonl"
    if not path.exists():
        return []
    kept = read_jsonl(path, KeptCall, "", growing=True)
    return [call.completion.usage.completion_tokens for call in kept if call.completion.usage]
