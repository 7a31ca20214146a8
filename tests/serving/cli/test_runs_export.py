"""`rolegate runs export`: files that `datasets` reads."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyarrow.parquet import ParquetFile

from router.access import Tenant
from router.models import Completion, Message, Usage
from router.store import Database, SQLArchive
from router.trace import Conversation, Run
from router.trace.export import AgentTrajectory, ExportRow, Reward, export_row
from router.trace.run import Feedback
from serving.cli import store as export_file
from serving.cli.main import main
from tests.router.store.stored import ANSWER, EXECUTIONS, call, put, run
from tests.store_config import write_config

SUFFIXES = ".jsonl", ".parquet"
HOSTILE = (
    '"}\n{"run_id": "forged"}',
    "\u2028\u2029\x85\x0c\x1c\r\n\t\\ \\u0000 \ufeff\ufffd",
    "null",
    "NaN",
    "{}",
    "[1, 2]",
    "",
    " ",
    "123",
    "true",
    "\U0001f4a9 日本 ünï " + "x" * 100_000,
    "<search>[]</search><stop>",
    "=1+1",
)
MOMENTS = "2026-11-21", "1995-12-15 10:00", "2026-11-21T10:00:00.123Z", "2026-11-21T10:00:00+01:00"
REPLY = Conversation((Message("user", "?"),), (Completion("ok", "stop"),))
RUNS = (
    run(
        "run-01",
        1.0,
        [call("run-01"), call("run-01", 1, usage=None, nano_usd=None)],
        request_id="mine",
    ),
    run("run-02", 2.0, kind="execute", result=EXECUTIONS[0], events=(), tenant="acme"),
    run("run-03", 3.0, kind="complete", result=REPLY, events=(), tenant="shy"),
    run("run-04", 4.0, status="failed", result=None, events=(), error="UpstreamUnavailable: …"),
    run("run-05", 5.0, status="cancelled", result=None, events=()),
    run("run-06", 6.0, status="interrupted", result=None, events=(), settings={}),
    run("run-07", 7.0, redacted=True, request="", result=None, events=()),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a config."""
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path)
    return tmp_path


def keep(*runs: Run) -> None:
    """Store runs in it."""

    async def write() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        await put(database, *runs, tenants=[Tenant("shy", training=False)])
        await database.close()

    asyncio.run(write())


def export(out: str, *options: str) -> int:
    return main(["runs", "export", "--config", "rolegate.toml", "--out", out, *options])


def loaded(path: Path) -> list[dict[str, Any]]:
    import datasets  # takes a second

    kind = {".jsonl": "json", ".parquet": "parquet"}[path.suffix]
    dataset = datasets.load_dataset(
        kind, data_files=str(path), split="train", cache_dir=str(path.parent / "cache")
    )
    assert dataset.column_names == list(ExportRow.__struct_fields__)
    names = {str: "string", int: "int64", int | None: "int64", float: "float64", bool: "bool"}
    types = {field.name: names[field.type] for field in msgspec.structs.fields(ExportRow)}
    assert {name: feature.dtype for name, feature in dataset.features.items()} == types
    return list(dataset)


