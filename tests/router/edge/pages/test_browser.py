"""Pages in a real browser: Debian's Chromium, without a window."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from router.trace.export import outcome_of
from tests.router.edge.pages.traffic import fill
from tests.router.edge.pages.world import pages
from tests.router.store.stored import put, run

pytestmark = pytest.mark.slow
PICTURES = os.environ.get("PAGES_PICTURES", "")
"""A folder for pictures, to be looked at."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that drive the browser and look for barriers."""
    for program in ("chromium", "node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("browser")
    packages = "playwright-core@1", "axe-core@4"
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
        *packages,
    ]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"npm could not install {packages}: {installed.stderr.strip()[-300:]}")
    return folder


async def test_an_operator_looks_around(modules: Path, tmp_path: Path) -> None:
    """Signs in by keyboard, filters, sees a run appear, promotes a version, and signs out; no
    error, no barrier, and nothing from elsewhere, on any page, wide or narrow, light or dark.
    """
    async with pages(tmp_path, "", "acme", "other") as world:
        runs = await fill(world.database, ("acme", "other"))
        wanted = [
            each for each in runs if "painter" in each.request and outcome_of(each) == "answered"
        ]
        asked = {
            "modules": str(modules),
            "chromium": shutil.which("chromium"),
            "profile": str(tmp_path / "profile"),
            "base": f"http://{world.address}",
            "key": world.keys[""],
            "pictures": PICTURES,
        }
        script = Path(__file__).parent / "browse.mjs"
        browser = await asyncio.create_subprocess_exec(
            "node",
            str(script),
            json.dumps(asked),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert browser.stdout is not None
        assert browser.stderr is not None
        async with asyncio.timeout(240):
            if not await browser.stdout.readline():
                pytest.fail((await browser.stderr.read()).decode())
            newest = "Where is the painter of the night, the newest of all?"
            await put(world.database, run("run-new", time.time(), request=newest, tenant="acme"))
            said, complaints = await browser.communicate()
    assert complaints.decode() == ""
    seen: dict[str, Any] = json.loads(said)
    steps = seen["steps"]
    assert (seen["errors"], seen["requests"]) == ([], [])
    assert [each for each in seen["violations"] if each["impact"] in ("serious", "critical")] == []
    assert (steps["signIn"], steps["signedOut"], steps["after"]) == (
        "/sign-in",
        "/sign-in",
        "/sign-in",
    )
    assert (steps["skip"], steps["hostile"]) == ("Skip to the content", 1)
    assert steps["filtered"] == len(wanted) > 20
    assert steps["newest"] == f"Newest: {newest}"
    assert steps["promoted"] == "active"
