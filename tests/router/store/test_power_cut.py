"""Power cuts at any moment: acknowledged records are kept and count once, for any subset of
unsynced writes.
"""

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from router.errors import StoreFailed
from router.runs import Gateway, RequestOptions
from router.store import Database, LogJournal
from router.store.check import check
from router.store.schema import RUNS, trace_of
from router.trace import Run
from tests.router.store.recorded import Disk, built, notes
from tests.router.store.test_going_on import QUESTION, Models, gateway

STATES = 1000
PROCESSES = 2
SEED = 21
_QUESTIONS = 60
_AT_ONCE = 6
_ASKED_AGAIN = 8
_MEMORY = Path("/dev/shm")
"""Environment in which no sync waits for a disk."""
_SOON = 6
"""Name of the file of notes."""
_ASKING = """
import asyncio, sys
from pathlib import Path
from tests.router.store.test_power_cut import ask
asyncio.run(ask(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "killed"))
"""


async def ask(folder: Path, first: int, killed: bool) -> None:
    """Ask a gateway on the store in `folder`, and write each answer to a file there immediately.

    Its log has many segments. If `killed`, it ends as by a kill, with runs in progress.
    """
    answers_file = os.open(folder / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chance = random.Random(first)
    numbers = iter(range(first, first + _QUESTIONS))
    async with gateway(folder, Models()) as (asked, archive, journal):

        async def work() -> None:
            for number in numbers:
                run = await _answered(asked, number)
                os.write(answers_file, msgspec.msgpack.encode((run.id, trace_of(run))))
                if chance.random() < 0.2:
                    await archive.load(run.id)  # wait for the database
                    if chance.random() < 0.5:
                        journal._log.start()
                if killed and number == first + _QUESTIONS - _ASKED_AGAIN:
                    os._exit(0)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())


async def _answered(asked: Gateway, number: int) -> Run:
    """Ask again, as a client does, while a slow machine's database is behind the log."""
    while True:
        try:
            return await asked.answer(
                f"{QUESTION} {number}", RequestOptions(request_id=f"name {number}")
            )
        except StoreFailed:
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder and notes of three successive gateways, of which the second ended normally."""
    if not shutil.which("gcc"):
        pytest.skip("there is no C compiler")
    work = tmp_path_factory.mktemp("recorded")
    (folder := work / "store").mkdir()
    watched = {
        "LD_PRELOAD": str(built(work)),
        "RECORDED_FOLDER": str(folder),
        "RECORDED_TO": str(work / "notes"),
    }
    for turn, end in enumerate(("killed", "ended", "killed")):
        first = str(turn * (_QUESTIONS - _ASKED_AGAIN))
        command = [sys.executable, "-c", _ASKING, str(folder), first, end]
        subprocess.run(command, env=os.environ | watched, check=True)
    return folder, work / "notes"


def checked_states(
    folder: Path, file: Path, states: list[tuple[int, int]]
) -> list[tuple[int, int, int, list[str]]]:
    """Open possible states of a folder after a power cut.

    Return for each the number of notes until then, its seed, the number of acknowledged answers,
    and the inconsistencies.
    """
    disk = Disk(folder)
    acknowledged = dict[str, bytes]()
    taken = 0
    noted = list(notes(file))
    checked = []
    for until, seed in sorted(states):
        for note in noted[taken:until]:
            disk.take(note)
            if disk.is_at(note, "told"):
                acknowledged |= [msgspec.msgpack.decode(note.data, type=tuple[str, bytes])]
        taken = until
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
            disk.root.left(Path(name), random.Random(seed))
            checked.append(
                (until, seed, len(acknowledged), asyncio.run(_wrong(Path(name), acknowledged)))
            )
    return checked


async def _wrong(folder: Path, acknowledged: dict[str, bytes]) -> list[str]:
    """Return all inconsistencies after a gateway starts in `folder`."""
    try:
        database = await Database.open(f"sqlite:///{folder}/runs.db")
        try:
            async with LogJournal.writing(database):
                rows = await database.read(
                    lambda connection: connection.execute(select(RUNS)).all()
                )
                problems = (await check(database)).problems
        finally:
            await database.close()
    except Exception:
        return [traceback.format_exc()]
    stored = {row.run_id: row.trace for row in rows}
    return [
        *(f"{run_id}: was lost" for run_id in acknowledged if run_id not in stored),
        *(
            f"{run_id}: is another"
            for run_id, trace in acknowledged.items()
            if stored.get(run_id, trace) != trace
        ),
        *(f"{row.run_id}: is running" for row in rows if row.status == "running"),
        *(f"{problem.where}: {problem.what}" for problem in problems),
    ]


@pytest.mark.slow
def test_acknowledged_answers_survive_a_power_cut_and_count_once(
    recorded: tuple[Path, Path],
) -> None:
    """They are stored as acknowledged, and no run stays open.

    Half of the cuts are drawn from all moments, half from those soon after a file was deleted.
    """
    chance = random.Random(SEED)
    noted = list(notes(recorded[1]))
    deleted = [at for at, note in enumerate(noted, 1) if note.kind == "u"]
    moments = [chance.randint(1, len(noted)) for _ in range(STATES // 2)]
    moments += [chance.choice(deleted) + chance.randrange(_SOON) for _ in range(STATES // 2)]
    states = sorted((min(moment, len(noted)), chance.randrange(1 << 32)) for moment in moments)
    # A forked process of this one, which has threads, may crash
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as processes:
        parts = processes.map(
            partial(checked_states, *recorded),
            [states[part::PROCESSES] for part in range(PROCESSES)],
        )
        checked = [state for part in parts for state in part]
    acknowledged = sum(count for _, _, count, _ in checked)
    print(
        f"{len(checked):,} states of {len(noted):,} notes, in which {acknowledged:,} "
        "answers were acknowledged"
    )
    assert len(checked) == STATES
    assert acknowledged > STATES
    assert [state for state in checked if state[3]] == []
