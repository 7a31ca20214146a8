"""Use of the checkout as README describes it: `make ask`, and files of the user's own."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_make_ask_asks_the_demo_although_the_checkout_holds_another_config(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "scripts/setup.sh", "rolegate.toml", "ready"):
        (tmp_path / name).touch()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "rolegate"
    command.write_text('#!/bin/sh\necho "$*"\n')
    command.chmod(0o755)

    shown = subprocess.check_output(
        ["make", "--no-print-directory", "ask", f"VENV={tmp_path}", "Q=Who?"],
        cwd=tmp_path,
        text=True,
    )

    assert shown == "ask --preset mini --stream -- Who?\n"


def test_git_ignores_what_a_user_s_first_steps_leave_in_the_checkout(tmp_path: Path) -> None:
    """It ignores these names only at the root."""
    shutil.copy(ROOT / ".gitignore", tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    left = ["rolegate.toml", "index/manifest.json", "rolegate.db", "rolegate.db-wal"]
    others = ["deploy/compose/rolegate.toml", "serving/index/opening.py"]

    shown = subprocess.run(
        ["git", "-C", tmp_path, "check-ignore", *left, *others],
        capture_output=True,
        text=True,
        check=False,
    ).stdout

    assert shown.split() == left
