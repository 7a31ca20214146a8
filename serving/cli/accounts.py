"""`rolegate keys` and `rolegate tenants`: who may ask a gateway, for what, and what each may
spend.
"""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.access import Accounts, Key, Spent, Tenant, new_key
from router.errors import BadRequest
from router.store import SQLAccounts
from router.store.quotas import MOST
from router.trace import RoleName
from router.trace.identity import DEFAULT_TENANT, SCOPES
from serving.cli.options import (
    Commands,
    add_command,
    add_config,
    chosen_file,
    json_of,
    new_parser,
    tenant_name,
)
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.file import read_config
from serving.config.prices import prices_of
from serving.live_check.estimate import Measured, Use, estimate
from serving.logs import errors_only

_KEYS = """`rolegate keys`: who may ask a gateway, and for what.

Keys are kept in the store that the config names. A gateway that runs hears of them within a second.
"""
_TENANTS = """`rolegate tenants`: what each tenant may spend, and what is kept of its runs.

Tenants are kept in the store that the config names. What comes without a key, or with the
operator's, is booked to the tenant `default`. Days and months are those of UTC.
"""
_CREATE = """\
Makes a key and prints it, this once: only its hash is kept. Clients send it as
`authorization: Bearer rg_…`.

A tenant's key sees and spends what is that tenant's, and nothing else. Without --tenant it is a key
of the operator, who sees all tenants. Scopes: `ask` puts questions and sees what became of them,
`train` exports traces, `operate` changes the executor's versions and compares the ledger with the
engines (the operator's keys only).

Before the first key, everybody on this machine may ask for everything, and nobody else can reach
the gateway. From the first key on, every caller needs one, also when all are revoked: the way back
in is this command, which needs none."""


def keys(arguments: Sequence[str]) -> int:
    """Create, list or revoke."""
    parser = new_parser("keys", _KEYS)
    commands = parser.add_subparsers(dest="command", required=True)
    create = add_command(commands, "create", "make a key", _CREATE, _create)
    create.add_argument(
        "--tenant", type=tenant_name, metavar="NAME", help="whose it is (default: the operator's)"
    )
    create.add_argument(
        "--scope",
        nargs="+",
        choices=sorted(SCOPES),
        metavar="SCOPE",
        help="ask, train, operate (default: ask; of the operator's, all)",
    )
    create.add_argument(
        "--label", default="", metavar="TEXT", help="what to know it by in `keys list`"
    )
    add_command(
        commands, "list", "show the keys", "Shows all keys, without their secrets.", _list_keys
    )
    about = "Makes a key worthless, for good. Its runs stay."
    revoke = add_command(commands, "revoke", "make a key worthless", about, _revoke)
    revoke.add_argument(
        "key_id", metavar="KEY_ID", help="what stands between `rg_` and the next `_`"
    )
    return _run(parser, commands, arguments)


def _run(parser: argparse.ArgumentParser, commands: Commands, arguments: Sequence[str]) -> int:
    """Work on the accounts of the config's store."""
    for command in commands.choices.values():
        command.add_argument("--json", action="store_true", help="print JSON")
        add_config(command)
    given = parser.parse_args(arguments)
    given.config = chosen_file(given)  # which is told once
    errors_only()

    async def work() -> None:
        async with opened_store(given, make=True) as database:
            await given.work(SQLAccounts(database), given)

    asyncio.run(work())
    return 0


async def _create(accounts: Accounts, given: argparse.Namespace) -> None:
    scopes = frozenset(given.scope or (SCOPES if given.tenant is None else ["ask"]))
    if given.tenant is not None and "operate" in scopes:
        raise BadRequest(
            "--scope operate: is for the operator's keys; leave out --tenant, or that scope."
        )
    text, key = new_key(given.tenant, scopes, given.label)
    first = await accounts.add_key(key)
    if given.json:
        print(json_of({"key": text, **_public(key), "first": first}))
        return
    whose = (
        "of the operator, who sees all tenants" if key.tenant is None else f"of tenant {key.tenant}"
    )
    progress = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    progress.print(f"A key {whose}, for {', '.join(sorted(scopes))}. It is shown this once:")
    print(text, flush=True)
    if first:
        progress.print(
            "This is the first key: from now on every caller of this store's gateways needs one."
        )


