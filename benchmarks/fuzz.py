"""Fuzzing with atheris, guided by coverage: the readers of what models write (decisions, turns, lists of questions,
answers), of what engines send (server-sent events, chunks), of questions under a scope, and of what clients send to the
gRPC edge. A target fails where it raises anything that is not declared, or gives a value that cannot be; the input that
made it fail is kept, and named. Besides, the readers of models are given a megabyte of everything that repeats.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.cpu_time import cpu_s
from benchmarks.floods import READERS, floods
from benchmarks.fuzz_targets import SEEDS, TARGETS, WORDS
from router.errors import BadConfig
from serving.files import write_atomically

_RUNS = re.compile(r"^Done (\d+) runs", re.MULTILINE)
_SLOWEST = re.compile(r"^slowest (\d+) (.*)$", re.MULTILINE)


class Target(msgspec.Struct, frozen=True):
    """What became of one."""

    name: str
    inputs: int
    seconds: float
    slowest_ms: float
    """Of CPU time, while coverage is watched; 0 where nothing was tried."""
    slowest: str
    """The input that took it."""
    failure: str
    """The end of what it said; empty where it has not failed."""


class Megabyte(msgspec.Struct, frozen=True):
    """The text of a megabyte that one reader takes longest for, and how its time grows."""

    reader: str
    begins: str
    ms: float
    """Of CPU time, without the watch for coverage."""
    over_a_tenth: float
    """The time in those of the tenth of the text; 10 where it is linear."""


class Figures(msgspec.Struct, frozen=True):
    """What was tried."""

    inputs: int
    targets: list[Target]
    megabytes: list[Megabyte]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000, metavar="N", help="over all targets (default: 10⁶)")
    parser.add_argument(
        "--targets",
        nargs="+",
        default=list(TARGETS),
        choices=TARGETS,
        metavar="NAME",
        help=f"of {', '.join(TARGETS)} (default: all)",
    )
    parser.add_argument("--longest", type=int, default=1000, metavar="BYTES", help="of an input (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    parser.add_argument("--keep", type=Path, default=Path(), metavar="DIR", help="for inputs that made one fail")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the figures go")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        raise BadConfig("fuzz: needs atheris, which runs on Linux and x86-64; install rolegate[dev].")
    console = Console()
    targets = []
    for name in given.targets:
        targets.append(_fuzzed(name, -(-given.inputs // len(given.targets)), given))
        console.print(f"{name}: {targets[-1].inputs:,} inputs in {targets[-1].seconds:.0f} s", style="dim")
    figures = Figures(sum(target.inputs for target in targets), targets, [_longest(name) for name in READERS])
    if given.json:
        write_atomically(given.json, msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    _show(figures, console)
    return int(any(target.failure for target in targets))


def _fuzzed(name: str, inputs: int, given: argparse.Namespace) -> Target:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words, corpus = Path(folder, "words"), Path(folder, "corpus")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in WORDS), "utf-8")
        corpus.mkdir()
        for number, seed in enumerate(SEEDS):
            Path(corpus, str(number)).write_bytes(seed)
        options = f"-runs={inputs} -seed={given.seed} -max_len={given.longest} -len_control=0 -dict={words}".split()
        options += [f"-artifact_prefix={given.keep.resolve()}/{name}-", str(corpus)]
        command = [sys.executable, "-m", "benchmarks.fuzz_child", name, *options]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, text=True)  # noqa: S603
    done = _RUNS.search(ran.stdout)
    failure = "" if done and ran.returncode == 0 else ran.stdout[-2000:] or f"ended with code {ran.returncode}"
    took, slowest = (_SLOWEST.findall(ran.stdout) or [("0", "")])[-1]
    return Target(name, int(done[1]) if done else 0, time.monotonic() - begun, int(took) / 1000, slowest, failure)


def _longest(name: str) -> Megabyte:
    read, megabyte = READERS[name], 1_000_000
    text = max(floods(megabyte), key=lambda text: cpu_s(lambda: read(text)))
    whole = min(cpu_s(lambda: read(text)) for _ in range(5))
    tenth = min(cpu_s(lambda: read(text[: megabyte // 10])) for _ in range(5))
    return Megabyte(name, text[:40], 1000 * whole, whole / tenth)


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


def _show(figures: Figures, console: Console) -> None:
    table = Table(title=f"{figures.inputs:,} inputs", title_justify="left")
    table.add_column("target")
    table.add_column("inputs", justify="right")
    table.add_column("a second", justify="right")
    table.add_column("slowest, ms", justify="right")
    table.add_column("failed")
    for target in figures.targets:
        rate = f"{target.inputs / target.seconds:,.0f}"
        failed = "yes" if target.failure else "no"
        table.add_row(target.name, f"{target.inputs:,}", rate, f"{target.slowest_ms:.1f}", failed)
    console.print(table)
    for one in figures.megabytes:
        grown = f"{one.over_a_tenth:.1f} times a tenth of it"
        console.print(f"{one.reader}: {one.ms:.0f} ms for a megabyte at most, {grown}: {one.begins!r}…", markup=False)
    for target in figures.targets:
        if target.failure:
            console.print(f"{target.name}:\n{target.failure}", markup=False, highlight=False)
