"""Take pictures of the gateway's pages: `python -m scripts.pictures docs/pages [--at
http://127.0.0.1:50580 --path /runs …]`.

Without `--at`, a gateway with scripted models is started for the pictures
(`tests/router/edge/pages/demo.py`). Needs Chromium.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.browser import browsing_tab

PAGES = (
    "/runs", "/runs/run-reading", "/runs/run-delegation", "/runs/run-executor",
    "/runs/run-answering",
    "/runs/run-reading/agents/execution-2",
    "/runs/run-table", "/runs/run-table/cells/1/2", "/ask", "/ask/run-right",
)  # fmt: skip
WIDTHS = (1280, 390)


@asynccontextmanager
async def demo() -> AsyncIterator[str]:
    """Run the gateway with scripted models, and yield the URL of its pages. Stop it on exit."""
    command = (sys.executable, "-m", "tests.router.edge.pages.demo")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield f"http://{(await process.stdout.readline()).decode().strip()}"
    finally:
        process.stdin.close()
        await process.wait()


async def take(
    address: str, folder: Path, paths: Sequence[str], widths: Sequence[int], themes: Sequence[str]
) -> None:
    """Write a PNG into `folder` for each page, width and theme. Print the errors of the browser's
    console.
    """
    async with browsing_tab() as tab:
        for path in paths:
            for width in widths:
                for theme in themes:
                    await tab.look(width, dark=theme == "dark")
                    await tab.open(address + path)
                    name = path.strip("/").replace("/", "-") or "first"
                    (folder / f"{name}-{width}-{theme}.png").write_bytes(await tab.picture())
        print("\n".join(tab.complaints) or f"{folder}: pictures taken; no errors in the console")


async def main() -> None:
    """Read the options and take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--at", default="", help="URL of a gateway's pages (default: start the demo gateway)"
    )
    parser.add_argument("--path", nargs="*", default=PAGES)
    parser.add_argument("--width", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--theme", nargs="*", default=("light", "dark"), choices=("light", "dark"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    options = (given.folder, given.path, given.width, given.theme)
    if given.at:
        await take(given.at, *options)
    else:
        async with demo() as address:
            await take(address, *options)


if __name__ == "__main__":
    asyncio.run(main())