async def _list_keys(accounts: Accounts, given: argparse.Namespace) -> None:
    keys = await accounts.keys()
    if given.json:
        print(json_of([_public(key) for key in keys]))
        return
    if not keys:
        print(
            "There are no keys: everybody on this machine may ask for everything, and "
            "nobody else gets in."
        )
        return
    table = Table("key", "tenant", "scopes", "label", "made", "revoked")
    for key in keys:
        tenant = "(operator)" if key.tenant is None else key.tenant
        table.add_row(
            *(key.key_id, tenant, ", ".join(sorted(key.scopes)), escape(key.label)),
            *(_day(key.created_at), _day(key.revoked_at)),
        )
    Console(highlight=False).print(table)


async def _revoke(accounts: Accounts, given: argparse.Namespace) -> None:
    # A whole key will do, and is not repeated
    key_id = given.key_id.removeprefix("rg_").partition("_")[0]
    key = await accounts.revoke_key(key_id)
    if key is None:
        raise BadRequest(f"{key_id!r}: there is no such key; `rolegate keys list` shows them.")
    if given.json:
        print(json_of(_public(key)))
    else:
        print(f"Key {key.key_id} is revoked; gateways that run refuse it within a second.")
        if all(one.revoked_at for one in await accounts.keys()):
            print(
                "It was the last good key: nobody gets in until `rolegate keys create` "
                "makes another, without a key."
            )


def _public(key: Key) -> dict[str, object]:
    fields = msgspec.structs.asdict(key)
    del fields["secret_sha256"]
    return {**fields, "scopes": sorted(key.scopes)}


def _day(moment: float | None) -> str:
    return "" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}"


_NANO = 1_000_000_000
_SET = """\
Sets what is named, leaves the rest as it is, and makes the tenant where there is none of that name.
`none` takes a limit away. A gateway that runs keeps to new limits from the next request on.

Before anything is spent, the worst case of the next step is reserved, so that no limit is ever
exceeded."""


def tenants(arguments: Sequence[str]) -> int:
    """List, set or show."""
    parser = new_parser("tenants", _TENANTS)
    commands = parser.add_subparsers(dest="command", required=True)
    add_command(
        commands, "list", "show all tenants", "Shows all tenants with their limits.", _list_tenants
    )
    setting = add_command(commands, "set", "make or change a tenant", _SET, _set_tenant)
    about = "Shows a tenant's limits, and what it has spent this day and month."
    for command in (setting, add_command(commands, "show", "show one tenant", about, _show_tenant)):
        command.add_argument("name", type=tenant_name, metavar="NAME", help="the tenant")
    _add_settings(setting)
    return _run(parser, commands, arguments)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """An option for each field of `Tenant`; those that are not given are absent from the
    namespace.
    """
    settings = parser.add_argument_group("settings", argument_default=argparse.SUPPRESS)
    for period in ("day", "month"):
        settings.add_argument(
            f"--tokens-per-{period}",
            type=_count,
            metavar="N",
            help="prompt and completion, or none",
        )
        settings.add_argument(
            f"--usd-per-{period}",
            type=_nano,
            dest=f"nano_usd_per_{period}",
            metavar="USD",
            help="dollars, or none",
        )
        settings.add_argument(
            f"--requests-per-{period}", type=_count, metavar="N", help="requests, or none"
        )
    settings.add_argument(
        "--runs-in-flight", type=_count, metavar="N", help="runs at the same time, or none"
    )
    switch = argparse.BooleanOptionalAction
    settings.add_argument(
        "--redact", action=switch, help="keep the figures of its runs, and none of their texts"
    )
    settings.add_argument(
        "--training", action=switch, help="whether its runs may train an executor"
    )


def _count(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) > MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a whole number of at most {MOST}, or none"
        )
    return int(text)


def _nano(text: str) -> int | None:
    """Dollars as billionths of a dollar."""
    if text == "none":
        return None
    try:
        nano = Decimal(text) * _NANO
    except InvalidOperation:
        nano = Decimal("nan")
    if not nano.is_finite() or not 0 <= nano <= MOST or nano != int(nano):
        raise argparse.ArgumentTypeError(f"{text!r}: give dollars, such as 2.50, or none")
    return int(nano)


async def _tenants(accounts: Accounts) -> dict[str, Tenant]:
    """By name, with the one that is there without being made."""
    return {tenant.name: tenant for tenant in (Tenant(DEFAULT_TENANT), *await accounts.tenants())}


async def _set_tenant(accounts: Accounts, given: argparse.Namespace) -> None:
    named = (await _tenants(accounts)).get(given.name, Tenant(given.name))
    changes = {
        field: value
        for field, value in vars(given).items()
        if field in Tenant.__struct_fields__[1:]
    }
    await accounts.set_tenant(msgspec.structs.replace(named, **changes))
    await _warn(
        given, {name: limit for name, limit in changes.items() if "usd" in name or "tokens" in name}
    )
    await _show_tenant(accounts, given)


