"""Names of the recording as names of now, and what differs between both."""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from tests.contract.renamed import RENAMED, Dropped

RECORDED = Path(__file__).parent / "recorded"
RECORDING = bool(os.environ.get("CONTRACT_RECORD"))


def now(section: str, name: str) -> str | None:
    """What `name` is called now; None where it was dropped."""
    found = RENAMED[section].get(name, name)
    return None if isinstance(found, Dropped) else found


def name_now(section: str, name: str) -> str:
    """As `now`, of what this folder itself has to name."""
    found = now(section, name)
    assert found is not None, (
        f"{section}: {name} was dropped, and the contract cannot be checked without it"
    )
    return found


def data_now(value: Any, section: str = "fields", field: str = "") -> Any:
    """Data of the recording under the names of now; `section` is that of its keys."""
    if isinstance(value, dict):
        named = {}
        for key, each in value.items():
            inside = f"{field}.{key}"
            found = now(section, inside if inside in RENAMED[section] else key)
            if found is not None:
                named[found] = data_now(each, section, key)
        return named
    if isinstance(value, list):
        return [data_now(each, section, field) for each in value]
    if isinstance(value, str):
        word = f"{field}={value}"
        found = now("values", word if word in RENAMED["values"] else value)
        return value if found is None else now("reasons", found)
    return value


def place_now(path: str) -> list[str] | None:
    """Where something stands in a trace now, key by key: by the longest beginning of its path
    that was moved.
    """
    keys = path.split(".")
    for end in range(len(keys), 0, -1):
        head = ".".join(keys[:end])
        if head in RENAMED["trace"]:
            found = now("trace", head)
            return None if found is None else [*found.split("."), *keys[end:]]
    return keys


def is_added(section: str, name: str) -> bool:
    """Whether it came after the recording, on purpose."""
    return f"{section}: {name}" in RENAMED["added"]


def differences(expected: Any, found: Any, where: str = "", section: str = "fields") -> list[str]:
    """A line for each place where `found` is not what was recorded."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lines = [
            f"{where}/{key}: is missing, was {short(expected[key])}"
            for key in expected.keys() - found.keys()
        ]
        extra = [key for key in found.keys() - expected.keys() if not is_added(section, key)]
        lines += [f"{where}/{key}: is new: {short(found[key])}" for key in extra]
        for key in sorted(expected.keys() & found.keys()):
            lines += differences(expected[key], found[key], f"{where}/{key}", section)
        return lines
    if isinstance(expected, list) and isinstance(found, list):
        found = [one for one in found if not (isinstance(one, str) and is_added("values", one))]
        lines = (
            []
            if len(expected) == len(found)
            else [f"{where}: {len(found)} entries, were {len(expected)}"]
        )
        for number, (one, other) in enumerate(zip(expected, found, strict=False)):
            lines += differences(one, other, f"{where}[{number}]", section)
        longer = expected if len(expected) > len(found) else found
        word = "is missing" if longer is expected else "is new"
        return lines + [
            f"{where}[{number}]: {word}: {short(longer[number])}"
            for number in range(min(len(expected), len(found)), len(longer))
        ]
    return [] if expected == found else [f"{where}: is {short(found)}, was {short(expected)}"]


def short(value: Any) -> str:
    """One line of it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 300 else f"{text[:300]}…"


@cache
def recorded(name: str) -> Any:
    """A recording, with the words of now in what is said to people."""
    text = (RECORDED / f"{name}.json").read_text("utf-8")
    for words in RENAMED["texts"]:
        text = text.replace(json.dumps(words)[1:-1], json.dumps(name_now("texts", words))[1:-1])
    return json.loads(text)


def record(name: str, value: Any) -> None:
    """Write a recording."""
    (RECORDED / f"{name}.json").write_text(f"{_written(value)}\n", "utf-8")


def _written(value: Any, indent: str = "") -> str:
    """JSON, with a line for whatever fits into one."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if len(indent) + len(text) <= 150 or not isinstance(value, dict | list) or not value:
        return text
    inner = f"{indent} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _written(each, inner) for each in value) + f"\n{indent}]"
    entries = (f"{inner}{json.dumps(key)}: {_written(value[key], inner)}" for key in sorted(value))
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def check(name: str, found: Any, expected: Any, section: str = "fields") -> None:
    """Compare with what was recorded, in the names of now, and show what differs."""
    lines = differences(expected, found, section=section)
    assert not lines, "\n".join(
        [f"{name}: not what was recorded; tests/contract/renamed.py is the map.", *lines[:60]]
    )
