"""Which revision of this code is at work."""

import subprocess
from pathlib import Path


def git_revision() -> str:
    """Its commit, with `-dirty` where files were changed since; empty where this code is no git checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - not a shell
    except FileNotFoundError:
        return ""
    return ran.stdout.strip()
