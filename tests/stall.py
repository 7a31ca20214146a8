"""How long one input keeps a gateway from answering others.

The gateway runs in a process, and a second process requests its `GET /health` every few
milliseconds while an input is sent. In a test or a script:

    with serving("tests.router.table.huge:scene") as served:
        with watched(served) as stall:
            ...  # send one input, and wait until it is done
    print(stall)  # GET /health 21.4 ms (control 2.1 ms), event loop held 18.0 ms of CPU

`stall.health_s` is the longest wait of `GET /health`. `stall.control_s` is the longest wait, at the
same time and from the same process, of a server that does nothing else: the delay by other work on
this machine. `stall.held_s` is the longest CPU time of one step of the gateway's event loop, to
which other processes add nothing. A step that waits for threads with the GIL shows in `health_s`
alone.

`python tests/stall.py FILE [WORD…]` prints these for the `INPUTS` of a Python file
(tests/router/edge/stalls.py), or for those with a word in their names; FILE may name another scene
as `SCENE`. It measures the checkout of the working directory, so that another checkout can be
measured with the same inputs.
"""

import asyncio
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass
from math import nan
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

_HERE = Path(__file__).resolve()
_ROOT = Path.cwd() if __name__ == "__main__" else _HERE.parents[1]
_EVERY_S = 0.003
_TICK_S = 0.001
_PATIENCE_S = float(os.environ.get("STALL_PATIENCE_S", "60"))
_ENDING_S = 30
_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_REPLY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Served(NamedTuple):
    """Addresses of a gateway, as host:port."""

    grpc: str
    http: str
    process: Any = None
    """Gateway's process; None inside of it."""


@dataclass
class Stall:
    """The longest waits during an input, in seconds."""

    health_s: float = 0.0
    control_s: float = 0.0
    held_s: float = 0.0

    def __str__(self) -> str:
        health, control, held_ms = (
            f"{1000 * seconds:.1f} ms" for seconds in (self.health_s, self.control_s, self.held_s)
        )
        return f"GET /health {health} (control {control}), event loop held {held_ms} of CPU"


Input = Callable[[Served], Awaitable[object]]
"""Function that sends something, and returns a result to print."""


@asynccontextmanager
async def scene() -> AsyncIterator[Served]:
    """A gateway of scripted models, with all its servers, that answers and fills tables without
    keys.
    """
    from router.edge.grpc.server import Server
    from router.edge.grpc.services import RunServicer
    from router.edge.grpc.table_service import TableServicer
    from router.edge.http.openai_server import openai_app
    from router.edge.http.server import HTTPServer
    from router.edge.pages import Site
    from router.edge.pages.asking import add_asking
    from router.edge.pages.run import RunPages
    from router.edge.pages.runs import add_runs
    from router.edge.running import Detached
    from router.runs import Runs
    from router.runs.live import LiveRuns
    from serving.retrieval.services import RetrievalServicer
    from tests.router.accounts import open_access
    from tests.router.table.small_world import World, gateway
    from tests.router.unfiltered import Unfiltered

    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world = World(4)
        filling, archive = await stack.enter_async_context(gateway(folder, world))
        runs = Runs(archive, LiveRuns())
        server = Server(
            filling,
            RetrievalServicer(Unfiltered(world)),
            RunServicer(runs),
            TableServicer(filling, runs, open_access()),
        )
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.drain, 0)
        site = Site(open_access())
        add_runs(site, runs)
        add_asking(site, filling, Detached(open_access()), runs=runs)
        RunPages(site, runs)
        door = HTTPServer(openai_app(filling, open_access(), pages=site), 0.0)
        address = await door.start("127.0.0.1:0", "http")
        stack.push_async_callback(door.drain)
        yield Served(f"127.0.0.1:{port}", address)


@contextmanager
def serving(name: str = "tests.stall:scene") -> Iterator[Served]:
    """Run a scene, given as `module:function`, in another process."""
    with _child("serve", name) as (process, addresses):
        grpc, http = addresses.split()
        yield Served(grpc, http, process)


