"""Modules import each other in one direction."""

import runpy

from tests.scripted_gateway import ROOT


def test_tools_have_no_import_circle() -> None:
    """`scripts/size.py` finds no circle that has a module of `serving/tools`."""
    size = runpy.run_path(str(ROOT / "scripts" / "size.py"))
    circles = size["circles"](size["modules"](size["FOLDERS"]))
    assert not [circle for circle in circles if "serving.tools" in circle]
