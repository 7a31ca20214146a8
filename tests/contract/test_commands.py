"""Commands, their options, and the JSON that they print are those that were recorded."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.conftest import Contract, printed
from tests.contract.gateway import config_of, shape_of, write_config
from tests.contract.recording import RECORDING, check, record, recorded

pytestmark = pytest.mark.xdist_group("contract")
_LISTED = ("sft", "bench")
"""Of these only the list of subcommands is recorded."""
_RUN_ELSEWHERE = {
    "documents build",
    "documents list",
    "documents upload",
    "runs resume",
    "table",
    "versions register",
}
"""Commands whose JSON is compared by tests of their own."""


def subcommands(text: str) -> list[str]:
    """Those that a help lists."""
    section = re.search(r"^positional arguments:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    return re.findall(r"^    ([a-z][a-z-]*)(?: |$)", section[1], re.MULTILINE) if section else []


def walked(command: str = "") -> Iterator[tuple[str, list[str]]]:
    """Every command with its options."""
    text = printed(*command.split(), "--help")
    yield (
        command,
        sorted(set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z-]*)", text, re.MULTILINE)) - {"--help"}),
    )
    for name in subcommands(text):
        if command in _LISTED:
            yield f"{command} {name}", []
        else:
            yield from walked(f"{command} {name}".strip())


def test_commands() -> None:
    """All of them with their options; of trainings and benchmarks, that they are there."""
    found = dict(walked())
    if RECORDING:
        record("commands", found)
    check("commands", found, recorded("commands"))


@pytest.fixture(scope="module")
def outputs(contract: Contract, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each command prints with `--json`, by the command."""
    gateway = contract.gateways["main"]
    folder = tmp_path_factory.mktemp("commands")
    at = ("--address", gateway.address)
    config = ("--config", str(gateway.config))
    found: dict[str, Any] = {}

    def run(
        command: str, *arguments: str, name: str = "", status: int = 0, flag: str = "--json"
    ) -> Any:
        text = printed(*command.split(), *arguments, *([flag] if flag else []), status=status)
        read = [json.loads(line) for line in text.splitlines() if line.strip()]
        found[name or command] = shape_of(read)
        return read

    asked = run("ask", "@command Which one?", *at)
    run_id = asked[0]["run_id"]
    run("ask", "@command Which one?", "--stream", *at, name="ask --stream")
    run("runs list", "--limit", "3", *at)
    printed("runs", "feedback", run_id, "--right", "--score", "1", *at)
    run("runs show", run_id, *at)
    run("runs watch", run_id, *at)
    run("search", "Which one?", *at)
    run("usage", *at)
    run("usage", "--by", "tenant,role,model,version", "--per", "hour", *at, name="usage --per")
    run("usage reconcile", *at)
    run("versions list", *at)
    run("versions decisions", *at)
    for action in ("shadow", "canary", "off", "promote", "rollback"):
        run(f"versions {action}", "executor-000001", *at)
    run("tenants set", "acme", "--usd-per-day", "1", *config)
    run("tenants list", *config)
    run("tenants show", "acme", *config)
    run("store check", *config)
    run("store upgrade", *config)
    run("store export", str(folder / "store.jsonl"), *config)
    run("check", *config)
    run("check", "--live", *config, name="check --live", status=1)
    # With a store of its own, as the first key shuts a gateway for all who have none.
    copied = ("--config", str(write_config(folder, config_of("main", contract.upstream))))
    run("store import", str(folder / "store.jsonl"), *copied)
    made = run("keys create", "--tenant", "acme", *copied)
    run("keys list", *copied)
    run("keys expire", made[0]["key_id"], "--after", "1d", *copied)
    run("keys limit", made[0]["key_id"], "--requests-per-minute", "9", *copied)
    run("keys rotate", made[0]["key_id"], "--grace", "12h", *copied)
    run("keys revoke", made[0]["key_id"], *copied)
    (folder / "facts.md").write_text("# Facts\n\nFact a is 1.\n")
    embedder = (
        "--embedder-url",
        f"{contract.upstream.url}/embedder/v1",
        "--embedder-model",
        "embedder",
    )
    out = ("--out", str(folder / "index"), "--embedder-dimension", "4")
    run("index build", str(folder / "facts.md"), *out, *embedder)
    file = folder / "runs.jsonl"
    printed("runs", "export", "--out", str(file), "--kind", "answer", *config)
    found["runs export"] = shape_of([json.loads(line) for line in file.read_text().splitlines()])
    return found


def test_json(outputs: dict[str, Any]) -> None:
    """Keys and types of what each prints."""
    if RECORDING:
        record("json", outputs)
    check("json", outputs, recorded("json"))


def test_every_command_with_json_was_run(outputs: dict[str, Any]) -> None:
    """But for those of trainings and benchmarks, and those that need what was published by one."""
    with_json = {name for name, options in recorded("commands").items() if "--json" in options}
    assert with_json - outputs.keys() <= _RUN_ELSEWHERE, "run them above"