def expected(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [msgspec.structs.asdict(export_row(stored_run)) for stored_run in runs]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_runs_of_all_kinds_are_exported_oldest_first(
    folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is still running is left out."""
    keep(run("run-00", 0.0, status="running", result=None, events=()), *RUNS)

    assert export(f"runs{suffix}") == 0

    assert capsys.readouterr().out == f"runs{suffix}: 7 runs\n"
    assert loaded(folder / f"runs{suffix}") == expected(RUNS)
    assert {path.name for path in folder.iterdir()} >= {f"runs{suffix}"}
    assert not list(folder.glob(f".runs{suffix}*"))


STOPPED_EXPORT = """
import os, signal, sys
from serving.cli import store as runs_export
from serving.cli.main import main
runs_export.export_row = lambda *_told: os.kill(os.getpid(), signal.SIGTERM)
sys.exit(main(["runs", "export", "--out", sys.argv[1]]))
"""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_export_that_gets_sigterm_leaves_no_file(folder: Path, suffix: str) -> None:
    """The signal may come at any row."""
    keep(*RUNS)
    before = sorted(folder.iterdir())
    stopped = subprocess.run(
        [sys.executable, "-c", STOPPED_EXPORT, f"runs{suffix}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert stopped.returncode == 128 + signal.SIGTERM
    assert b"Traceback" not in stopped.stderr
    assert [
        path for path in sorted(folder.iterdir()) if path.name[-4:] not in ("-wal", "-shm")
    ] == before


def test_a_name_that_is_not_utf8_is_shown_escaped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not reported as a failure."""
    keep(*RUNS)

    assert export(os.fsdecode(b"caf\xe9.jsonl")) == 0
    assert capsys.readouterr().out == "caf\\udce9.jsonl: 7 runs\n"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("status", ["finished", "failed"])
def test_a_single_run_has_the_same_columns_and_types(
    folder: Path, suffix: str, status: str
) -> None:
    result: dict[str, Any] = {"result": None, "events": ()} if status == "failed" else {}
    keep(run("run-1", status=status, **result))

    assert export(f"runs{suffix}") == 0
    loaded(folder / f"runs{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_hostile_texts_are_exported_unchanged(folder: Path, suffix: str) -> None:
    """No row is split or forged, and no text gets another type."""
    answers = [msgspec.structs.replace(ANSWER, answer=text) for text in HOSTILE]
    runs = [
        run(f"run-{number:02}", float(number), request=text, request_id=f"id-{text}", result=answer)
        for number, (text, answer) in enumerate(zip(HOSTILE, answers, strict=True))
    ]
    keep(*runs)

    assert export(f"runs{suffix}") == 0

    rows = loaded(folder / f"runs{suffix}")
    assert rows == expected(runs)
    assert [json.loads(row["trace"])["result"]["answer"] for row in rows] == list(HOSTILE)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_texts_that_are_dates_stay_texts(folder: Path, suffix: str, moment: str) -> None:
    """This holds for a column of dates alone; in JSON lines, a space after the date keeps it a
    text.
    """
    answer = msgspec.structs.replace(ANSWER, answer=moment)
    keep(*(run(f"run-{number}", request=moment, result=answer) for number in range(3)))

    assert export(f"runs{suffix}") == 0

    text = f"{moment} " if suffix == ".jsonl" else moment
    for row in loaded(folder / f"runs{suffix}"):
        assert (row["request"], row["output"]) == (text, text)
        assert json.loads(row["trace"])["result"]["answer"] == moment


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_exports_larger_than_a_reader_s_block_keep_their_types(folder: Path, suffix: str) -> None:
    """Dates come first and other texts megabytes later; one text is larger than a block."""
    texts = ["2026-11-21"] * 40 + ["so so", "2026-11-21"] + ["x" * 11_000_000]
    padding = Conversation((Message("user", "y" * 400_000),))
    runs = [
        run(f"run-{n:02}", float(n), request=text, result=padding, events=())
        for n, text in enumerate(texts)
    ]
    keep(*runs)

    assert export(f"runs{suffix}") == 0

    assert [row["request"].strip() for row in loaded(folder / f"runs{suffix}")] == texts


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("early", [True, False])
def test_ten_megabytes_of_unknown_values_keep_the_column_s_type(
    folder: Path, suffix: str, early: bool
) -> None:
    """Tokens and costs are unknown in the early or the late runs; null stays null."""
    padding = Conversation((Message("user", "y" * 600_000),))
    unknown = [n < 25 if early else n >= 1 for n in range(27)]
    runs = [
        run(
            f"run-{n:02}",
            float(n),
            [
                call(f"run-{n:02}", usage=None, nano_usd=None)
                if unknown_run
                else call(f"run-{n:02}")
            ],
            result=padding,
            events=(),
        )
        for n, unknown_run in enumerate(unknown)
    ]
    keep(*runs)

    assert export(f"runs{suffix}") == 0

    rows = sorted(loaded(folder / f"runs{suffix}"), key=lambda row: row["run_id"])
    assert rows == expected(runs)
    for name in ("prompt_tokens", "completion_tokens", "cost_nano_usd"):
        assert [row[name] is None for row in rows] == unknown


def test_ten_megabytes_of_unknown_rewards_keep_the_column_s_type(folder: Path) -> None:
    """This holds for the lines for reinforcement learning."""
    import datasets  # takes a second

    texts = ["y" * 600_000] * 20
    runs = []
    for n, text in enumerate(texts):
        talk = Conversation(
            (Message("user", text),),
            (Completion("ok", "stop", usage=Usage(1, 1) if n > 18 else None),),
        )
        execution = msgspec.structs.replace(EXECUTIONS[0], conversation=talk)
        answer = msgspec.structs.replace(ANSWER, executions=(execution,), rounds=(1,))
        runs.append(run(f"run-{n:02}", float(n), result=answer, events=()))

    async def write() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        await put(database, *runs)
        await SQLArchive(database).add_feedback(Feedback("run-19", right_answer="michael mann"))
        await database.close()

    asyncio.run(write())
    assert export("runs.jsonl", "--for", "rl") == 0
    rows = datasets.load_dataset(
        "json", data_files="runs.jsonl", split="train", cache_dir=str(folder / "cache")
    )
    loaded_rows = sorted(rows, key=lambda row: row["run_id"])
    assert [row["reward"]["f1"] is None for row in loaded_rows] == [True] * 19 + [False]
    assert [row["turns"][0]["usage"] is None for row in loaded_rows] == [True] * 19 + [False]
    assert loaded_rows[-1]["right_answers"] == ["michael mann"]


def test_row_groups_bound_the_memory(folder: Path) -> None:
    """The memory does not depend on the size of the export."""
    padding = Conversation((Message("user", "y" * 3_000_000),))
    keep(
        *(run(f"run-{number:02}", float(number), result=padding, events=()) for number in range(30))
    )

    assert export("runs.parquet") == 0

    file = ParquetFile(folder / "runs.parquet")
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sum(sizes) == 30
    assert max(sizes) <= export_file._GROUP_CHARS // 3_000_000 + 1


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--tenant", "acme"], "2"),
        (["--training"], "124567"),
        (["--kind", "complete"], "3"),
        (["--since", "1970-01-01T00:00:03"], "34567"),
        (["--until", "1970-01-01T00:00:03"], "12"),
        (["--since", "1970-01-01T00:00:02", "--until", "1970-01-01T00:00:05", "--training"], "24"),
    ],
)
def test_filters_select_the_runs(folder: Path, options: list[str], numbers: str) -> None:
    keep(*RUNS)
    assert export("runs.jsonl", *options) == 0
    assert [row["run_id"][-1] for row in loaded(folder / "runs.jsonl")] == list(numbers)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_export_writes_no_file(
    folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file without rows cannot be loaded; an existing file is unchanged."""
    keep(run("run-1", status="running", result=None, events=()))
    out = folder / f"runs{suffix}"

    assert export(out.name) == 1
    assert f"--out {out.name}: not written, because no run matches;" in capsys.readouterr().err
    assert not list(folder.glob("*runs*"))

    out.write_text("mine")
    assert export(out.name, "--force") == 1
    assert out.read_text() == "mine"


def test_feedback_is_in_the_row_of_its_run(folder: Path) -> None:
    feedback = Feedback("run-01", accepted=False, right_answer="1995")

    async def write() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        await put(database, *RUNS[:2])
        await SQLArchive(database).add_feedback(feedback)
        await database.close()

    asyncio.run(write())
    assert export("runs.jsonl") == 0
    first, second = loaded(folder / "runs.jsonl")
    assert msgspec.json.decode(first["feedback"], type=list[Feedback]) == [feedback]
    assert second["feedback"] == "[]"


def test_sampled_turns_are_exported_by_agent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each agent of each answer that may be used for training has a line, with the reward from
    feedback. `datasets` reads the file.
    """
    import datasets  # takes a second

    shy = run("run-08", 8.0, [call("run-08")], tenant="shy")

    async def write() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        await put(database, *RUNS, shy, tenants=[Tenant("shy", training=False)])
        await SQLArchive(database).add_feedback(Feedback("run-01", right_answer="michael mann"))
        await database.close()

    asyncio.run(write())
    assert export("runs.jsonl", "--for", "rl") == 0
    assert capsys.readouterr().out == "runs.jsonl: 1 run\n"
    lines = [
        msgspec.json.decode(line, type=AgentTrajectory)
        for line in Path("runs.jsonl").read_bytes().splitlines()
    ]
    assert [(line.run_id, line.agent, line.parent) for line in lines] == [
        ("run-01", "execution-0", "delegation"),
        ("run-01", "execution-1", "delegation"),
    ]
    assert {line.reward for line in lines} == {Reward(exact_match=True, f1=1.0, tokens=None)}
    assert all(turn.tokens is msgspec.UNSET for line in lines for turn in line.turns)
    rows = datasets.load_dataset(
        "json", data_files="runs.jsonl", split="train", cache_dir=str(folder / "cache")
    )
    assert [row["messages"][0]["content"] for row in rows] == [
        execution.sub_query for execution in EXECUTIONS
    ]

    assert export("runs.parquet", "--for", "rl") == 1
    assert "--out runs.parquet: must end in .jsonl; name another file." in capsys.readouterr().err


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_existing_file_is_replaced_only_on_request(
    folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(*RUNS)
    out = folder / f"runs{suffix}"
    out.write_text("mine")

    assert export(out.name) == 1
    assert out.read_text() == "mine"
    assert f"--out {out.name}: exists already; " in capsys.readouterr().err
    assert export("elsewhere/runs.jsonl") == 1
    assert (
        "--out elsewhere/runs.jsonl: the folder elsewhere does not exist; create it first."
        in capsys.readouterr().err
    )

    assert export(out.name, "--force") == 0
    assert len(loaded(out)) == 7


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_export_leaves_the_existing_file_unchanged(
    folder: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other file is left."""

    keep(*RUNS)

    async def damage() -> None:
        database = await Database.open("sqlite:///rolegate.db")
        statement = "UPDATE runs SET trace = x'a348' WHERE run_id = 'run-05'"
        await database.write(lambda connection: connection.exec_driver_sql(statement))
        await database.close()

    asyncio.run(damage())
    out = folder / f"runs{suffix}"
    out.write_text("mine")

    assert export(out.name, "--force") == 1

    assert out.read_text() == "mine"
    assert not list(folder.glob(".runs*"))
    assert "The trace of run run-05 is damaged" in capsys.readouterr().err


def test_unknown_formats_and_missing_stores_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing store is not created."""
    assert export("runs.csv") == 1
    assert "must end in .jsonl or .parquet" in capsys.readouterr().err
    assert export("runs.jsonl") == 1
    assert (
        "rolegate.db does not exist; correct the path, or start the gateway"
        in capsys.readouterr().err
    )
    (folder / "runs.jsonl").mkdir()
    assert export("runs.jsonl", "--force") == 1
    assert "--out runs.jsonl: is a folder; name a file." in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["rolegate.toml", "runs.jsonl"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_export_is_readable_by_its_owner_only(suffix: str, folder: Path) -> None:
    """It contains texts of the store, which is private, too.

    An existing file that others could read is replaced by a private file.
    """
    keep(*RUNS)
    out = folder / f"runs{suffix}"
    out.touch()
    out.chmod(0o644)
    assert main(["runs", "export", "--out", str(out), "--force"]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