@contextmanager
def watched(served: Served) -> Iterator[Stall]:
    """Watch a gateway while the block runs; the result has its figures afterwards."""
    stall = Stall()
    with _child("control") as (_, idle), _child("watch", served.http, idle) as (watch, _):
        held_s(served)
        yield stall
        stall.health_s, stall.control_s = map(float, _said(watch, "end").split())
        stall.held_s = held_s(served)


def held_s(served: Served) -> float:
    """Return the longest step of a gateway's event loop since the last call, in seconds of CPU; nan
    if the gateway has ended.
    """
    return float(_said(served.process, "held") or nan) if served.process.poll() is None else nan


def _said(process: "subprocess.Popen[str]", word: str = "") -> str:
    """Send a word to a process, and return its next line."""
    assert process.stdin is not None
    assert process.stdout is not None
    if word:
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
    return process.stdout.readline()


@contextmanager
def _child(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a part of this file in a process, which ends with its standard input; yield it and its
    first line.
    """
    command = [sys.executable, str(_HERE), f"--{arguments[0]}", *arguments[1:]]
    path = os.pathsep.join((str(_ROOT), str(_ROOT / "protos")))
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        env=environment,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process, _said(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()


class _Loop:
    """The longest step of an event loop, in seconds of CPU of its thread."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def follow(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            before = now


async def _serve(name: str) -> None:
    from serving.signals import tune_interpreter

    loop = _Loop()
    out = sys.stdout
    following = asyncio.create_task(loop.follow())
    with redirect_stdout(sys.stderr):  # which has the log meanwhile
        async with resolve_name(name)() as served:
            tune_interpreter()  # as `rolegate serve` does
            print(served.grpc, served.http, file=out, flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(loop.longest_s, file=out, flush=True)
                loop.longest_s = 0.0
    following.cancel()


async def _control() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(len(_REQUEST)):
            writer.write(_REPLY)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def _watch(*addresses: str) -> None:
    ending = threading.Event()
    longest = dict.fromkeys(addresses, 0.0)

    def ask(address: str) -> None:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            while not ending.is_set():
                begun = time.monotonic()
                answered = False
                with suppress(OSError):
                    connection.sendall(_REQUEST)
                    answered = connection.recv(65536).startswith(b"HTTP/1.1 200")
                longest[address] = max(longest[address], time.monotonic() - begun)
                if not answered:  # the gateway was killed
                    return
                ending.wait(_EVERY_S)

    asking = [threading.Thread(target=ask, args=(address,)) for address in addresses]
    for thread in asking:
        thread.start()
    print("watching", flush=True)
    sys.stdin.readline()
    ending.set()
    for thread in asking:
        thread.join()
    print(*longest.values(), flush=True)


async def _report(inputs: Mapping[str, Input], scene_name: str) -> None:
    """Print the stall of each input, each with a new gateway."""
    for name, send in inputs.items():
        with serving(scene_name) as served:
            with watched(served) as stall:
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        outcome = await send(served)
                except TimeoutError:
                    outcome = f"no answer within {_PATIENCE_S} s"
                    served.process.kill()
            print(f"{name}: {stall}; {' '.join(str(outcome).split())[:160]}", flush=True)


if __name__ == "__main__":
    sys.path[:1] = [str(_ROOT), str(_ROOT / "protos")]  # instead of this folder
    if _HERE.parents[1] != _ROOT:  # another checkout, which may lack the scenes of this one
        import tests

        tests.__path__.append(str(_HERE.parent))
    what, *rest = sys.argv[1:]
    match what:
        case "--serve":
            asyncio.run(_serve(rest[0]))
        case "--control":
            asyncio.run(_control())
        case "--watch":
            _watch(*rest)
        case _:
            given = runpy.run_path(what)
            chosen = {
                name: send
                for name, send in given["INPUTS"].items()
                if all(word in name for word in rest)
            }
            asyncio.run(_report(chosen, given.get("SCENE", "tests.stall:scene")))
