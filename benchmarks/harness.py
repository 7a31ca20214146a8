"""One way to run a benchmark: its options and figures, child processes, meters.

A benchmark is a module with a struct `Options`, whose fields are its command line, and a function
`measure`, from those to a struct of figures. Figures may hold `checks`; where one does not hold,
the exit status is 1.
"""

import asyncio
import inspect
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import msgspec
import psutil
from msgspec import Meta

from executor_sft.command import parse, show
from executor_sft.step import write_json
from router.background import background_tasks
from router.errors import RolegateError
from serving.logs import errors_only

_METER_EVERY_S = 0.1
_LONGEST_LINE = 64 << 20


class Check(msgspec.Struct, frozen=True):
    """Something that has to hold."""

    check: str
    held: bool
    seen: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every benchmark."""

    json: Annotated[Path, Meta(description="where the figures go")] | None = None


def run(name: str, benchmark: ModuleType, arguments: Sequence[str]) -> int:
    """Run a benchmark; 1 where a check did not hold. Raises `RolegateError`."""
    options = parse(benchmark.Options, name, benchmark.__doc__ or "", arguments, group="bench")
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
    """The folder that is to be kept, or one that is deleted at the end."""
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@dataclass(frozen=True, slots=True)
class Child:
    """A child process that has begun."""

    process: asyncio.subprocess.Process
    words: list[str]
    """Of its first line."""
    watched: psutil.Process
    """The same, as it looks from outside."""

    async def answer(self, line: bytes) -> bytes:
        """Send a line to its standard input; the next line of its output. Raises
        `RolegateError` where it has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + b"\n")
        if not (said := await self.process.stdout.readline()):
            raise RolegateError(f"{' '.join(self.words)}: ended before it was told to.")
        return said


@asynccontextmanager
async def child(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Run `python -m module arguments…`, which prints a line when it is ready and goes on until its
    standard input ends. Raises `RolegateError` where it ends before.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        if not (line := await process.stdout.readline()):
            raise RolegateError(
                f"{module} ended before it was ready (code {await process.wait()})."
            )
        yield Child(process, line.decode().split(), psutil.Process(process.pid))
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(slots=True)
class Used:
    """CPU and memory of a process while it was watched; known at the end."""

    cpu_s: float = 0.0
    """In user mode and in the kernel."""
    grown_bytes: int = 0
    """How much more memory of its own it had at most than before."""


def cpu_s(process: psutil.Process) -> float:
    """Seconds of CPU that it has used so far, in user mode and in the kernel."""
    times = process.cpu_times()
    return float(times.user + times.system)


def own_bytes(process: psutil.Process) -> int:
    """Memory that it shares with nobody."""
    return int(process.memory_full_info().uss)


@asynccontextmanager
async def watching(process: psutil.Process, before: int | None = None) -> AsyncIterator[Used]:
    """Measure what a process uses while this is open. `before`: what its memory is compared with,
    in bytes; None for what it has now.
    """
    used = Used()
    begun_s = cpu_s(process)
    before = own_bytes(process) if before is None else before

    async def look() -> None:
        while True:
            await asyncio.sleep(_METER_EVERY_S)
            used.grown_bytes = max(used.grown_bytes, own_bytes(process) - before)

    async with background_tasks(look()):
        yield used
    used.cpu_s = cpu_s(process) - begun_s
