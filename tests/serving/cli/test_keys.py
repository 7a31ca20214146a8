"""`rolegate keys` and `rolegate tenants`, on a real store."""

import json
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, insert

from router.store.schema import SPENDING
from serving.cli.main import main

CONFIG = """\
[server]
store = "sqlite:///runs.db"
[retrieval]
address = "127.0.0.1:9"
"""
ROLE = '[roles.{name}]\nmodel = "m"\nprompt = "absent.txt"\n'


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config with no more than a store."""
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "my.toml"
    path.write_text(
        CONFIG + "".join(ROLE.format(name=name) for name in ("delegation", "execution", "answer"))
    )
    return path


class Commands:
    """Commands with one config, and their output."""

    def __init__(self, config: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = config
        self._capsys = capsys

    def run(self, line: str, status: int = 0) -> tuple[str, str]:
        """Run a command, and return both streams."""
        assert main([*line.split(), "--config", str(self._config)]) == status
        shown = self._capsys.readouterr()
        return shown.out, shown.err

    def read(self, line: str) -> Any:
        """Run a command, and return its output as JSON."""
        out, err = self.run(f"{line} --json")
        assert err == ""
        return json.loads(out)


@pytest.fixture
def commands(config: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(config, capsys)


def test_a_key_is_printed_once(commands: Commands, tmp_path: Path) -> None:
    """It is alone on standard output; standard error has its tenant, and warns that from the first
    key on, all callers need one.
    """
    assert "everybody on this machine" in commands.run("keys list")[0]
    out, err = commands.run("keys create --tenant acme --label [mine]")
    prefix, key_id, secret = out.strip().split("_", 2)
    assert prefix == "rg"
    assert "of tenant acme; scopes: ask." in err
    assert "from now on every caller" in err
    shown = "".join(commands.run("keys list")) + str(commands.read("keys list"))
    assert key_id in shown
    assert "[mine]" in shown
    assert secret not in shown
    assert all(secret.encode() not in file.read_bytes() for file in tmp_path.iterdir())


def test_acts_of_commands_are_in_the_audit_log(commands: Commands) -> None:
    """With the user and the machine."""
    created = commands.read("keys create --tenant acme")
    act = json.loads(commands.run("keys audit")[0])
    known = {name: act[name] for name in ("act", "target", "tenant", "door", "key_id", "result")}
    assert known == {
        "act": "create_key",
        "target": created["key_id"],
        "tenant": "acme",
        "door": "command",
        "key_id": "",
        "result": "done",
    }
    assert act["address"].endswith(f"@{socket.gethostname()}")


def test_an_operator_s_key_has_every_scope_by_default(commands: Commands) -> None:
    """The output says that it is an operator's."""
    commands.run("keys create --tenant acme")
    _, err = commands.run("keys create")
    assert "of the operator, who sees all tenants; scopes: ask, documents, operate, train." in err
    assert "from now on" not in err
    created = commands.read("keys create --scope train ask")
    assert (created["tenant"], created["scopes"], created["first"]) == (
        None,
        ["ask", "train"],
        False,
    )
    assert created["key"].startswith(f"rg_{created['key_id']}_")
    listed = commands.run("keys list")[0]
    assert "ask, train" in " ".join(listed.split())
    assert "[" not in listed


def test_a_revoked_key_is_shown_as_revoked(commands: Commands) -> None:
    """After the last valid key, the output warns that no caller has access."""
    other = commands.read("keys create")
    created = commands.read("keys create --tenant acme")
    out, _ = commands.run(f"keys revoke {created['key_id']}")
    assert (
        out == f"Key {created['key_id']} is revoked; running gateways refuse it within a second.\n"
    )
    assert "It was the last valid key" in commands.run(f"keys revoke {other['key_id']}")[0]
    _, listed = commands.read("keys list")
    assert listed["revoked_at"] > listed["created_at"]
    assert commands.read(f"keys revoke {created['key_id']}") == listed


def test_a_key_and_a_tenant_are_limited_by_the_minute(commands: Commands) -> None:
    """The lists show the limits; `none` removes one."""
    key_id = commands.read("keys create --tenant acme")["key_id"]
    limit = f"keys limit {key_id} --requests-per-minute 3 --tokens-per-minute"
    limited = json.loads(commands.run(f"{limit} 1000")[0])
    assert (limited["requests_per_minute"], limited["tokens_per_minute"]) == (3, 1000)
    assert commands.read("keys list") == [limited]
    listed = commands.run("keys list")[0]
    assert "requests-per-minute 3, tokens-per-minute 1,000" in " ".join(listed.split())
    limited = json.loads(commands.run(f"{limit} none")[0])
    assert (limited["requests_per_minute"], limited["tokens_per_minute"]) == (3, None)
    out, _ = commands.run("tenants set acme --requests-per-minute 60 --tokens-per-minute 90000")
    assert "requests-per-minute 60, tokens-per-minute 90,000" in " ".join(out.split())


