"""The log as JSON."""

import json

import pytest

from router.runs import RequestOptions
from router.trace.identity import Identity
from serving.logs import json_lines
from tests.router.deployment import Deployment


async def test_json_lines_name_run_tenant_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback is text without the values of variables."""
    json_lines()
    identity = Identity("acme", frozenset())
    run = (
        await Deployment()
        .gateway()
        .answer("Who?", RequestOptions(identity=identity, request_id="mine"))
    )
    (stored,) = (
        line
        for line in map(json.loads, capsys.readouterr().out.splitlines())
        if line["event"] == "run.stored"
    )
    about = {
        "run_id": run.id,
        "tenant": "acme",
        "request_id": "mine",
        "status": "finished",
        "level": "info",
    }
    assert about.items() <= stored.items()
    assert stored["timestamp"].endswith("Z")
