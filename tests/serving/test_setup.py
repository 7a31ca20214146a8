"""`scripts/setup.sh`, which sets up the virtual environment, up to its first installation."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD_PYTHON = """#!/bin/sh
case "$*" in
    *python_version*) echo 3.11.99 ;;
    *"pip --version"*) ;;
    *) exit 1 ;;
esac
"""


def test_what_cannot_be_installed_is_named_with_a_remedy(tmp_path: Path) -> None:
    """The folder has an environment of another Python than PYTHON, in which every installation
    fails.
    """
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(OLD_PYTHON)
    python.chmod(0o755)
    environ = {**os.environ, "PYTHON": sys.executable, "ROLEGATE_INSTALL": "cpu"}

    ended = subprocess.run(
        ["sh", ROOT / "scripts" / "setup.sh", tmp_path / "venv"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    *_, known, missing, remedy = ended.stderr.splitlines()
    assert ended.returncode == 1
    assert "which has Python 3.11.99" in known
    assert f"to use {sys.executable}, run `make clean` first" in known
    assert "has a CPU build of torch" in missing
    assert "PIP_FIND_LINKS" in remedy
    assert "ROLEGATE_INSTALL=gpu" in remedy
