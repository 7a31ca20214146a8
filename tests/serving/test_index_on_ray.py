"""`rolegate index build` on a real Ray cluster of two nodes with a worker each."""

import json
import os
import random
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil
import pytest

from tests.ray_cluster import PYTHONPATH, ray_cluster, run, start

pytestmark = pytest.mark.slow


def written(folder: Path) -> dict[str, str]:
    """Return the digest of each file of an index."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_an_index_has_the_same_bytes_although_a_worker_was_killed(tmp_path: Path) -> None:
    """The last batch is not full."""
    words = "red green blue old new small large tower river market bridge garden".split()
    chance = random.Random(1)
    texts = (" ".join(chance.choices(words, k=chance.randint(3, 60))) for _ in range(1500))
    lines = (json.dumps({"id": f"p{n}", "title": "T", "text": t}) for n, t in enumerate(texts))
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), "utf-8")
    command = ("index", "build", tmp_path / "corpus.jsonl", "--lexical", "--json", "--out")
    with ray_cluster() as cluster:
        without = await run(*command, tmp_path / "without", environment=cluster.environment)
        assert without.status == 0, without.err
        arguments = (*command, tmp_path / "on_ray", "--ray", cluster.address)
        process = await start(arguments, cluster.environment)
        (await cluster.working()).kill()
        out, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(out) == json.loads(without.out)
    assert written(tmp_path / "on_ray") == written(tmp_path / "without")


async def test_a_local_cluster_ends_with_the_command(tmp_path: Path) -> None:
    """It reports no usage to the makers of Ray, and has no dashboard."""
    (tmp_path / "note.txt").write_text("The boiler was serviced in March.")
    command = ("index", "build", tmp_path / "note.txt", "--out", tmp_path / "index")
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # the paths of sockets are short
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "RAY_TMPDIR": folder}
        ended = await run(*command, "--ray", "local", environment=environment)
        assert ended.status == 0, ended.err
        (log,) = Path(folder).glob("ray/session_2*/logs/dashboard.log")
        assert "Usage reporting is disabled." in log.read_text("utf-8")
        assert "http server disabled" in log.read_text("utf-8")
        running = [process for process in psutil.process_iter() if folder in command_of(process)]
    assert not running


def command_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
