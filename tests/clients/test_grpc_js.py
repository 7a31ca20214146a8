import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.router.edge.wire import locked_gateway
from tests.scripted_gateway import BORN, DIRECTOR, QUESTION, ROOT

pytestmark = pytest.mark.slow
EXAMPLE = Path("examples", "javascript")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, with the official gRPC packages for Node.js installed."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    root = tmp_path_factory.mktemp("grpc_js")
    for part in (EXAMPLE, "protos"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("node_modules"))
    folder = root / EXAMPLE
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--fetch-retries=0",
        "--fetch-timeout=20000",
    ]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if installed.returncode != 0:
        pytest.skip(f"npm could not install @grpc/grpc-js: {installed.stderr.strip()[-300:]}")
    return folder


def called(client: Path, *arguments: str, program: str = "ask.mjs") -> tuple[int, list[Any]]:
    """Return exit status and printed JSON of a run of an example."""
    command = ["node", str(client / program), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert run.stderr == ""
    return run.returncode, [json.loads(line) for line in run.stdout.splitlines()]


def test_ask_prints_the_whole_response(client: Path, gateway: str) -> None:
    """Enums have their names; the response has evidence, citations, and tokens by role."""
    status, (answer,) = called(client, gateway, QUESTION)

    assert status == 0
    assert (answer["answer"], answer["outcome"]) == ("in 1943", "ANSWER_OUTCOME_ANSWERED")
    assert [result["sub_query"] for result in answer["results"]] == [DIRECTOR, BORN]
    (point,) = answer["results"][0]["evidence"]
    assert point["text"] == "Heat is a film by Michael Mann."
    quote = "Heat is a film by Michael Mann."
    assert point["citations"] == [
        {"passage_id": "p1", "title": "Heat", "document": "", "quote": quote, "location": ""}
    ]
    spent = {usage["role"]: usage["attempts"] for usage in answer["usage"]}
    assert spent == {"ROLE_DELEGATION": 3, "ROLE_EXECUTION": 4, "ROLE_ANSWER": 1}


def test_stream_prints_each_event(client: Path, gateway: str) -> None:
    """Events are numbered from 1 without gaps, with `done` at the end."""
    status, events = called(client, gateway, QUESTION, "stream")

    one_round = ["round_started", "sub_query_dispatched", "search_done", "reported"]
    kinds = [event["event"] for event in events if event["event"] != "answer_delta"]
    written = [event["answer_delta"]["text"] for event in events if "answer_delta" in event]
    assert status == 0
    assert "".join(written) == "in 1943"
    assert kinds == [
        "run_started",
        *one_round,
        *one_round,
        "round_started",
        "answer_written",
        "usage_counted",
        "done",
    ]
    assert [event["event_number"] for event in events] == list(range(1, len(events) + 1))
    assert events[3]["search_done"] == {"index": 0, "query": DIRECTOR, "titles": ["Heat"]}
    assert events[-1]["done"]["answer"] == "in 1943"


@pytest.mark.parametrize("method", ["answer", "stream"])
def test_a_refusal_prints_code_reason_and_remedy(client: Path, gateway: str, method: str) -> None:
    """They are printed for people and for programs."""
    status, (error,) = called(client, gateway, " ", method)

    assert status == 1
    assert error == {
        "code": "INVALID_ARGUMENT",
        "message": "question is empty; write a question in plain words.",
        "reason": "BAD_REQUEST",
        "domain": "rolegate",
        "metadata": {},
    }


def test_a_table_prints_a_line_per_row_or_event(client: Path, gateway: str) -> None:
    """Impossible columns are refused."""
    arguments = ("the cities of Vorland", "city*, founder, founded:integer")
    table = "table.mjs"
    status, (first, second) = called(client, gateway, *arguments, program=table)
    assert status == 0
    assert [first[name]["value"] for name in ("city", "founder", "founded")] == [
        "Krurou",
        "Ana",
        "1200",
    ]
    assert second["founded"] == {
        "value": "900",
        "state": "CELL_STATE_SINGLE",
        "said": ["Bel was founded in 900."],
    }

    status, events = called(client, gateway, *arguments, "stream", program=table)
    assert (status, [event["event_number"] for event in events]) == (
        0,
        list(range(1, len(events) + 1)),
    )
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1], "row_changed" in kinds) == ("run_started", "done", True)
    assert len(events[-1]["done"]["rows"]) == 2

    status, (error,) = called(client, gateway, arguments[0], "city, founder", program=table)
    assert (status, error["reason"], "no key column given" in error["message"]) == (
        1,
        "BAD_REQUEST",
        True,
    )


async def test_the_key_is_read_from_the_environment(
    client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with locked_gateway() as (address, key):
        status, (error,) = await asyncio.to_thread(called, client, address, DIRECTOR)
        assert (status, error["reason"]) == (1, "NO_KEY")
        monkeypatch.setenv("ROLEGATE_API_KEY", key)
        for method in ("answer", "stream"):
            status, values = await asyncio.to_thread(called, client, address, DIRECTOR, method)
            assert (status, "Michael Mann" in str(values[-1])) == (0, True)
