"""The benchmark of kills and failing upstreams."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from benchmarks.__main__ import main
from benchmarks.load import LoadResult
from benchmarks.reliability.audit import Audit, checks_of, compared
from router.store import Database
from router.testing.fault_proxy import Attempt, Counted
from tests.router.store import stored

LATE = "no request ends more than 100 ms after its deadline"


def ended(outcome: str = "answered", *, typed: bool = True, took_s: float = 4.0) -> LoadResult:
    return LoadResult(outcome, typed, took_s, 5.0, "run-1", 8, 100)


def failed(ones: Sequence[LoadResult], wrong: Mapping[str, Sequence[str]] = {}) -> list[str]:
    return [check.check for check in checks_of(ones, 0.1, wrong) if not check.held]


def test_failed_checks_are_named() -> None:
    """Each fault fails one check."""
    assert failed([ended(), ended("OUT_OF_TIME")]) == []
    assert failed([ended(took_s=5.2)]) == [LATE]
    assert failed([ended(), ended("INTERNAL", typed=False)]) == [
        "each request ends in an answer or a typed error"
    ]
    assert failed([ended("OVERLOADED")]) == failed([]) == ["some requests are answered"]
    assert failed([ended()], {"no answer is lost": ["run-1"], "nothing is left open": []}) == [
        "no answer is lost"
    ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], int]:
    """Run a few questions with failing calls; return store, figures and exit status."""
    folder = tmp_path_factory.mktemp("reliability")
    options = [
        "--parts",
        "faults",
        "--questions",
        "24",
        "--in-flight",
        "12",
        "--share",
        "0.1",
        "--seed",
        "3",
    ]
    status = main(
        ["reliability", *options, "--folder", str(folder), "--json", str(folder / "out.json")]
    )
    return folder / "faults" / "runs.db", json.loads((folder / "out.json").read_bytes()), status


def test_questions_through_faults_end(run: tuple[Path, dict[str, Any], int]) -> None:
    """All questions end and every attempt is recorded.

    So few questions prove nothing about memory.
    """
    _, figures, _ = run
    wrong = {check["check"] for check in figures["checks"] if not check["held"]}
    assert wrong <= {
        f"faults: {LATE}",
        "faults: memory within 10 %",
        "faults: open files within 10 %",
    }
    (part,) = figures["parts"]
    assert sum(part["ended"].values()) == 24
    assert part["attempts"] > 24
    assert set(part["faults"]) > {"none"}


UNBOOKED = "every attempt is booked"
OPEN = "nothing is left open"
LOST = "no answer is lost"
MISCOUNTED = "completed calls are booked as upstreams counted them"


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ("DELETE FROM calls WHERE number = 3", UNBOOKED),
        ("UPDATE calls SET deployment = 'elsewhere' WHERE number = 3", UNBOOKED),
        ("UPDATE calls SET outcome = 'open' WHERE number = 3", OPEN),
        ("UPDATE runs SET status = 'running'", OPEN),
        ("UPDATE runs SET status = 'failed'", LOST),
        ("UPDATE calls SET prompt_tokens = prompt_tokens + 1 WHERE number = 0", LOST),
        ("UPDATE calls SET prompt_tokens = prompt_tokens + 1 WHERE number = 0", MISCOUNTED),
        ("UPDATE calls SET number = 99 WHERE number = 3", "no row is invented"),
    ],
)
def test_the_audit_reports_missing_rows(
    run: tuple[Path, dict[str, Any], int], tmp_path: Path, change: str, differs: str
) -> None:
    """Each removed or changed row of the store is reported."""
    (copy := tmp_path / "runs.db").write_bytes(run[0].read_bytes())
    with sqlite3.connect(copy) as database:
        rows = database.execute(
            "SELECT run_id, number, deployment, outcome, prompt_tokens, "
            "completion_tokens FROM calls"
        ).fetchall()
        runs = database.execute(
            "SELECT run_id, count(*), sum(coalesce(prompt_tokens, 0) + "
            "coalesce(completion_tokens, 0)) FROM calls "
            "JOIN runs USING (run_id) WHERE status = 'finished' GROUP BY run_id"
        ).fetchall()
    ones = [LoadResult("answered", True, 1.0, 5.0, *row) for row in runs]
    attempts = []
    for run_id, number, deployment, outcome, read, wrote in rows:
        complete = outcome == "completed" and read is not None
        counted = Counted(read, wrote) if complete else None
        attempts.append(Attempt(deployment, f"{run_id}-{number}", b"", counted))

    def found() -> Audit:
        engine = create_engine(f"sqlite:///{copy}")
        with engine.connect() as connection:
            audit = compared(connection, ones, attempts)
        engine.dispose()
        return audit

    assert failed(ones, found().wrong) == []
    with sqlite3.connect(copy) as database:
        database.execute(change)
    assert differs in failed(ones, found().wrong)


def test_a_repeated_attempt_is_reported(run: tuple[Path, dict[str, Any], int]) -> None:
    """An upstream that got a request id twice is reported, and a request without an id is not
    recorded.
    """
    attempts = [Attempt("http://a", name) for name in ("run-1-0", "run-1-0", "")]
    engine = create_engine(f"sqlite:///{run[0]}")
    with engine.connect() as connection:
        wrong = compared(connection, [], attempts).wrong
    engine.dispose()
    assert wrong["no attempt comes twice"] == ["run-1-0"]
    assert "request without an id at http://a" in wrong[UNBOOKED]


async def test_repeated_calls_of_resumed_runs_are_reported(tmp_path: Path) -> None:
    """They had completed before any number of kills."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    cut = stored.run(
        "run-1",
        1.0,
        [stored.call("run-1"), stored.call("run-1", 1, outcome="interrupted")],
        status="interrupted",
    )
    repeated = stored.run(
        "run-2", 2.0, [stored.call("run-2")], status="interrupted", resumed_from="run-1"
    )
    last = stored.run(
        "run-3", 3.0, [stored.call("run-3"), stored.call("run-3", 1)], resumed_from="run-2"
    )
    made_again = (
        stored.run("run-4", 4.0, [stored.call("run-4")], request="another", status="interrupted"),
        stored.run("run-4a", 4.5, request="another", status="interrupted"),  # made no call
        stored.run("run-5", 5.0, [stored.call("run-5")], request="another"),
    )
    await stored.put(database, cut, repeated, last, *made_again)
    shown = {
        "run-1-0": b"one",
        "run-1-1": b"two",
        "run-2-0": b"two",
        "run-3-0": b"one",
        "run-3-1": b"three",
    }
    attempts = [Attempt("http://a", name, digest) for name, digest in shown.items()]
    differences = await database.read(lambda connection: compared(connection, [], attempts))
    await database.close()
    assert (differences.resumed, differences.in_flight) == (2, 1)
    assert differences.wrong["no completed call is made again"] == ["run-3-0"]
    assert differences.wrong["a repeated question resumes its interrupted run"] == ["run-5"]


@pytest.mark.parametrize(
    ("part", "store"),
    [
        pytest.param("kills", "sqlite", marks=pytest.mark.slow),
        pytest.param("kills", "postgres", marks=pytest.mark.postgres),
        pytest.param("tables", "sqlite", marks=pytest.mark.slow),
        pytest.param("tables", "postgres", marks=pytest.mark.postgres),
        pytest.param("vllm", "sqlite", marks=pytest.mark.engines),
    ],
)
def test_kills_lose_nothing(tmp_path: Path, part: str, store: str) -> None:
    """A repeatedly killed gateway keeps every acknowledged run and records its upstreams'
    counts.
    """
    out = tmp_path / "out.json"
    options = [
        "--kills",
        "3",
        "--longest",
        "8",
        "--in-flight",
        "8",
        "--share",
        "0.1",
        "--json",
        str(out),
    ]
    assert main(["reliability", "--parts", part, "--store", store, *options]) == 0
    assert f"{part}: the ledger agrees with the upstreams' counters" in {
        check["check"] for check in json.loads(out.read_bytes())["checks"]
    }
