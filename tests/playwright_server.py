"""Playwright's MCP server from the npm registry, the pages of `examples/browser`, and a worker that
is a few rules.
"""

import fcntl
import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from msgspec.structs import replace

from serving.config.config import Config, ToolServerConfig
from serving.config.file import load_config
from tests.browser import CHROMIUM
from tests.openai_server import served
from tests.router.deployment import report
from tests.scripted_gateway import ROOT

EXAMPLE = ROOT / "examples" / "browser"
NPM = shutil.which("npm")
LACKING = " and ".join(
    name for name, path in (("npm", NPM), ("chromium", CHROMIUM)) if path is None
)
"""Programs that the tests need and this machine lacks; empty if there are none."""
_PLACE = "http://127.0.0.1:8099"


def program() -> str:
    """Install the version that the example names, once for all tests, and return its program."""
    wanted = (EXAMPLE / "package.json").read_bytes()
    folder = Path(tempfile.gettempdir()) / "rolegate-playwright-mcp"
    folder.mkdir(exist_ok=True)
    installed = folder / "installed.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not installed.exists() or installed.read_bytes() != wanted:
            assert NPM
            shutil.copy(EXAMPLE / "package.json", folder)
            subprocess.run(
                [NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts"],
                cwd=folder,
                check=True,
                timeout=300,
                capture_output=True,
            )
            installed.write_bytes(wanted)
    return str(folder / "node_modules" / ".bin" / "playwright-mcp")


def example(folder: Path, place: str) -> Config:
    """Return the config of the example, with pages at `place`. The browser runs in `folder`, and
    without its sandbox, which needs rights that containers lack.
    """
    config = load_config(EXAMPLE / "rolegate.toml")
    browser = config.tools["browser"]
    changed = {
        "--chdir=work": f"--chdir={folder}",
        "../node_modules/.bin/playwright-mcp": program(),
        "--executable-path=/usr/bin/chromium": f"--executable-path={CHROMIUM}",
        f"--allowed-origins={_PLACE}": f"--allowed-origins={place}",
    }
    assert changed.keys() <= set(browser.command)
    command = *(changed.get(part, part) for part in browser.command), "--no-sandbox"
    return replace(config, tools={"browser": replace(browser, command=command)})


def tool_server(folder: Path, place: str, **settings: object) -> ToolServerConfig:
    """Return the tool server of the example with other settings."""
    return replace(example(folder, place).tools["browser"], **settings)


@asynccontextmanager
async def pages(*more: web.RouteDef) -> AsyncIterator[str]:
    """Serve the pages of the example, and `more`; yield their address."""

    async def page(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(EXAMPLE / "pages" / request.match_info["name"])

    async with served(*more, web.get("/{name}", page)) as url:
        yield url.removesuffix("/v1")


def call(tool: str, **arguments: str) -> str:
    """Return a call of a tool, as a model writes it."""
    return f'<call tool="{tool}">{json.dumps(arguments)}</call>'


def browses(texts: Sequence[str]) -> str:
    """Return the next turn of a worker that looks a light's keeper, or a district's superintendent,
    up in the register. `texts`: the messages of its conversation.

    It reads the references of elements in the last snapshot: the row of the district, the record of
    the light, the button that shows it, or the next page.
    """
    _, sub_query, *turns = texts
    sub_query = html.unescape(sub_query)
    if not turns:
        address = re.search(r"http://\S+\w", sub_query)
        assert address
        return call("browser_navigate", url=address[0])

    shown = html.unescape(turns[-1])
    if "### Snapshot" not in shown:
        return call("browser_snapshot")

    light = re.search("lighthouse ([A-Z][a-z]+(?: [A-Z][a-z]+)?)", sub_query)
    district = re.search("district ([A-Z][a-z]+(?: [A-Z][a-z]+)?)", sub_query)
    wanted = light or district
    assert wanted
    name = wanted[1]
    head = name if district else "Keeper"
    if fact := re.search(rf'- (?:cell|rowheader) "{head}" .*\s+- cell "(.+)" .*', shown):
        return report(fact[1], f"{head}: {fact[1]}")
    for link in ("Districts.*" if district else "Lighthouses.*", name, "Show the record", "Next.*"):
        if element := re.search(rf'- (?:link|button) "{link}" .*\[ref=(\w+)\]', shown):
            return call("browser_click", target=element[1])
    return report("not found", "The register does not name it.")
