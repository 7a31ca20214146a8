"""`rolegate keys`, `rolegate tenants` and `runs export` with --address, on a running gateway."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from router.access import Key, Tenant
from router.store import Database, SQLArchive
from router.trace.run import Feedback
from serving.cli.main import main
from serving.logs import errors_only
from tests.router.edge.administered import Gateway, gateway, stored_key
from tests.router.store.stored import put
from tests.serving.cli.test_keys import CONFIG, ROLE
from tests.serving.cli.test_runs_export import RUNS

Command = Callable[..., Awaitable[tuple[str, str]]]


@pytest.fixture
async def where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """A gateway; the operator's key is in the environment."""
    store = f"sqlite:///{tmp_path}/runs.db"
    text, _ = await stored_key(store)
    monkeypatch.setenv("ROLEGATE_API_KEY", text)
    async with gateway(store) as where:
        yield where


@pytest.fixture
def command(
    where: Gateway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """Function that runs a command and returns both streams."""
    monkeypatch.setenv("COLUMNS", "200")
    errors_only()  # the gateway is in this process, and its log is not part of the output

    async def run(line: str, status: int = 0) -> tuple[str, str]:
        arguments = [*line.split(), "--address", where.address]
        assert await asyncio.to_thread(main, arguments) == status
        shown = capsys.readouterr()
        return shown.out, shown.err

    yield run
    structlog.reset_defaults()


async def read(command: Command, line: str) -> Any:
    """Run a command with --json, and return its output."""
    out, err = await command(f"{line} --json")
    assert err == ""
    return json.loads(out)


async def test_a_key_is_created_rotated_expired_and_revoked(command: Command) -> None:
    """Each command shows what it did, and the text of a new key alone on standard output."""
    out, err = await command("keys create --tenant acme --label [mine]")
    prefix, key_id, secret = out.strip().split("_", 2)
    assert prefix == "rg" and "of tenant acme; scopes: ask." in err
    out, err = await command(f"keys rotate {key_id} --grace 12h")
    assert re.search(rf"replaces an older key. Key {key_id} expires \(UTC\): 20\d\d-", err)
    new_id = out.split("_")[1]
    out, _ = await command(f"keys expire {new_id} --after 30d")
    assert out.startswith(f"Key {new_id} expires (UTC): 20")
    out, _ = await command(f"keys expire {new_id} --never")
    assert out == f"Key {new_id} expires (UTC): never\n"
    out, _ = await command(f"keys revoke {new_id}")
    assert out.startswith(f"Key {new_id} is revoked; ")
    listed, _ = await command("keys list")
    assert "[mine]" in listed and secret not in listed


async def test_the_output_is_that_of_the_store_s_commands(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same fields, in JSON and in tables."""
    config = tmp_path / "my.toml"
    roles = (ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    config.write_text(CONFIG.replace("runs.db", f"{tmp_path}/runs.db") + "".join(roles))
    created = await read(command, "keys create --tenant acme --scope train ask")
    await command("tenants set acme --usd-per-day 2.5 --tokens-per-month 7 --redact")
    for line in ("keys list", "keys list --json", "tenants list --json", "tenants show acme"):
        by_address, _ = await command(line)
        status = await asyncio.to_thread(main, [*line.split(), "--config", str(config)])
        assert (status, capsys.readouterr().out) == (0, by_address)
    stored = {field for field in Key.__struct_fields__ if field != "secret_sha256"}
    assert set(created) == {"key", "first", *stored}
    assert (created["scopes"], created["first"]) == (["ask", "train"], False)


async def test_a_tenant_is_set(command: Command) -> None:
    """Settings that are not named are kept, and `none` removes a limit."""
    out, err = await command("tenants set acme --usd-per-day 5 --index shared --no-training")
    assert "5.00" in out
    assert err.startswith("no price is known for m: because of its limit in dollars, acme")
    acme = await read(command, "tenants set acme --runs-in-flight 3 --usd-per-day none")
    assert (acme["runs_in_flight"], acme["nano_usd_per_day"]) == (3, None)
    assert (acme["indexes"], acme["training"]) == (["shared"], False)


async def test_a_refused_request_is_reported_in_one_line(
    command: Command, where: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant's key is refused too."""
    for line, message in (
        ("keys revoke 0badf00d", "no key has the identifier '0badf00d'"),
        ("keys create --tenant acme --scope operate", "scope operate: only keys without a tenant"),
        ("tenants show nobody", "no tenant 'nobody'; the tenants are: default."),
        ("tenants set acme --index other", "index 'other': is not in the config"),
        ("keys expire 0badf00d", "give --after or --never"),
    ):
        out, err = await command(line, status=1)
        assert (out, err.startswith("rolegate: ")) == ("", True)
        assert message in err
    created = await read(command, "keys create --tenant acme")
    monkeypatch.setenv("ROLEGATE_API_KEY", created["key"])
    for line in ("keys list", "keys create", "tenants list", "tenants set acme"):
        out, err = await command(line, status=1)
        assert out == "" and "needs a key with the scope `operate`" in err


@pytest.mark.parametrize(
    "line",
    [
        "keys list --address 127.0.0.1:1 --config my.toml",
        "keys list --address http://x",
        "serve --address unix:/tmp/socket",
        "serve --http dns:///localhost:80",
        "keys rotate 0 --grace 1w",
        "keys rotate 0 --grace -1h",
        "keys expire 0 --after 1h --never",
    ],
)
def test_an_impossible_command_line_is_refused(line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2


async def exported(*arguments: str) -> tuple[int, str]:
    """Run `rolegate runs export` in a process, because it handles signals; return its status and
    its output.
    """
    main_of = "import sys; from serving.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", main_of, "runs", "export", *arguments),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_runs_are_exported_from_a_gateway(where: Gateway, tmp_path: Path) -> None:
    """The rows are those of an export from the store, with feedback and filters."""
    database = await Database.open(f"sqlite:///{tmp_path}/runs.db")
    await put(database, *RUNS, tenants=[Tenant("shy", training=False)])
    for opinion in (
        Feedback("run-01", accepted=False, score=0.25, right_answer="1943", tenant="default"),
        Feedback("run-01", comment="why?"),
    ):
        await SQLArchive(database).add_feedback(opinion)
    await database.close()
    config = tmp_path / "my.toml"
    roles = (ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    config.write_text(CONFIG.replace("runs.db", f"{tmp_path}/runs.db") + "".join(roles))
    by_address = tmp_path / "a.jsonl"
    stored = tmp_path / "b.jsonl"
    for options in ([], ["--training", "--since", "1970-01-01"], ["--tenant", "acme"]):
        status, output = await exported(
            *options, "--force", "--out", str(by_address), "--address", where.address
        )
        assert status == 0, output
        from_store = await exported(
            *options, "--force", "--out", str(stored), "--config", str(config)
        )
        assert from_store == (0, output.replace("a.jsonl", "b.jsonl"))
        assert by_address.read_bytes() == stored.read_bytes()


async def test_an_export_that_a_gateway_refuses_leaves_no_file(
    where: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLEGATE_API_KEY", "rg_00_x")
    file = tmp_path / "runs.jsonl"
    status, output = await exported("--out", str(file), "--address", where.address)
    assert status == 1 and "unknown, revoked or expired" in output
    assert not list(tmp_path.glob("*.jsonl*"))


async def test_the_audit_log_is_printed(command: Command) -> None:
    """One line of JSON for each act, newest first."""
    await command("keys create --tenant acme")
    await command("tenants set acme --tokens-per-day 5")
    lines = (await command("keys audit"))[0].splitlines()
    acts = [json.loads(line) for line in lines]
    assert [(act["act"], act["door"], act["result"]) for act in acts] == [
        ("update_tenant", "grpc", "done"),
        ("create_key", "grpc", "done"),
    ]
    assert (await command("keys audit --limit 1"))[0].splitlines() == lines[:1]
