"""A Ray cluster on this machine, of nodes with one CPU each, and its workers."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import psutil

from tests.conftest import Ended
from tests.scripted_gateway import ROOT

PYTHONPATH = f"{ROOT}:{ROOT / 'protos'}"
_STARTED = "Ray runtime started."


@dataclass
class RayCluster:
    """A running cluster."""

    address: str
    environment: dict[str, str]
    """Environment variables of commands that use the cluster."""
    nodes: list[subprocess.Popen[str]] = field(default_factory=list)

    def add_node(self) -> None:
        """Start another node."""
        self.nodes.append(started(self.environment, f"--address={self.address}"))
        read_until(self.nodes[-1], _STARTED)

    def workers(self) -> list[psutil.Process]:
        """Return the workers that are calling a method."""
        found = []
        for process in (child for node in self.nodes for child in children(node.pid)):
            with suppress(psutil.Error, IndexError):
                if re.match(r"ray::(_Worker|MiniLM)\.", process.cmdline()[0]):
                    found.append(process)
        return found

    async def working(self) -> psutil.Process:
        """Wait until a worker is calling a method, and return it."""
        async with asyncio.timeout(120):
            while not (workers := self.workers()):  # noqa: ASYNC110 - they are not children
                await asyncio.sleep(0.01)
        return workers[0]

    def kill_worker(self) -> None:
        """Kill a worker in the middle of its work."""
        self.workers()[0].kill()

    def kill_node(self, node: int) -> None:
        """Kill all processes of a node."""
        end(self.nodes.pop(node))


def children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        below: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return below
    return []


def end(node: subprocess.Popen[str]) -> None:
    """Kill a node's processes."""
    for pid in (node.pid, *(child.pid for child in children(node.pid))):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.communicate()


def started(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    ray = Path(sys.executable).with_name("ray")
    usual = ("--num-cpus=1", "--disable-usage-stats", "--block")
    return subprocess.Popen(
        [ray, "start", *options, *usual],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """Read the output of a process up to these words, and return it."""
    assert process.stdout
    output = ""
    while words not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    return output


_COMMAND = "import sys; from serving.cli.main import main; sys.exit(main())"


async def start(
    arguments: tuple[object, ...], environment: dict[str, str]
) -> asyncio.subprocess.Process:
    """Start a command in its own process."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _COMMAND, *map(str, arguments)),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(*arguments: object, environment: dict[str, str]) -> Ended:
    """Run a command in its own process; return its exit status and output."""
    process = await start(arguments, environment)
    out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())


@contextmanager
def ray_cluster(nodes: int = 2) -> Iterator[RayCluster]:
    """Start a cluster, and end its processes on exit."""
    # The paths of sockets are short
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": PYTHONPATH,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token_hex(32),
        }
        head = started(
            environment, "--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}"
        )
        cluster = RayCluster("", environment, [head])
        try:
            output = read_until(head, "--address=")
            cluster.address = re.findall(r"--address='([^']+)'", output)[0]
            for _ in range(nodes - 1):
                cluster.add_node()
            yield cluster
        finally:
            for node in reversed(cluster.nodes):
                end(node)
