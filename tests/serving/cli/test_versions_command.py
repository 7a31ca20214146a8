"""`rolegate versions` with real servers, and the client below it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import structlog
from rolegate.client import Client

from router.administration import Auditor
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer
from router.store import Database, SQLAccounts, SQLVersionBook
from router.versions import GateRule, Versions
from router.versions.book import Judgement, Side, Trial
from serving.cli.main import main
from serving.logs import errors_only
from tests.router.store.stored import put, run

BASE = "mini-executor"
FIRST = "executor-000001"
Command = Callable[..., Awaitable[tuple[int, list[str]]]]


async def load(name: str) -> str:
    return json.dumps({"version": name})


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    """A store."""
    database = await Database.open(f"sqlite:///{tmp_path / 'versions.db'}")
    yield database
    await database.close()


@pytest.fixture
async def address(database: Database) -> AsyncIterator[str]:
    """Address of a server of versions; the base is active."""
    versions = Versions(SQLVersionBook(database), load, GateRule(0.05, 0.05, 2.0, 10_000))
    await versions.ensure_base(BASE)
    server = Server(
        None, None, ExecutorVersionServicer(versions, Auditor(SQLAccounts(database), "grpc"))
    )
    yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    await server.drain(0)


@pytest.fixture
def command(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Function that runs a command and returns its status and output lines, with single spaces."""
    monkeypatch.setenv("COLUMNS", "200")
    errors_only()  # the server is in this process, and its log is not part of the command's output

    async def run_(*arguments: str) -> tuple[int, list[str]]:
        status = await asyncio.to_thread(main, ["versions", *arguments, "--address", address])
        printed = capsys.readouterr()
        return status, [
            " ".join(line.split())
            for line in (printed.out + printed.err).splitlines()
            if line.strip()
        ]

    yield run_
    structlog.reset_defaults()


async def test_each_command_shows_the_version_s_new_state(command: Command) -> None:
    for arguments, output in (
        (["register", FIRST], f"{FIRST} is registered now"),
        (["shadow", FIRST], f"{FIRST} is shadow now"),
        (["canary", FIRST], f"{FIRST} is canary 20% now"),
        (["canary", FIRST, "--share", "0.5"], f"{FIRST} is canary 50% now"),
        (["off", FIRST], f"{FIRST} is registered now"),
        (["promote", FIRST], f"{FIRST} is active now"),
        (["rollback", FIRST], f"{BASE} is active now"),
    ):
        assert await command(*arguments) == (0, [output])
    _, lines = await command("list")
    assert [line.split()[:2] for line in lines[2:]] == [[FIRST, "rolled"], [BASE, "active"]]
    _, lines = await command("decisions", FIRST, "--after", "6")
    assert [line.split()[4:6] for line in lines[2:]] == [
        ["stop", "operator"],
        ["promote", "operator"],
        ["roll_back", "operator"],
    ]


async def test_a_trial_shows_both_versions_figures(command: Command, database: Database) -> None:
    """They are in columns next to each other; JSON has the evidence."""
    await command("register", FIRST)
    _, (line,) = await command("shadow", FIRST, "--json")
    assert json.loads(line)["state"] == "EXECUTOR_VERSION_STATE_SHADOW"
    book = SQLVersionBook(database)
    since = (await book.versions())[0].state_at
    await put(database, run("run-1"), run("run-2"))
    for run_id in ("run-1", "run-2"):
        await book.add_trial(
            Trial(
                run_id,
                FIRST,
                BASE,
                "shadow",
                False,
                Side("a", False, 600),
                Side("b", run_id == "run-2", 1000),
                since + 1,
            )
        )
    await book.judge("run-1", Judgement(True, False, "judge"))
    _, lines = await command("list")
    assert lines[2].endswith(" 2 1/0 of 1 0/1 600/1,000")
    assert any(line.strip().startswith("a/b: the version / the active version") for line in lines)
    _, lines = await command("list", "--json")
    figures = json.loads(lines[0])["figures"]
    assert (figures["trials"], figures["active_failed"], figures["evidence"][0]["measure"]) == (
        "2",
        "1",
        "correctness",
    )
    assert "figures" not in json.loads(lines[1])


async def test_a_refusal_is_one_line(command: Command) -> None:
    """The status is 1."""
    assert await command("promote", BASE) == (
        1,
        [f"rolegate: version '{BASE}': is active already, so nothing has changed."],
    )
    status, lines = await command("canary", FIRST, "--share", "2")
    assert (status, lines) == (
        1,
        ["rolegate: canary_share must be above 0 and at most 1, got 2."],
    )


async def test_decisions_are_json_lines(command: Command) -> None:
    """The field names are those of the protocol."""
    _, lines = await command("decisions", "--json")
    assert [(json.loads(line)["number"], json.loads(line)["decision"]) for line in lines] == [
        ("1", "register"),
        ("2", "promote"),
    ]


def test_an_unknown_state_is_refused_before_any_request() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(ValueError, match="got 'gone'"),
    ):
        client.set_version_traffic(FIRST, "gone")  # type: ignore[arg-type]
