"""Modules import each other in one direction."""

import json
import subprocess
import sys

from tests.scripted_gateway import ROOT


def test_tools_have_no_import_circle() -> None:
    """`scripts/size.py` reports no circle among the modules of `serving/tools`."""
    measured = subprocess.run(
        [sys.executable, "scripts/size.py", "--json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    broken = json.loads(measured.stdout)["broken"]
    assert not [line for line in broken if "serving.tools" in line]
