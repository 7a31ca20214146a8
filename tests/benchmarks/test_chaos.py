"""The benchmark of what fails around a gateway."""

import json
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.chaos import ended_and_booked, main
from benchmarks.chaos_accounts import Accounts, accounts
from benchmarks.chaos_faults import by_thousand
from benchmarks.chaos_gateway import store_of
from benchmarks.chaos_questions import Ended, Told
from benchmarks.chaos_replica import Sides, callers

_GOOD = Accounts(1, 8, {"completed": 8}, [], [], {}, [], [])


def _ended(outcome: str = "answered", late_s: float = -1.0, run_id: str = "run-1", *, typed: bool = True) -> Ended:
    return Ended(outcome, typed, 5.0 + late_s, 5.0, run_id, 8, 100)


def _failed(ended: Sequence[Ended], found: Accounts = _GOOD) -> list[str]:
    return [check.what for check in ended_and_booked("part", Told.of(ended), found) if not check.held]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], int]:
    """A few questions, some of whose calls fail: where the store was kept, the figures, and the exit status."""
    folder = tmp_path_factory.mktemp("chaos")
    out = folder / "out.json"
    given = ["faults", "--questions", "24", "--in-flight", "12", "--share", "0.1", "--seed", "3"]
    status = main([*given, "--folder", str(folder), "--json", str(out)])
    return folder / "faults", json.loads(out.read_bytes()), status


def test_questions_through_chaos_end_well(run: tuple[Path, dict[str, Any], int]) -> None:
    """All of them end, answered or not, every attempt is booked, and the exit status says whether all held; whether all
    end in time depends on what else the machine does.
    """
    _, figures, status = run
    faults = figures["faults"]
    failed = {check["what"] for check in figures["checks"] if not check["held"]}
    assert failed <= {"none ends 100 ms after its deadline"}
    assert status == len(failed)
    assert sum(faults["told"]["outcomes"].values()) == faults["told"]["questions"] == 24
    assert faults["accounts"]["attempts"] > 24
    assert len(faults["own_mb"]) == 1
    assert {name for upstream in faults["faults"].values() for name in upstream} > {"none"}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ("DELETE FROM calls WHERE number = 3", "unaccounted"),
        ("UPDATE calls SET deployment = 'elsewhere' WHERE number = 3", "unaccounted"),
        ("UPDATE calls SET outcome = 'open' WHERE number = 3", "stuck"),
        ("UPDATE runs SET status = 'running'", "stuck"),
        ("UPDATE runs SET status = 'failed'", "lost"),
        ("UPDATE calls SET prompt_tokens = prompt_tokens + 1 WHERE number = 0", "lost"),
        ("UPDATE calls SET number = 99 WHERE number = 3", "unseen"),
    ],
)
async def test_accounts_tell_what_is_missing(
    run: tuple[Path, dict[str, Any], int], tmp_path: Path, change: str, differs: str
) -> None:
    """Whatever is taken from a store, or changed in it, is told."""
    kept, _, _ = run
    shutil.copy(kept / "runs.db", tmp_path / "runs.db")
    with sqlite3.connect(tmp_path / "runs.db") as database:
        rows = database.execute("SELECT run_id, number, deployment FROM calls").fetchall()
        runs = database.execute(
            "SELECT run_id, count(*), sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)) FROM calls "
            "JOIN runs USING (run_id) WHERE status = 'finished' GROUP BY run_id"
        ).fetchall()
    ended = [Ended("answered", True, 1.0, 5.0, *row) for row in runs]
    seen: dict[str, list[str]] = {}
    for run_id, number, deployment in rows:
        seen.setdefault(deployment, []).append(f"{run_id}-{number}")
    before = await accounts(store_of(tmp_path), ended, seen)
    assert (before.unaccounted, before.lost, before.stuck, before.invented) == ([], [], [], 0)
    assert await callers(store_of(tmp_path), next(iter(seen)))
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute(change)
    after = await accounts(store_of(tmp_path), ended, seen)
    assert getattr(after, differs) != getattr(before, differs)


def test_what_did_not_hold_is_named() -> None:
    """One check fails for each fault."""
    assert _failed([_ended()]) == []
    assert _failed([_ended(), _ended("OUT_OF_TIME", 0.09)]) == []
    assert _failed([_ended(), _ended("OUT_OF_TIME", 0.11)]) == ["none ends 100 ms after its deadline"]
    assert _failed([_ended(), _ended("INTERNAL", typed=False)]) == ["each ends in an answer or a typed error"]
    assert _failed([_ended("OVERLOADED")]) == ["some are answered"]
    changes: dict[str, dict[str, Any]] = {
        "no answer is lost": {"lost": ["run-1"]},
        "nothing is left open": {"stuck": ["run-1"]},
        "every attempt is booked": {"unaccounted": ["run-1-0"]},
        "no row is invented": {"unseen": {"completed": 1}},
    }
    for what, change in changes.items():
        assert _failed([_ended()], msgspec.structs.replace(_GOOD, **change)) == [what]
    assert _failed([_ended()], msgspec.structs.replace(_GOOD, unseen={"unreachable": 1, "cancelled": 1})) == []


def test_memory_is_told_by_the_thousand() -> None:
    """The median of what was seen in each."""
    samples = [(0, 1.0), (10, 3.0), (999, 2.0), (1000, 5.0), (2500, 7.0), (2600, 8.0)]
    assert by_thousand(samples) == [2.0, 5.0, 7.5]


def test_who_called_a_dead_replica_is_no_other() -> None:
    """Nor is a question that was not answered."""
    sides = Sides.of([_ended(run_id="a"), _ended(run_id="b", late_s=0.0), _ended("OUT_OF_TIME", run_id="")], {"b"})
    assert (sides.others, sides.callers) == ([4.0], [5.0, 4.0])
