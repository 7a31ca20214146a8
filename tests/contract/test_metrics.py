"""Metrics have the names, types and labels that were recorded."""

import re
from collections import defaultdict
from urllib.request import urlopen

import pytest

from tests.contract.conftest import Contract
from tests.contract.recording import RECORDING, check, record, recorded

pytestmark = pytest.mark.xdist_group("contract")


def families_of(text: str) -> dict[str, list[str]]:
    """By name: the type, then the names of labels in order."""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    labels: dict[str, set[str]] = defaultdict(set)
    for name, inside in re.findall(r"^([a-z_:]+)(?:\{(.*)\})? ", text, re.MULTILINE):
        family = name if name in types else re.sub(r"_(bucket|sum|count|total|created)$", "", name)
        labels[family].update(set(re.findall(r'(\w+)="', inside)) - {"le"})
    return {
        name: [kind, *sorted(labels[name])]
        for name, kind in types.items()
        if not name.endswith("_created")
    }


def test_metrics(contract: Contract) -> None:
    """All of them, after all scenarios."""
    found: dict[str, list[str]] = {}
    for gateway in contract.gateways.values():
        with urlopen(f"http://{gateway.metrics}/metrics", timeout=10) as response:
            for name, (kind, *labels) in families_of(response.read().decode()).items():
                found[name] = [kind, *sorted({*found.get(name, [kind])[1:], *labels})]
    if RECORDING:
        record("metrics", found)
    check("metrics", found, recorded("metrics"))
