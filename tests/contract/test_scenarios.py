"""Every scenario comes to what was recorded: answers, errors, ledger rows, traces, and what
models were asked.
"""

import pytest

from tests.contract.conftest import Contract
from tests.contract.recording import check, recorded
from tests.contract.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.xdist_group("contract")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, contract: Contract) -> None:
    """It comes to the same."""
    expected = recorded(f"runs-{scenario.gateway}")[scenario.name]
    found = contract.played[scenario.name]
    for part in ("steps", "runs", "upstream"):
        check(f"{scenario.name}/{part}", found[part], expected[part])
