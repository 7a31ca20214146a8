"""`rolegate bench widesearch`: files, runs of a task, a gateway, a judge, and refusals."""

import csv
import json
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.widesearch.command import Options, measure
from benchmarks.widesearch.tasks import Rule, read_tasks
from executor_sft.step import write_json
from router.edge.grpc.server import Server
from router.edge.grpc.table_service import TableServicer
from router.errors import BadCorpus, BadRequest, UpstreamUnavailable
from router.models import Prompt
from router.runs import RunFilter, RunLifecycle, Runs
from router.runs.live import LiveRuns
from tests.benchmarks.widesearch.made_tasks import DATE, JUDGED, TEXT, fenced, number, task, written
from tests.executor_sft import test_runtime
from tests.openai_server import MODEL, says, serving
from tests.router.accounts import open_access
from tests.router.deployment import STOP, Kept, block
from tests.router.scripted_tables import ScriptedTables
from tests.router.table.small_world import World, gateway
from tests.scripted_model import Answer, ScriptedModel

GOLD = "name,year\nAda,1815\nAlan,1912"
RIGHT = fenced("|name|year|", "|---|---|", "|Ada|1815|", "|Alan|1912|")
HALF = fenced("|name|year|", "|---|---|", "|Ada|1815|")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two tasks, one of each language."""
    rules = TEXT, number(0.0)
    return written(
        tmp_path / "tasks", [task(GOLD, *rules), task(GOLD, *rules, name="t2", language="zh")]
    )


def responses(folder: Path, *lines: tuple[str, str | None]) -> Path:
    """Write a file of these responses."""
    path = folder / "responses.jsonl"
    rows = [
        json.dumps({"instance_id": name, "response": response, "trial_idx": 7})
        for name, response in lines
    ]
    path.write_text("".join(f"{row}\n" for row in rows), "utf-8")
    return path


def figures(out: Path) -> dict[str, dict[str, list[float]]]:
    """Return scores by table and group: success, then those of rows and of items."""
    tables = json.loads(out.read_bytes())["tables"]
    return {
        table["key"]: {
            row[0]: [round(score["mean"], 6) for score in row[2:]] for row in table["rows"]
        }
        for table in tables
        if table["key"] != "tokens"
    }


def test_runs_are_averaged_by_task(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figures have a task's mean and best, then the mean over tasks. t1 is right once and half
    right once, t2 half right once and wrong once. Half a table has rows 1/1, 1/2, 2/3.
    """
    file = responses(folder, ("t1", HALF), ("t2", None), ("t1", RIGHT), ("t2", HALF), ("t2", RIGHT))
    out = tmp_path / "out"
    figures_file = tmp_path / "figures.json"
    options = (
        f"--tasks {folder} --responses {file} --runs 2 --no-judge --out {out} --json {figures_file}"
    )
    assert main(["widesearch", *options.split()]) == 0
    scores = figures(figures_file)
    third = 1 / 3
    assert (
        scores["official-Avg"] == scores["strict-Avg"]
        and scores["official-Max"] == scores["strict-Max"]
    )
    assert scores["official-Avg"]["en"] == [0.5, *(1, 0.75, round(5 / 6, 6)) * 2]
    assert scores["official-Avg"]["zh"] == [0, *(0.5, 0.25, round(third, 6)) * 2]
    assert scores["official-Avg"]["all"] == [0.25, *(0.75, 0.5, round(7 / 12, 6)) * 2]
    assert scores["official-Max"]["en"] == [1, *(1, 1, 1) * 2]
    assert scores["official-Max"]["up to 12 rows"] == [0.5, *(1, 0.75, round(5 / 6, 6)) * 2]
    assert list(scores["strict-Avg"]) == ["all", "en", "zh", "up to 12 rows"]
    page = (out / "report.md").read_text("utf-8")
    assert page.startswith("# WideSearch: 2 tasks, N = 2, without a judge: equal cells are right\n")
    installed = f"dateparser=={version('dateparser')} pandas=={version('pandas')}"
    assert f"Read with {installed}." in page
    assert ("; to compare, install dateparser==1.2.1 pandas==2.3.0." in page) == (
        installed != "dateparser==1.2.1 pandas==2.3.0"
    )
    assert page in capsys.readouterr().out
    with (out / "scores.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 8
    (empty,) = [
        row
        for row in rows
        if (row["instance_id"], row["run"], row["rules"]) == ("t2", "0", "official")
    ]
    assert (empty["success"], empty["row_f1"], empty["why"]) == ("0.0", "0.0", "it has no table")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--runs 1 --no-judge",
            "no responses to score; give --responses FILE, or --address HOST:PORT.",
        ),
        ("--runs 1 --responses r.jsonl", "give exactly one of --judge and --no-judge"),
        ("--runs 1 --responses r.jsonl --judge", "--config: give one; it names the models"),
        (
            "--runs 1 --responses r.jsonl --judge --no-judge --config c.toml",
            "give exactly one of --judge and --no-judge",
        ),
        (
            "--runs 1 --address localhost:9 --no-judge --ray local",
            "--ray: works only with the topologies wide_written and wide_single; leave --ray out.",
        ),
        (
            "--runs 1 --responses nowhere.jsonl --no-judge",
            "nowhere.jsonl: cannot be read (No such file",
        ),
    ],
)
def test_impossible_options_are_refused(
    folder: Path, tmp_path: Path, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says what to do."""
    arguments = ["--tasks", str(folder), "--out", str(tmp_path / "out"), *options.split()]
    assert main(["widesearch", *arguments]) == 1
    assert message in capsys.readouterr().err


async def test_too_few_responses_are_an_error(folder: Path, tmp_path: Path) -> None:
    """There is no mean over the others."""
    file = responses(folder, ("t1", HALF), ("t2", RIGHT), ("t1", RIGHT))
    options = Options(tasks=folder, responses=file, runs=2, no_judge=True, out=tmp_path / "out")
    with pytest.raises(
        BadCorpus, match=r"tasks with fewer than 2 responses: 1, for example t2, which has 1; add"
    ):
        await measure(options)


def test_unreadable_tasks_are_refused(folder: Path) -> None:
    """The error has the file and the line."""
    gold = folder / "gold/t2.csv"
    tasks = folder / "tasks.jsonl"
    originals = gold.read_bytes(), tasks.read_text("utf-8")
    for content, why in (
        (b"name\nAda", "the columns year are missing or empty"),
        (b"name,year", "the columns name, year are missing or empty"),
        (b'name,year\n"Ada,1', r"cannot be read as CSV \(.*EOF inside string"),
        (b"\xff", r"cannot be read as CSV \('utf-8"),
    ):
        gold.write_bytes(content)
        with pytest.raises(BadCorpus, match=rf"gold/t2.csv: {why}.*tasks.jsonl:2"):
            read_tasks(folder)
    gold.unlink()
    with pytest.raises(BadCorpus, match=r"gold/t2.csv: cannot be read as CSV .*No such file"):
        read_tasks(folder)
    gold.write_bytes(originals[0])
    for original, damaged, why in (
        ("number_near", "number_far", r"cannot be 'number_far'"),
        ("eval_pipeline", "pipeline", "evaluation: lacks the required field `eval_pipeline`"),
        (
            'unique_columns\\": [\\"name\\"]',
            'unique_columns\\": []',
            "unique_columns is empty; name the key columns",
        ),
    ):
        tasks.write_text(originals[1].replace(original, damaged), "utf-8")
        with pytest.raises(BadCorpus, match=rf"tasks.jsonl:1: .*{why}"):
            read_tasks(folder)
    tasks.write_text("\n", "utf-8")
    with pytest.raises(BadCorpus, match=r"tasks.jsonl: has no tasks; a task has instance_id"):
        read_tasks(folder)


async def test_a_gateway_is_asked_for_missing_responses(tmp_path: Path) -> None:
    """Each run of each task is asked once; the same command repeats failed ones.

    The figures have the tokens.
    """
    names = [f"t{number}" for number in range(3)]
    world = World(4)
    down = True
    gold = "\n".join(["city,founder,founded", *map(",".join, world.rows())])
    folder = written(
        tmp_path / "tasks", [task(gold, TEXT, TEXT, number(0.0), name=name) for name in names]
    )
    lines = (folder / "tasks.jsonl").read_text("utf-8")
    (folder / "tasks.jsonl").write_text(lines.replace("List them.", "List all of t0.", 1), "utf-8")

    def delegates(prompt: Prompt) -> Answer:
        if down and "of t0" in prompt.messages[1].content:
            return UpstreamUnavailable("connection refused", endpoint="http://127.0.0.1:9/v1")
        return block("Which cities does part 1 list?") if len(prompt.messages) == 2 else STOP

    out = tmp_path / "out"
    figures_file = tmp_path / "figures.json"
    async with gateway(tmp_path / "store", world, delegator=ScriptedModel(delegates)) as (
        real,
        archive,
    ):
        server = Server(real, None, TableServicer(real, Runs(archive, LiveRuns()), open_access()))
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        options = Options(tasks=folder, address=address, runs=2, no_judge=True, out=out)
        try:
            with pytest.raises(BadRequest, match=r"2 of 6 tables failed; the same command"):
                await measure(options)
            down = False
            measured = await measure(options)
            assert await measure(options) == measured
        finally:
            await server.drain(1.0)
        runs = (await archive.list(RunFilter(kind="table"), 20)).runs
    assert len([run for run in runs if run.status == "finished"]) == 6
    kept = [
        json.loads(line) for line in (out / "responses.wide.jsonl").read_text("utf-8").splitlines()
    ]
    assert sorted(line["instance_id"] for line in kept) == sorted(2 * names)
    (response,) = {line["response"] for line in kept}
    assert response.splitlines()[:4:3] == ["```markdown", "| Kruaa | Ana Kruaason | 1000 |"]
    write_json(figures_file, measured)
    assert figures(figures_file)["official-Avg"]["all"] == [1.0] * 7
    *_, tokens = measured.tables
    assert tokens.columns == (
        "tasks",
        "responses",
        "delegation",
        "execution",
        "all",
        "of a right cell",
    )
    spent = sum(line["tokens"]["delegation"] + line["tokens"]["execution"] for line in kept)
    name, responses_, *by_role, every, a_cell = tokens.rows[0]
    assert (name, responses_, sum(by_role)) == ("all", 6, every)
    assert (every, a_cell) == (pytest.approx(spent / 6), pytest.approx(spent / 6 / 12))


async def test_a_gateway_gets_columns_keys_and_types(tmp_path: Path) -> None:
    """It gets nothing else of the task; types follow from the metrics. Reports of earlier runs are
    not used.
    """
    rules = (
        JUDGED,
        number(0.1),
        DATE,
        Rule((), ("url_match",)),
        Rule((), ("number_near", "exact_match"), 0.1),
    )
    folder = written(tmp_path / "tasks", [task("a,b,c,d,e\n1,2,3,4,5", *rules, keys=2)])
    store = Kept()
    live = LiveRuns()
    script = ScriptedTables(RunLifecycle(store, store, live, {}, 60.0), ())
    server = Server(None, None, TableServicer(script, Runs(store, live), open_access()))
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    try:
        await measure(
            Options(
                tasks=folder,
                address=address,
                runs=1,
                no_judge=True,
                out=tmp_path / "out",
            )
        )
    finally:
        await server.drain(1.0)
    (request,) = script.requests
    assert [options.no_cache for options in script.options] == [True]
    assert request.question == "List them."
    kinds = [(column.name, column.key, column.type) for column in request.columns]
    assert kinds == [
        ("a", True, "text"),
        ("b", True, "number"),
        ("c", False, "date"),
        ("d", False, "url"),
        ("e", False, "text"),
    ]


def test_two_files_are_compared_by_task(folder: Path, tmp_path: Path) -> None:
    """The difference has an interval of pairs."""
    file = responses(folder, ("t1", RIGHT), ("t2", RIGHT))
    figures_file = tmp_path / "figures.json"
    second_file = responses(tmp_path, ("t1", HALF), ("t2", HALF))
    files = f"--tasks {folder} --responses {file} --against {second_file}"
    options = f"{files} --runs 1 --no-judge --json {figures_file}"
    assert main(["widesearch", *options.split(), "--out", str(tmp_path / "out")]) == 0
    assert figures(figures_file)["strict-difference"]["all"] == [1, *(0, 0.5, round(1 / 3, 6)) * 2]
    (difference,) = [
        table
        for table in json.loads(figures_file.read_bytes())["tables"]
        if table["key"] == "strict-difference"
    ]
    assert {
        score["low"] == score["mean"] == score["high"] for score in difference["rows"][0][2:]
    } == {True}
    assert "100.00 (100.00 to 100.00)" in (tmp_path / "out" / "report.md").read_text("utf-8")


async def test_intervals_know_which_tasks_share_entities(folder: Path, tmp_path: Path) -> None:
    """A single group of two tasks with different scores has no interval."""
    file = responses(folder, ("t1", RIGHT), ("t2", HALF))
    options = Options(tasks=folder, responses=file, runs=1, no_judge=True, out=tmp_path / "out")
    tasks = folder / "tasks.jsonl"
    lines = [json.loads(line) for line in tasks.read_text("utf-8").splitlines()]
    widths = []
    for group in ({}, {"group": "world 1"}):
        tasks.write_text("".join(json.dumps(line | group) + "\n" for line in lines), "utf-8")
        measured = await measure(options)
        success = measured.tables[0].rows[0][2]
        assert success.mean == 0.5
        widths.append(success.high - success.low)
    assert widths == [1.0, 0.0]


async def test_the_config_s_judge_is_called_once_per_column(tmp_path: Path) -> None:
    """Scoring again uses its cached replies."""
    folder = written(
        tmp_path / "tasks", [task("name,place\nAda,London\nAlan,Berlin", TEXT, JUDGED)]
    )
    file = responses(
        folder, ("t1", fenced("|name|place|", "|---|---|", "|Ada|LDN|", "|Alan|Bonn|"))
    )
    async with serving() as endpoint:
        endpoint.plays(says('```json\n{"idx_0": 1, "Ada": "Ada"}\n```'))
        model = f'model = "{MODEL}"\nprompt = "prompt.txt"\nbase_url = "{endpoint.base_url}"\n'
        test_runtime.config(tmp_path, f"[distillation.judge]\n{model}max_tokens = 10240\n")
        options = Options(
            tasks=folder,
            responses=file,
            runs=1,
            judge=True,
            models=tmp_path / "config.toml",
            out=tmp_path / "out",
        )
        measured = await measure(options)
        assert await measure(options) == measured
        assert len(endpoint.bodies) == 2
        assert {body["max_tokens"] for body in endpoint.bodies} == {10240}
    for table in measured.tables:
        assert [round(score.mean, 6) for score in table.rows[0][2:]] == [
            0,
            0.5,
            0.5,
            0.5,
            0.75,
            0.75,
            0.75,
        ]
    assert "with a judge" in Path(measured.page).read_text("utf-8")


async def test_a_config_without_a_judge_is_refused(folder: Path, tmp_path: Path) -> None:
    """The error comes before anything is scored."""
    test_runtime.config(tmp_path)
    file = responses(folder, ("t1", HALF), ("t2", RIGHT))
    config = tmp_path / "config.toml"
    options = Options(
        tasks=folder, responses=file, runs=1, judge=True, models=config, out=tmp_path / "out"
    )
    with pytest.raises(
        BadRequest, match=r"config.toml: has no \[distillation.judge\]; add it, or give --no-judge"
    ):
        await measure(options)
