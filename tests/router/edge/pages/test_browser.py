"""Pages in a real browser: Debian's Chromium, headless."""

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
"""A folder for screenshots; empty for none."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages that drive the browser and check accessibility."""
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


async def test_an_operator_can_use_every_page(modules: Path, tmp_path: Path) -> None:
    """The operator signs in by keyboard, filters, sees a run appear, promotes a version, and
    signs out. No page has an error, a serious accessibility violation or a foreign resource,
    wide or narrow, light or dark.
    """
    async with pages(tmp_path, "", "acme", "other") as world:
        runs = await fill(world.database, ("acme", "other"))
        matching_runs = [
            stored_run
            for stored_run in runs
            if "painter" in stored_run.request and outcome_of(stored_run) == "answered"
        ]
        settings = {
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
            json.dumps(settings),
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
            output, complaints = await browser.communicate()
    assert complaints.decode() == ""
    report: dict[str, Any] = json.loads(output)
    steps = report["steps"]
    assert (report["errors"], report["requests"]) == ([], [])
    assert [
        violation
        for violation in report["violations"]
        if violation["impact"] in ("serious", "critical")
    ] == []
    assert (steps["signIn"], steps["signedOut"], steps["after"]) == (
        "/sign-in",
        "/sign-in",
        "/sign-in",
    )
    assert (steps["skip"], steps["hostile"]) == ("Skip to the content", 1)
    assert steps["filtered"] == len(matching_runs) > 20
    assert steps["newest"] == f"Newest: {newest}"
    assert steps["promoted"] == "active"
