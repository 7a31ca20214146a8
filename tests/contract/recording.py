"""The recording, and what differs from it.

`CONTRACT_RECORD=1 pytest tests/contract` records it again; its difference in git is then what
callers notice.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"
RECORDING = bool(os.environ.get("CONTRACT_RECORD"))


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """A line for each place where `found` is not what was recorded."""
    if isinstance(expected, dict) and isinstance(found, dict):
        missing = [
            f"{where}/{key}: is missing, was {short(expected[key])}"
            for key in expected
            if key not in found
        ]
        extra = [
            f"{where}/{key}: is new: {short(found[key])}" for key in found if key not in expected
        ]
        lines = missing + extra
        for key in sorted(expected.keys() & found.keys()):
            lines += differences(expected[key], found[key], f"{where}/{key}")
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        lines = []
        if len(expected) != len(found):
            lines.append(f"{where}: {len(found)} entries, were {len(expected)}")
        for number, (before, now) in enumerate(zip(expected, found, strict=False)):
            lines += differences(before, now, f"{where}[{number}]")
        longer = expected if len(expected) > len(found) else found
        word = "is missing" if longer is expected else "is new"
        for number in range(min(len(expected), len(found)), len(longer)):
            lines.append(f"{where}[{number}]: {word}: {short(longer[number])}")
        return lines
    return [] if expected == found else [f"{where}: is {short(found)}, was {short(expected)}"]


def short(value: Any) -> str:
    """One line of it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:300]}…"


@cache
def recorded(name: str) -> Any:
    """A recording."""
    return json.loads((RECORDED / f"{name}.json").read_text("utf-8"))


def record(name: str, value: Any) -> None:
    """Write a recording."""
    (RECORDED / f"{name}.json").write_text(f"{_written(value)}\n", "utf-8")


def _written(value: Any, indent: str = "") -> str:
    """Return JSON in which each value that fits stands on one line."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(indent) + len(text) <= 150 or not isinstance(value, dict | list) or not value:
        return text
    inner = f"{indent} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _written(each, inner) for each in value) + f"\n{indent}]"
    entries = (f"{inner}{json.dumps(key)}: {_written(value[key], inner)}" for key in sorted(value))
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def check(name: str, found: Any, expected: Any) -> None:
    """Compare with what was recorded, and show what differs."""
    lines = differences(expected, found)
    assert not lines, "\n".join([f"{name}: not what was recorded.", *lines[:60]])