def test_a_key_is_rotated_and_expires(commands: Commands) -> None:
    """The replaced key stays valid for its grace, and the new one is printed once."""
    old = commands.read("keys create --tenant acme")
    new = commands.read(f"keys rotate {old['key_id']} --grace 7d")
    assert (new["tenant"], new["scopes"], new["revoked_at"]) == ("acme", ["ask"], None)
    replaced, _ = commands.read("keys list")
    assert replaced["revoked_at"] == pytest.approx(new["created_at"] + 7 * 86400, abs=60)
    expiring = commands.read(f"keys expire {new['key_id']} --after 1d")
    assert expiring["revoked_at"] == pytest.approx(new["created_at"] + 86400, abs=60)
    assert commands.read(f"keys expire {new['key_id']} --never")["revoked_at"] is None
    _, err = commands.run(f"keys expire {new['key_id']}", status=1)
    assert err == "rolegate: keys expire: no time is given; give --after or --never.\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "keys revoke 0badf00d",
            "no key has the identifier '0badf00d'; `rolegate keys list` shows all keys.",
        ),
        (
            "keys create --tenant acme --scope operate",
            "scope operate: only keys without a tenant",
        ),
        ("tenants show nobody", "no tenant 'nobody'; the tenants are: default."),
    ],
)
def test_an_impossible_request_is_reported_in_one_line(
    commands: Commands, line: str, message: str
) -> None:
    """Nothing changes."""
    out, err = commands.run(line, status=1)
    assert (out, err.startswith(f"rolegate: {message}")) == ("", True)
    assert commands.read("keys list") == []


@pytest.mark.parametrize(
    "line",
    [
        "keys create --tenant a/b",
        "keys create --tenant ",
        "keys create --scope everything",
        "tenants set acme --tokens-per-day -1",
        "tenants set acme --tokens-per-day 1.5",
        f"tenants set acme --tokens-per-day {2**63}",
        "tenants set acme --usd-per-day nan",
        "tenants set acme --usd-per-day -1",
        "tenants set acme --usd-per-day 0.0000000001",
        "tenants set acme --usd-per-day much",
        "tenants set acme --usd-per-day 1e10",
    ],
)
def test_impossible_limits_are_refused_with_the_usage(config: Path, line: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*line.split(" "), "--config", str(config)])
    assert ended.value.code == 2


def test_setting_a_tenant_creates_it(commands: Commands) -> None:
    """Values that are not named are kept, and `none` removes a limit; dollars are exact."""
    commands.run(
        "tenants set acme --tokens-per-day 1000 --usd-per-month 2.000000001 --redact --no-training"
    )
    acme = commands.read("tenants set acme --runs-in-flight 3 --requests-per-day 9 --no-redact")
    assert (acme["tokens_per_day"], acme["nano_usd_per_month"]) == (1000, 2_000_000_001)
    assert (acme["runs_in_flight"], acme["requests_per_day"]) == (3, 9)
    assert (acme["redact"], acme["training"]) == (False, False)
    assert commands.read("tenants set acme --usd-per-month none")["nano_usd_per_month"] is None
    named = {tenant["name"]: tenant for tenant in commands.read("tenants list")}
    assert set(named) == {"default", "acme"}
    assert named["acme"]["tokens_per_day"] == 1000


def test_a_tenant_is_given_indexes_of_the_config(commands: Commands, config: Path) -> None:
    """At first it has the default index. A name that the config lacks is refused."""
    more = '[indexes.acme]\naddress = "127.0.0.1:9"\n[indexes.shared]\naddress = "127.0.0.1:9"\n'
    config.write_text(config.read_text() + more)
    assert commands.read("tenants set acme")["indexes"] == ["default"]
    acme = commands.read("tenants set acme --index shared acme")
    assert acme["indexes"] == ["acme", "shared"]
    assert commands.read("tenants set acme --redact")["indexes"] == ["acme", "shared"]
    assert "acme, shared" in commands.run("tenants list")[0]
    _, err = commands.run("tenants set acme --index other", status=1)
    assert "index 'other': is not in the config; use one of default, acme, shared." in err
    assert commands.read("tenants show acme")["indexes"] == ["acme", "shared"]


def test_a_limit_in_dollars_needs_prices(commands: Commands) -> None:
    """A missing price is reported when the limit is set, before any question is refused."""
    _, err = commands.run("tenants set acme --usd-per-day 5")
    assert err.startswith(
        "no price is known for m: because of its limit in dollars, acme cannot call this model "
        "until the config has [prices."
    )
    assert commands.run("tenants set acme --usd-per-day none")[1] == ""


def test_the_config_in_use_is_named_once(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(config.parent)
    config.rename("rolegate.toml")
    assert main("tenants set acme --tokens-per-day 2000000".split()) == 0
    assert capsys.readouterr().err.count("the config is") == 1


def test_creating_a_key_creates_its_tenant(commands: Commands) -> None:
    """The tenant has no limits."""
    commands.run("keys create --tenant acme")
    assert [tenant["name"] for tenant in commands.read("tenants list")] == ["default", "acme"]


def test_limits_are_shown_next_to_the_usage(commands: Commands, tmp_path: Path) -> None:
    """The usage is of the day and the month in UTC, and empty for a tenant without requests."""
    commands.run("tenants set acme --usd-per-day 1234.5 --tokens-per-month 1000000")
    now = datetime.now(UTC)
    day = f"{now:%Y-%m-%d}"
    month = f"{now:%Y-%m}"
    row = {"tenant": "acme", "requests": 2, "tokens": 12345}
    engine = create_engine(f"sqlite:///{tmp_path}/runs.db")
    with engine.begin() as connection:
        connection.execute(insert(SPENDING), [{**row, "period": day, "nano_usd": 1_250_000_000}])
        connection.execute(insert(SPENDING), [{**row, "period": "2001-01-01", "nano_usd": 0}])
    engine.dispose()
    shown, _ = commands.run("tenants show acme")
    assert "1,234.50" in shown
    assert "1,000,000" in shown
    assert "USD, as far as known" in shown
    assert f"{day} 2 12,345 1.25" in " ".join(shown.split())
    spent = commands.read("tenants show acme")["spent"]
    assert [(entry["period"], entry["tokens"]) for entry in spent] == [(day, 12345), (month, 0)]
