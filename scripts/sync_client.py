"""Generate the blocking client from the async client: `python scripts/sync_client.py [--check]`.

With `--check`, write nothing; exit with status 1 if the committed file is out of date.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "protos/rolegate/client"
SOURCE = CLIENT / "async_client.py"
TARGET = CLIENT / "client.py"
DOCUMENTS = '''"""Client for blocking programs, generated: edit `async_client.py`, then run
`python scripts/sync_client.py`.
"""'''
RULES = (
    (r'\A""".*?"""', DOCUMENTS),
    (r"\b(?:async|await) ", ""),
    (r"\bCoroutine\[Any, Any, (\w+)\]", r"\1"),
    (r"\bAsync(Chat|Client|Stream|Iterator)\b", r"\1"),
    (r"\b__a(iter|enter|exit)__\b", r"__\1__"),
    (r"\bgrpc\.aio\b", "grpc"),
)
"""Pairs (regular expression, replacement). Applied in order, they turn the source of the async
client into the source of the blocking client.
"""


def blocking(source: str) -> str:
    """Return the source of the blocking client. `source`: source of the async client."""
    for pattern, replacement in RULES:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL)
    for command in (["check", "--fix", "--unsafe-fixes", "--exit-zero"], ["format"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--silent",
            "--stdin-filename",
            str(TARGET),
            "-",
        ]
        source = subprocess.run(  # noqa: S603 - ruff, with our own arguments
            ruff, input=source, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    return source


def main() -> int:
    """Write the blocking client; with `--check`, compare it. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":", maxsplit=1)[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file is out of date"
    )
    given = parser.parse_args()

    fresh = blocking(SOURCE.read_text(encoding="utf-8"))
    if not given.check:
        TARGET.write_text(fresh, encoding="utf-8")
    elif TARGET.read_text(encoding="utf-8") != fresh:
        print(f"{TARGET.name} is out of date; run `python scripts/sync_client.py`.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