async def _warn(given: argparse.Namespace, limits: dict[str, int | None]) -> None:
    """Name limits that one question may take, and models without a price, whose calls a limit
    in dollars refuses.
    """
    limited = {name: limit for name, limit in limits.items() if limit is not None}
    if not limited:
        return
    config = read_config(chosen_file(given))
    roles = config.roles.by_name
    prices = await prices_of(roles, config.prices) if any("usd" in name for name in limited) else {}
    said = []
    if unpriced := list(
        dict.fromkeys(roles[name].model for name, price in prices.items() if price is None)
    ):
        tables = ", ".join(f'[prices."{model}"]' for model in unpriced)
        said.append(
            f"no price is known for {', '.join(unpriced)}: their calls for tenant "
            f"{given.name} are refused until the "
            f"config has {tables}"
        )
    uses = _uses(config)
    tokens = sum(use.prompt_tokens + use.completion_tokens for use in uses.values())
    nano_usd = sum(
        use.cost(price) * _NANO for name, use in uses.items() if (price := prices.get(name))
    )
    for name, limit in limited.items():
        needed = tokens if "tokens" in name else nano_usd
        if limit < needed:
            shown = f"{tokens:,} tokens" if "tokens" in name else f"{needed / _NANO:.6f} dollars"
            option = f"--{name.replace('nano_', '').replace('_', '-')}"
            said.append(
                f"{option}: one question may take {shown}, which is more; it may then be refused"
            )
    for line in said:
        Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


def _uses(config: Config) -> dict[RoleName, Use]:
    """Tokens of a typical question, by 4 characters a token; nothing where the prompts are not
    to be read.
    """
    try:
        measured = {
            name: Measured(len(Path(role.prompt).read_text("utf-8")))
            for name, role in config.roles.by_name.items()
        }
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: typical for name, (typical, _) in estimate(config, measured).items()}


async def _list_tenants(accounts: Accounts, given: argparse.Namespace) -> None:
    tenants = list((await _tenants(accounts)).values())
    if given.json:
        print(json_of(tenants))
        return
    table = Table("tenant", "limits", "redact", "training")
    for tenant in tenants:
        limits = ", ".join(f"{name} {limit}" for name, limit in _limits(tenant) if limit != "none")
        table.add_row(tenant.name, limits, _word(tenant.redact), _word(tenant.training))
    Console(highlight=False).print(table)


async def _show_tenant(accounts: Accounts, given: argparse.Namespace) -> None:
    """Its limits, and the sums that it has spent this day and this month."""
    tenants = await _tenants(accounts)
    if (tenant := tenants.get(given.name)) is None:
        raise BadRequest(f"there is no tenant {given.name!r}; there are: {', '.join(tenants)}.")
    now = datetime.now(UTC)
    sums = {entry.period: entry for entry in await accounts.spending(given.name)}
    spent = [sums.get(period, Spent(period)) for period in (f"{now:%Y-%m-%d}", f"{now:%Y-%m}")]
    if given.json:
        print(json_of({**msgspec.structs.asdict(tenant), "spent": spent}))
        return
    settings = Table(show_header=False, title=f"tenant {tenant.name}", title_justify="left")
    for name, limit in _limits(tenant):
        settings.add_row(name, limit)
    settings.add_row("redact", _word(tenant.redact))
    settings.add_row("training", _word(tenant.training))
    Console(highlight=False).print(settings)
    table = Table("spent", "requests", "tokens", "USD")
    for entry in spent:
        table.add_row(
            entry.period, f"{entry.requests:,}", f"{entry.tokens:,}", _usd(entry.nano_usd)
        )
    Console(highlight=False).print(table)


def _limits(tenant: Tenant) -> Iterator[tuple[str, str]]:
    """Each limit with its option's name."""
    for period in ("day", "month"):
        for what in ("tokens", "usd", "requests"):
            field = f"{'nano_usd' if what == 'usd' else what}_per_{period}"
            limit: int | None = getattr(tenant, field)
            shown = "none" if limit is None else _usd(limit) if what == "usd" else f"{limit:,}"
            yield f"{what}-per-{period}", shown
    yield (
        "runs-in-flight",
        "none" if tenant.runs_in_flight is None else f"{tenant.runs_in_flight:,}",
    )


def _usd(nano: int) -> str:
    """Dollars, exactly, with at least two decimals."""
    whole, _, rest = f"{Decimal(nano) / _NANO:.9f}".partition(".")
    return f"{int(whole):,}.{rest.rstrip('0'):0<2}"


def _word(switch: bool) -> str:
    return "yes" if switch else "no"
