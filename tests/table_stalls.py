"""Large tables with many watchers: `python tests/stall.py tests.table_stalls.py`."""

import asyncio
import html
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
from rolegate.v1 import run_service_pb2 as run_pb
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

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
from router.models import Prompt
from router.protocol import Passage
from router.runs import Runs
from router.table import TableLimits
from tests.router.accounts import open_access
from tests.router.table.small_world import ENOUGH, gateway, written
from tests.scripted_model import ScriptedModel
from tests.stall import Input, Served

SCENE = "tests.table_stalls:scene"
ROWS = 2000
WIDE = 64
LISTED = 5000
VIEWERS = 20
_LIMIT = [("grpc.max_receive_message_length", 1 << 30)]
_CITY = re.compile(r"City (\d+)")
_LIST = re.compile(r"list (\d+)")


class Register:
    """A retriever of pages of cities, with a sentence for each column."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        await asyncio.sleep(0)
        return [[self._page(query)] for query in queries]

    @staticmethod
    def _page(query: str) -> Passage:
        city = _CITY.search(query)
        name = f"City {city[1]}" if city else "Register"
        sentences = (
            " ".join(f"The c{at} of {name} is v{at}." for at in range(1, WIDE))
            if city
            else "Cities are listed."
        )
        return Passage(name, name, sentences, document=name)


class Reader(ScriptedModel):
    """A model that searches once, and reports what the sub-query asks for."""

    def __init__(self) -> None:
        super().__init__(self._write, "small")
        self.held: asyncio.Event | None = None

    async def complete(self, prompt: Prompt) -> Any:
        await asyncio.sleep(0)
        completion = await super().complete(prompt)
        self.prompts.clear()
        return completion

    @staticmethod
    def _write(prompt: Prompt) -> str:
        sub_query = html.unescape(prompt.messages[1].content)
        if len(prompt.messages) == 2:
            return f"<search>{prompt.messages[1].content[:60]}</search>"
        if listed := _LIST.search(sub_query):
            first = int(listed[1]) * LISTED
            return written("\n".join(f"- City {number}" for number in range(first, first + LISTED)))
        columns = re.findall(r"^- (c\d+): ", sub_query, re.MULTILINE) or re.findall(
            r"the (c\d+) of", sub_query
        )
        if len(columns) == 1:
            return written(columns[0].replace("c", "v"))
        return written("\n".join(f"{name}: {name.replace('c', 'v')}" for name in columns))


def _leads(prompt: Prompt) -> str:
    asks = "".join(
        f'<ask column="c{at}">What is the c{at} of {{city}}?</ask>' for at in range(1, 5)
    )
    if len(prompt.messages) > 2:
        return ENOUGH
    return (
        "<search>["
        + ", ".join(f'"Which cities has list {number}?"' for number in range(4))
        + f"]</search>{asks}"
    )


@asynccontextmanager
async def scene() -> AsyncIterator[Served]:
    """A gateway that fills such tables."""
    limits = TableLimits(
        width=16,
        cells_per_ask=int(os.environ.get("CELLS", "0")),
        max_tasks=int(os.environ.get("TASKS", "3000")),
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        filling, archive = await stack.enter_async_context(
            gateway(
                folder,
                Register(),
                Reader(),
                ScriptedModel(_leads, "backbone"),
                limits=limits,
                report_chars=200_000,
            )
        )
        live = filling.lifecycle.live
        runs = Runs(archive, live)
        server = Server(
            filling, None, RunServicer(runs), TableServicer(filling, runs, open_access())
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


def wanted(rows: int = ROWS, columns: int = WIDE, **more: Any) -> pb.FillTableRequest:
    named = [
        pb.Column(name="city", key=True),
        *(pb.Column(name=f"c{at}") for at in range(1, columns)),
    ]
    given = [pb.GivenRow(values=[f"City {at}", *[""] * (columns - 1)]) for at in range(rows)]
    return pb.FillTableRequest(
        question="the cities", columns=named, rows=given, closed=rows > 0, detached=True, **more
    )


def _cpu(served: Served) -> tuple[float, float]:
    """Return seconds of CPU, and the most memory in MB, of the gateway."""
    stat = Path(f"/proc/{served.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    memory = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{served.process.pid}/status").read_text())
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"), int(
        memory[1]
    ) / 1024 if memory else 0


def filled(request: pb.FillTableRequest, viewers: str = "") -> Input:
    """Fill a table to its end. `viewers` is the view of 20 watchers, meanwhile or after its end."""

    async def send(served: Served) -> str:
        cpu = _cpu(served)[0]
        begun = time.monotonic()
        views = 0
        async with (
            grpc.aio.insecure_channel(served.grpc, _LIMIT) as channel,
            aiohttp.ClientSession(
                f"http://{served.http}", timeout=aiohttp.ClientTimeout(None)
            ) as http,
        ):
            run_id = (await TableServiceStub(channel).FillTable(request)).run_id

            async def look() -> None:
                nonlocal views
                while True:
                    await _view(viewers, run_id, channel, http)
                    views += 1
                    await asyncio.sleep(1)

            tasks = [
                asyncio.create_task(look()) for _ in range(VIEWERS if "running" in viewers else 0)
            ]
            async for _event in RunServiceStub(channel).WatchRun(
                run_pb.WatchRunRequest(run_id=run_id)
            ):
                pass
            took = time.monotonic() - begun
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if "finished" in viewers:
                await asyncio.gather(
                    *(_view(viewers, run_id, channel, http) for _ in range(VIEWERS))
                )
                views = VIEWERS
        after = _cpu(served)
        whole = time.monotonic() - begun
        spent = after[0] - cpu
        return (
            f"{took:.1f} s, {views} views, all {whole:.1f} s, CPU {spent:.1f} s, {after[1]:.0f} MB"
        )

    return send


_PAGES = {"page": "", "cell": "/cells/0/1", "agent": "/agents/execution-0"}
_PAGES |= {kind: f"/table.{kind}" for kind in ("csv", "json", "md")}


async def _view(kind: str, run_id: str, channel: Any, http: aiohttp.ClientSession) -> None:
    if kind.startswith("GetTable"):
        await TableServiceStub(channel).GetTable(pb.GetTableRequest(run_id=run_id))
    elif kind.startswith("WatchRun"):
        async for _event in RunServiceStub(channel).WatchRun(run_pb.WatchRunRequest(run_id=run_id)):
            pass
    else:
        headers = {"HX-Request": "true"} if "running" in kind else {}
        async with http.get(
            f"/runs/{run_id}{_PAGES[kind.split(maxsplit=1)[0]]}", headers=headers
        ) as response:
            await response.read()


INPUTS: dict[str, Input] = {
    "small 200 x 8": filled(wanted(200, 8)),
    "4a 2000 x 64 filled": filled(wanted()),
    "4b 2000 x 4 filled": filled(wanted(2000, 4)),
    "4c lists of 5000 rows": filled(wanted(0, 4)),
    "5a pages running": filled(wanted(1000, 64), "page running"),
    "5b GetTable running": filled(wanted(1000, 64), "GetTable running"),
    "5c WatchRun running": filled(wanted(1000, 64), "WatchRun running"),
    "5d pages finished": filled(wanted(), "page finished"),
    "5e GetTable finished": filled(wanted(), "GetTable finished"),
    "5f cell finished": filled(wanted(), "cell finished"),
    "5g csv finished": filled(wanted(), "csv finished"),
    "5h json finished": filled(wanted(), "json finished"),
    "5i agents finished": filled(wanted(), "agent finished"),
    "5j md finished": filled(wanted(), "md finished"),
}
