"""Run a benchmark: command-line options, figures, child processes, and measurements of CPU and
memory.

A benchmark is a module with a struct `Options`, whose fields are the command-line options, and a
function `measure`, which takes the options and returns a struct of figures. If the figures have a
field `checks` and one of these checks fails, the exit status is 1.
"""

import asyncio
import inspect
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import psutil

from executor_sft.command import show
from executor_sft.step import write_json
from router.background import background_tasks
from router.errors import RolegateError
from router.frozen import Frozen
from serving.cli.command import parse
from serving.logs import errors_only

_SAMPLE_S = 0.1
_MAX_LINE_BYTES = 64 << 20
_EXIT_S = 30.0


class Check(Frozen):
    """A condition that must hold, and whether it was met."""

    check: str
    """The condition in words."""
    held: bool
    seen: str = ""
    """The observed value, in words."""


class Options(Frozen, kw_only=True):
    """Options of every benchmark."""

    json: Path | None = None
    """also write the figures to this file, as JSON"""


def run(name: str, benchmark: ModuleType, arguments: Sequence[str]) -> int:
    """Run a benchmark, print its figures, and return the exit status: 1 if a check failed, else 0.

    `name`: command of the benchmark. `benchmark`: module of the benchmark. Raises `RolegateError`.
    """
    options = parse(benchmark.Options, f"bench {name}", arguments, benchmark.__doc__)
    errors_only()

    figures: Any = benchmark.measure(options)
    if inspect.iscoroutine(figures):
        figures = asyncio.run(figures)

    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.json, figures)
    getattr(benchmark, "shown", show)(msgspec.to_builtins(figures))
    return int(not all(check.held for check in getattr(figures, "checks", ())))


@contextmanager
def work_folder(kept: Path | None) -> Iterator[Path]:
    """Yield the folder `kept`, and create it if it is missing. If `kept` is None, yield a temporary
    folder instead, and delete it on exit.
    """
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class Child(Frozen):
    """A running child process."""

    process: asyncio.subprocess.Process
    words: list[str]
    """Words of the first line that the process printed, such as its addresses."""
    watched: psutil.Process
    """Handle of the same process, to measure CPU time and memory."""

    async def answer(self, line: bytes) -> bytes:
        """Send a line to the standard input of the process, and return the next line of its output.
        Raises `RolegateError` if the process has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        if not (reply := await self.process.stdout.readline()):
            raise RolegateError(
                f"the process that printed {' '.join(self.words)!r} ended; see its output above."
            )
        return reply


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Run `python -m MODULE ARGUMENTS…` in a child process, and yield the process when it is ready.

    The program must print a line when it is ready. On exit, its standard input is closed, and the
    program must then end. Raises `RolegateError` if the program ends before it is ready.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_MAX_LINE_BYTES,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        if not (line := await process.stdout.readline()):
            raise RolegateError(
                f"{module} ended too early (status {await process.wait()}); see its output above."
            )
        yield Child(process, line.decode().split(), psutil.Process(process.pid))
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _EXIT_S)
        if process.returncode is None:
            process.kill()
            await process.wait()


async def run_sft(command: str, *arguments: object) -> None:
    """Run `rolegate sft COMMAND` in a child process. Raises `RolegateError` if it fails."""
    words = map(str, (sys.executable, "-m", "executor_sft", command, *arguments))
    process = await asyncio.create_subprocess_exec(*words, stdout=sys.stderr)
    if status := await process.wait():
        raise RolegateError(
            f"rolegate sft {command} ended with status {status}; its message is above."
        )


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU time, in seconds, that a process has used since its start, in user mode and in
    the kernel together.
    """
    times = process.cpu_times()
    return float(times.user + times.system)


def own_bytes(process: psutil.Process) -> int:
    """Return the number of bytes of memory that only this process uses (USS)."""
    return int(process.memory_full_info().uss)


@asynccontextmanager
async def watching(process: psutil.Process) -> AsyncIterator[list[tuple[int, int]]]:
    """Sample a process while the context is open. Yield a list to which the samples are appended:
    (bytes of memory, number of open files).
    """
    samples = list[tuple[int, int]]()

    async def sample() -> None:
        while True:
            samples.append((own_bytes(process), process.num_fds()))
            await asyncio.sleep(_SAMPLE_S)

    async with background_tasks(sample()):
        yield samples
