"""Every scenario comes to what was recorded: answers, errors, ledger rows, traces, and what
models were asked.
"""

from typing import Any

import pytest

from tests.contract.conftest import Contract
from tests.contract.names import check, data_now, now, place_now, recorded
from tests.contract.renamed import RENAMED
from tests.contract.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.xdist_group("contract")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, contract: Contract) -> None:
    """It comes to the same."""
    if now("scenarios", scenario.name) is None:
        pytest.skip(f"dropped: {RENAMED['scenarios'][scenario.name]}")
    expected = recorded(f"runs-{scenario.gateway}")[scenario.name]
    found = contract.played[scenario.name]
    for part in ("steps", "runs", "upstream"):
        if now("scenarios", f"{scenario.name}/{part}") is not None:
            section = "upstream" if part == "upstream" else "fields"
            check(
                f"{scenario.name}/{part}",
                found[part],
                [part_now(each, section) for each in expected[part]],
                section,
            )


def part_now(recorded: Any, section: str) -> Any:
    """A step, a run or a request to a model under the names of now."""
    if "trace" in recorded:
        rows = [
            {key: row[key] for key in row if place_now(f"calls.{key}") is not None}
            for row in recorded["calls"]
        ]
        trace = {path: at for path, at in recorded["trace"].items() if place_now(path) is not None}
        recorded = {**recorded, "calls": rows, "trace": trace}
    return data_now(recorded, "http" if isinstance(recorded.get("status"), int) else section)
