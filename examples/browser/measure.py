"""Open the twenty records of the example with browsers, and print seconds and memory:

    python measure.py [--workers 4] [--one-program]

Each page is the work of one worker with its own session: it opens the page, presses the button and
reads the record. `--one-program`: all sessions are in one program that is reached over HTTP.
Run it in this folder, while the pages are served at http://127.0.0.1:8099/.
"""

import argparse
import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from router.calls import Readiness
from router.search.tools import Tools
from serving.config.config import ToolServerConfig
from serving.config.file import load_config
from serving.tools.pool import ToolPool, tool_pool

PAGES = "http://127.0.0.1:8099"
PORT = 8931


async def record(tools: Tools, name: str) -> str:
    """Return a page's text after the click."""
    known = {tool.name: tool for tool in await tools.available()}
    await tools.call(known["browser_navigate"], {"url": f"{PAGES}/record.html?light={name}"})
    text = (await tools.call(known["browser_snapshot"], {})).text
    (button,) = re.findall(r'button "Show the record".*\[ref=(\w+)\]', text)
    await tools.call(known["browser_click"], {"target": button})
    return (await tools.call(known["browser_snapshot"], {})).text


def descendants() -> list[Path]:
    """Return the folders in /proc of the processes below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return [Path("/proc") / str(pid) for pid in below - {os.getpid()}]


async def watch(peaks: dict[str, int]) -> None:
    """Keep the highest sums of memory of all programs, in kB. RSS counts shared memory in each
    process, PSS once.
    """
    while True:
        sums = dict.fromkeys(peaks, 0)
        processes = await asyncio.to_thread(descendants)
        for process in processes:
            try:
                lines = (process / "smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            for line in lines:
                name, _, value = line.partition(":")
                if name in sums:
                    sums[name] += int(value.split()[0])
        sums["processes"] = len(processes)
        peaks.update({name: max(peaks[name], value) for name, value in sums.items()})
        await asyncio.sleep(0.1)


@asynccontextmanager
async def pool_of(config: ToolServerConfig, *, one_program: bool) -> AsyncIterator[ToolPool]:
    """Open a pool with the server, started here if it is one program for all sessions."""
    if not one_program:
        async with tool_pool({"browser": config}, Readiness()) as pool:
            yield pool
        return

    program = await asyncio.create_subprocess_exec(
        *config.command, f"--port={PORT}", stderr=asyncio.subprocess.PIPE
    )
    assert program.stderr
    await program.stderr.readline()  # it listens
    config = replace(config, command=(), url=f"http://localhost:{PORT}/mcp")
    try:
        async with tool_pool({"browser": config}, Readiness()) as pool:
            yield pool
    finally:
        program.terminate()
        await program.wait()


async def main(workers: int, more: list[str], *, one_program: bool) -> None:
    """Open the pages, and print the figures."""
    config = load_config(Path("rolegate.toml")).tools["browser"]
    config = replace(config, command=(*config.command, *more), max_in_flight=workers)
    lights = json.loads(Path("pages/data.json").read_text("utf-8"))["lights"]
    peaks = {"Rss": 0, "Pss": 0, "processes": 0}
    seconds = []

    async with pool_of(config, one_program=one_program) as pool:
        await pool.available()
        watcher = asyncio.create_task(watch(peaks))
        places = asyncio.Semaphore(workers)

        async def work(light: dict[str, str]) -> None:
            async with places:
                began = time.monotonic()
                async with pool.session() as tools:
                    assert light["keeper"] in await record(tools, light["name"])
                seconds.append(time.monotonic() - began)

        began = time.monotonic()
        await asyncio.gather(*map(work, lights))
        took_s = time.monotonic() - began
        watcher.cancel()
    print(
        f"{len(lights)} pages, {workers} at a time: {took_s:.1f} s, {sorted(seconds)[10]:.1f} s "
        f"each; at most {peaks['Rss'] / 1000:.0f} MB RSS, {peaks['Pss'] / 1000:.0f} MB PSS, "
        f"{peaks['processes']} processes"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--one-program", action="store_true")
    given, options = parser.parse_known_args()
    asyncio.run(main(given.workers, options, one_program=given.one_program))
