"""Every error that a client can cause has the code, the reason and the HTTP status that were
recorded.
"""

import sqlite3
from typing import Any

import pytest

from tests.contract.conftest import Contract
from tests.contract.recording import RECORDING, check, record, recorded
from tests.contract.wire import RPCError

pytestmark = pytest.mark.xdist_group("contract")


def errors_of(played: dict[str, Any]) -> dict[str, Any]:
    """By reason: the codes of gRPC, and statuses and types of the OpenAI-compatible server."""
    found: dict[str, dict[str, set[str]]] = {}

    def note(reason: str, side: str, told: str) -> None:
        found.setdefault(reason, {"grpc": set(), "http": set()})[side].add(told)

    for step in (step for scenario in played.values() for step in scenario["steps"]):
        bodies = [step.get("body"), *step.get("events", [])]
        if isinstance(step.get("error"), dict):
            note(step["error"]["reason"], "grpc", step["error"]["code"])
        for error in (
            body["error"] for body in bodies if isinstance(body, dict) and "error" in body
        ):
            again = ", Retry-After" if step["retry_after"] else ""
            note(error["code"], "http", f"{step['status']} {error['type']}{again}")
    return {
        reason: {side: sorted(each) for side, each in sides.items()}
        for reason, sides in found.items()
    }


def test_a_damaged_store(contract: Contract) -> None:
    """It is told as such; what is damaged here is the trace of one run."""
    gateway = contract.gateways["loose"]
    run = contract.wait(gateway.wire.call("RunService/ListRuns", {"page_size": 1}))["runs"][0][
        "run_id"
    ]
    with sqlite3.connect(gateway.config.parent / "store.db", timeout=10) as database:
        changed = database.execute("UPDATE runs SET trace = x'00' WHERE run_id = ?", [run])
    database.close()
    assert changed.rowcount == 1
    with pytest.raises(RPCError) as caught:
        contract.wait(gateway.wire.call("RunService/GetRun", {"run_id": run}))
    assert (caught.value.code, caught.value.reason) == ("UNAVAILABLE", "STORE_FAILED")


def test_the_table_of_errors(contract: Contract) -> None:
    """Every reason that a scenario causes, and no other."""
    found = errors_of(contract.played)
    if RECORDING:
        record("errors", found)
    check("errors", found, recorded("errors"))
