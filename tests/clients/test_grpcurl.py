"""`examples/grpcurl/ask.sh` uses reflection, with grpcurl or grpc_cli, whichever is installed."""

import asyncio
import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.router.edge.wire import locked_gateway
from tests.scripted_gateway import DEAD_QUESTION, DIRECTOR, QUESTION, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("grpcurl") or shutil.which("grpc_cli")),
        reason="neither grpcurl nor grpc_cli is installed",
    ),
]


def asked(*arguments: str) -> tuple[int, list[Any], str]:
    """Return exit status, printed JSON values and errors of a run of the script."""
    command = [str(ROOT / "examples" / "grpcurl" / "ask.sh"), *arguments]
    run = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, timeout=120
    )
    values = []
    rest = run.stdout.strip()
    decoder = json.JSONDecoder()
    while rest:
        value, end = decoder.raw_decode(rest)
        values.append(value)
        rest = rest[end:].lstrip()
    return run.returncode, values, run.stderr


def test_ask_prints_the_whole_response(gateway: str) -> None:
    """Enums have their names, and evidence has its sentences."""
    status, (answer,), _ = asked(gateway, QUESTION)

    assert status == 0
    assert (answer["answer"], answer["outcome"]) == ("in 1943", "ANSWER_OUTCOME_ANSWERED")
    assert answer["results"][0]["subQuery"] == DIRECTOR
    assert [citation["quote"] for citation in answer["citations"]] == [
        "Heat is a film by Michael Mann.",
        "Michael Mann was born in 1943.",
    ]


def test_stream_prints_each_event(gateway: str) -> None:
    """Events are numbered from 1 without gaps, with `done` at the end."""
    status, events, _ = asked(gateway, QUESTION, "StreamAnswer")

    assert status == 0
    assert [int(event["eventNumber"]) for event in events] == list(range(1, len(events) + 1))
    assert "runStarted" in events[0]
    assert events[-1]["done"]["answer"] == "in 1943"


@pytest.mark.parametrize(
    ("question", "method", "message"),
    [
        (" ", "Answer", "question is empty; write a question in plain words."),
        (" ", "StreamAnswer", "question is empty; write a question in plain words."),
        (DEAD_QUESTION, "Answer", "delegation at http://127.0.0.1:9/v1: connection refused"),
    ],
)
def test_an_error_is_printed_with_its_details(
    gateway: str, question: str, method: str, message: str
) -> None:
    """Standard output is empty, and the status is not 0."""
    status, values, errors = asked(gateway, question, method)

    assert status != 0
    assert values == []
    assert message in errors
    assert "google.rpc.ErrorInfo" in errors


async def test_the_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with locked_gateway() as (address, key):
        status, _, errors = await asyncio.to_thread(asked, address, DIRECTOR)
        assert (status != 0, "A key is needed" in errors) == (True, True)
        monkeypatch.setenv("ROLEGATE_API_KEY", key)
        for method in ("Answer", "StreamAnswer"):
            status, values, _ = await asyncio.to_thread(asked, address, DIRECTOR, method)
            assert (status, "Michael Mann" in str(values[-1])) == (0, True)
