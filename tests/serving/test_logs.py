"""The log as JSON."""

import json
import subprocess
import sys

import pytest

from router.runs import RequestOptions
from router.trace.identity import Identity
from serving.logs import json_lines
from tests import scripted_gateway
from tests.router.deployment import Deployment


async def test_json_lines_name_run_tenant_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is text without the values of variables."""
    json_lines()
    identity = Identity("acme", frozenset())
    run = (
        await Deployment()
        .gateway()
        .answer("Who?", RequestOptions(identity=identity, request_id="mine"))
    )
    (stored,) = (
        line
        for line in map(json.loads, capsys.readouterr().out.splitlines())
        if line["event"] == "run.stored"
    )
    about = {
        "run_id": run.id,
        "tenant": "acme",
        "request_id": "mine",
        "status": "finished",
        "level": "info",
    }
    assert about.items() <= stored.items()
    assert stored["timestamp"].endswith("Z")


LIBRARY = """
import asyncio, logging, warnings
from serving.logs import json_lines

json_lines()
try:
    raise ValueError("two\\nlines")
except ValueError:
    logging.getLogger("library").exception("It \\x1b[31mfailed.")
warnings.warn("old")

async def failing():
    raise OSError("lost")

async def main():
    asyncio.ensure_future(failing())
    await asyncio.sleep(0)

asyncio.run(main())
"""


def test_records_of_libraries_are_json_lines_too() -> None:
    """So are warnings, and errors of tasks for which nothing waits."""
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY],
        env=scripted_gateway.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["logger"], line["level"]) for line in lines] == [
        ("library", "error"),
        ("py.warnings", "warning"),
        ("asyncio", "error"),
    ]
    assert lines[0]["event"] == "It \x1b[31mfailed."
    assert lines[0]["exception"].endswith("ValueError: two\nlines")
    assert done.stderr == ""
