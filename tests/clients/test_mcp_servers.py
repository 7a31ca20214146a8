"""Popular MCP servers from registries, unmodified."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from router.errors import ToolFailed
from serving.config.config import ToolServerConfig
from tests.serving.tools.pools import tools_of

pytestmark = pytest.mark.slow
PAGE = "<html><body><h1>Ana</h1><p>Ana was born in Vende.</p></body></html>"


@pytest.fixture
def file_system(tmp_path: Path) -> Path:
    """The program of the file system server."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    named = "@modelcontextprotocol/server-filesystem"
    install = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
        named,
    ]
    installed = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"npm could not install {named}: {installed.stderr.strip()[-300:]}")
    return tmp_path / "node_modules/.bin/mcp-server-filesystem"


async def test_the_fetch_server_returns_markdown() -> None:
    """A missing page is a failure."""
    if importlib.util.find_spec("mcp_server_fetch") is None:
        pytest.skip("mcp-server-fetch is not installed")

    async def page(_request: web.Request) -> web.Response:
        return web.Response(
            text="<html><body><h1>Ana</h1><p>Ana was born in Vende.</p></body></html>",
            content_type="text/html",
        )

    app = web.Application()
    app.router.add_get("/ana", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    command = (
        sys.executable,
        "-m",
        "mcp_server_fetch",
        "--ignore-robots-txt",
        "--allow-private-ips",
    )
    async with tools_of(ToolServerConfig(command=command, allow=("fetch",))) as (tools, _):
        (fetch,) = await tools.available()
        assert "Ana was born in Vende." in (await tools.call(fetch, {"url": f"{address}/ana"})).text
        with pytest.raises(ToolFailed, match="404"):
            await tools.call(fetch, {"url": f"{address}/bel"})
    await runner.cleanup()


async def test_the_file_system_server_reads_its_folder_only(
    file_system: Path, tmp_path: Path
) -> None:
    """Reading other files is a failure."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "ana.txt").write_text("Ana was born in Vende.\n", "utf-8")
    config = ToolServerConfig(command=(str(file_system), str(folder)), allow=("read_text_file",))
    async with tools_of(config) as (tools, _):
        (read,) = await tools.available()
        assert (
            await tools.call(read, {"path": str(folder / "ana.txt")})
        ).text == "Ana was born in Vende.\n"
        with pytest.raises(ToolFailed, match="denied"):
            await tools.call(read, {"path": "/etc/hostname"})
