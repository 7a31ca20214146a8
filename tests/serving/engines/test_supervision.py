"""A server that dies or hangs is restarted, and its state is reported."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from router.background import background_tasks
from router.errors import BadConfig
from serving.engines.process import DYING_WITH_PARENT, ServerProcess, Watch, keep_running
from tests.ports import free_port

WATCH = Watch(every_s=0.05, within_s=0.5, misses=1000, first_pause_s=0.05, longest_pause_s=0.2)
SCRIPT = Path(__file__).parent / "plain_server.py"


class Watched:
    """A server and the changes of its state."""

    def __init__(self, folder: Path, ready_within_s: float = 60.0) -> None:
        port = free_port()
        command = [sys.executable, "-S", str(SCRIPT), str(port), str(folder)]
        self.process = ServerProcess(
            "engines.small", command, port, folder / "log", {}, ready_within_s=ready_within_s
        )
        self.changes: asyncio.Queue[str | None] = asyncio.Queue()
        self._folder = folder

    @property
    def pid(self) -> int:
        """Id of the current process."""
        return int((self._folder / "pid").read_text())

    async def next(self) -> str | None:
        """Return the next change: the reason why it is down, or None."""
        async with asyncio.timeout(30):
            return await self.changes.get()


@asynccontextmanager
async def watched(folder: Path, watch: Watch = WATCH) -> AsyncIterator[Watched]:
    """Yield a running, supervised server."""
    server = Watched(folder)
    try:
        await server.process.start()
        async with background_tasks(keep_running(server.process, server.changes.put_nowait, watch)):
            yield server
    finally:
        await server.process.stop()


async def test_a_server_that_is_never_ready_fails_the_start(tmp_path: Path) -> None:
    """The wait ends after the configured time."""
    (tmp_path / "loading").touch()
    server = Watched(tmp_path, ready_within_s=1.0)
    try:
        with pytest.raises(
            BadConfig,
            match=r"engines\.small was not ready in 1 s; .* raise ready_within_s; its log ",
        ):
            await server.process.start()
    finally:
        await server.process.stop()


async def test_a_server_that_dies_is_restarted(tmp_path: Path) -> None:
    """It is restarted at the same address each time, and each change is reported."""
    async with watched(tmp_path) as server:
        pids = set()
        for _ in range(2):
            pids.add(server.pid)
            os.kill(server.pid, signal.SIGKILL)
            assert await server.next() == "ended with code -9"
            assert await server.next() is None
            assert await server.process.answers(5.0)
        assert server.pid not in pids


async def test_a_server_that_hangs_is_restarted(tmp_path: Path) -> None:
    """A server that does not answer counts as down."""
    async with watched(tmp_path, replace(WATCH, misses=2)) as server:
        hanging = server.pid
        os.kill(hanging, signal.SIGSTOP)
        assert await server.next() == "does not answer its health check"
        assert await server.next() is None
        assert server.pid != hanging


async def test_a_failing_restart_is_repeated(tmp_path: Path) -> None:
    """Restarts are repeated until one succeeds, and the end of the output is reported."""
    async with watched(tmp_path) as server:
        (tmp_path / "broken").touch()
        os.kill(server.pid, signal.SIGKILL)
        assert await server.next() == "ended with code -9"
        for _ in range(2):
            why = await server.next()
            assert why is not None
            assert why.startswith("engines.small ended with code 3; its log ")
            assert why.endswith("cannot read the model")
        (tmp_path / "broken").unlink()
        while await server.next() is not None:
            pass
        assert await server.process.answers(5.0)


async def test_a_server_whose_log_cannot_be_written_is_restarted(tmp_path: Path) -> None:
    """Restarts are repeated until one succeeds, and the server ends with its supervision."""
    async with watched(tmp_path) as server:
        log = tmp_path / "log"
        log.unlink()
        log.mkdir()
        os.kill(server.pid, signal.SIGKILL)
        assert await server.next() == "ended with code -9"
        assert "Is a directory" in str(await server.next())
        log.rmdir()
        while await server.next() is not None:
            pass
        assert await server.process.answers(5.0)
    assert server.changes.empty()
    assert not await server.process.answers(5.0)


@pytest.mark.parametrize(("good_after_s", "last_s"), [(60.0, 0.2), (0.0, 0.05)])
async def test_pauses_grow_until_all_was_well_for_a_while(
    tmp_path: Path, good_after_s: float, last_s: float
) -> None:
    """Each pause is twice the previous one, up to the longest; they are reset after a good time."""
    with capture_logs() as log:
        async with watched(tmp_path, replace(WATCH, good_after_s=good_after_s)) as server:
            (tmp_path / "broken").touch()
            os.kill(server.pid, signal.SIGKILL)
            for _ in range(4):
                await server.next()
            (tmp_path / "broken").unlink()
            while await server.next() is not None:
                pass
            os.kill(server.pid, signal.SIGKILL)
            await server.next()
    pauses = [event["again_in_s"] for event in log if event["event"] == "engine.down"]
    assert pauses[:4] == [0.05, 0.1, 0.2, 0.2]
    assert pauses[-1] == last_s


async def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    """The server also ends when its parent is killed."""
    start = (
        "import asyncio, sys; from pathlib import Path; from "
        "tests.serving.engines.test_supervision import Watched\n"
        "async def main():\n"
        "    await Watched(Path(sys.argv[1])).process.start()\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    root = Path(__file__).parents[3]
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", start, str(tmp_path)), stdout=asyncio.subprocess.PIPE, cwd=root
    )
    assert starter.stdout is not None
    assert await starter.stdout.readline() == b"ready\n"
    server = psutil.Process(int((tmp_path / "pid").read_text()))
    assert server.is_running()
    starter.kill()
    await starter.wait()
    await asyncio.to_thread(server.wait, 30)


async def test_descendants_die_with_a_killed_gateway(tmp_path: Path) -> None:
    """Launchers such as `npx` run the server as their child; one that ignores SIGTERM is killed."""
    start = (
        "import asyncio, sys; from serving.engines.process import DYING_WITH_PARENT\n"
        "async def main():\n"
        "    script = 'trap \"\" TERM; sleep 300 & echo $! $$; wait'\n"
        "    await asyncio.create_subprocess_exec("
        "*DYING_WITH_PARENT, '/bin/sh', '-c', script, start_new_session=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    root = Path(__file__).parents[3]
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", start), stdout=asyncio.subprocess.PIPE, cwd=root
    )
    assert starter.stdout is not None
    started = [psutil.Process(int(number)) for number in (await starter.stdout.readline()).split()]
    assert len(started) == 2
    starter.kill()
    await starter.wait()
    for process in started:
        await asyncio.to_thread(process.wait, 30)


async def test_a_supervised_program_ends_with_its_own_code() -> None:
    for script, code in ("exit 3", 3), ("kill -9 $$", -9):
        process = await asyncio.create_subprocess_exec(
            *DYING_WITH_PARENT, "/bin/sh", "-c", script, start_new_session=True
        )
        assert await process.wait() == code
