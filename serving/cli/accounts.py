"""`rolegate keys` and `rolegate tenants`: who may ask a gateway, for what, and what each may
spend.
"""

import argparse
import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType
from rich.console import Console
from rich.table import Table

from router.access import Accounts, Key, Spent, Tenant, new_key
from router.errors import BadRequest
from router.store import SQLAccounts
from router.store.quotas import MAX_LIMIT
from router.trace.identity import DEFAULT_TENANT, SCOPES, KeyScope
from serving.cli.command import POSITIONAL, Command, reads, run_subcommand
from serving.cli.grid import new_table
from serving.cli.options import JSONConfigOptions, TenantName, json_of, tenant_name
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.file import read_config
from serving.config.prices import prices_of
from serving.logs import errors_only
from serving.terminal import complain

_KEYS = """Say who may ask a gateway, and for what.

Keys are kept in the store that the config names. A running gateway applies changes within a second.
"""
_TENANTS = """Say what each tenant may spend, and what is kept of its runs.

Tenants are kept in the store that the config names. Requests without a key, or with an operator's
key, are booked to the tenant `default`. Days and months are in UTC.
"""
_NANO = 1_000_000_000


class CreateKeyOptions(JSONConfigOptions, frozen=True):
    """Make a key, and print it once.

    Only its hash is kept. Clients send it as `authorization: Bearer rg_…`.

    A tenant's key sees and spends only what belongs to that tenant. Without --tenant it is an
    operator's key, which sees all tenants. Scopes: `ask` asks questions and reads their runs,
    `train` exports traces, `operate` changes the executor's versions and compares the ledger with
    the engines (operators' keys only).

    Before the first key is made, everybody on this machine may do everything, and other machines
    cannot reach the gateway. From the first key on, every caller needs one, even after all are
    revoked. This command needs no key, so it always restores access.
    """

    tenant: TenantName | None = None
    """Make the key for this tenant (default: for the operator)."""
    scope: tuple[KeyScope, ...] = ()
    """Allow this (default: ask; for the operator, everything)."""
    label: str = ""
    """Show this text in `keys list`."""


class RevokeKeyOptions(JSONConfigOptions, frozen=True, kw_only=True):
    """Revoke a key permanently; its runs stay."""

    key_id: Annotated[str, POSITIONAL]
    """Part of the key between `rg_` and the next `_`."""


class ListKeysOptions(JSONConfigOptions, frozen=True):
    """Show all keys, without their secrets."""


def keys(arguments: Sequence[str]) -> int:
    """Create, list or revoke keys."""
    commands = {
        "create": Command(CreateKeyOptions, _create),
        "list": Command(ListKeysOptions, _list_keys),
        "revoke": Command(RevokeKeyOptions, _revoke),
    }
    return run_subcommand(
        "keys",
        _KEYS,
        commands,
        arguments,
        _run,
    )


def _run(work: Callable[[Accounts, Any], Any], options: JSONConfigOptions) -> None:
    """Call `work` with the accounts of the config's store."""
    errors_only()

    async def run() -> None:
        async with opened_store(options.config, make=True) as database:
            await work(SQLAccounts(database), options)

    asyncio.run(run())


async def _create(accounts: Accounts, options: CreateKeyOptions) -> None:
    default = SCOPES if options.tenant is None else frozenset[KeyScope](["ask"])
    scopes = frozenset(options.scope) or default
    if options.tenant is not None and "operate" in scopes:
        raise BadRequest(
            "--scope operate: only for operators' keys; leave out --tenant, or this scope."
        )
    text, key = new_key(options.tenant, scopes, options.label)
    first = await accounts.add_key(key)
    if options.json:
        print(json_of({"key": text, **_public(key), "first": first}))
        return

    owner = "the operator, who sees all tenants" if key.tenant is None else f"tenant {key.tenant}"
    complain(f"A key of {owner}, for {', '.join(sorted(scopes))}. It is shown only once:")
    print(text, flush=True)
    if first:
        complain(
            "This is the first key: from now on every caller of this store's gateways needs one."
        )


async def _list_keys(accounts: Accounts, options: JSONConfigOptions) -> None:
    keys = await accounts.keys()
    if options.json:
        print(json_of([_public(key) for key in keys]))
        return
    if not keys:
        print(
            "There are no keys: everybody on this machine may do everything, and other machines "
            "cannot reach the gateway."
        )
        return
    rows = [
        (
            key.key_id,
            key.tenant or "(operator)",
            sorted(key.scopes),
            key.label,
            _minute(key.created_at),
            _minute(key.revoked_at),
        )
        for key in keys
    ]
    columns = ("key", "tenant", "scopes", "label", "made", "revoked")
    Console(highlight=False).print(new_table(columns, rows, texts=len(columns)))


async def _revoke(accounts: Accounts, options: RevokeKeyOptions) -> None:
    # A whole key is accepted too, but not repeated
    key_id = options.key_id.removeprefix("rg_").partition("_")[0]
    key = await accounts.revoke_key(key_id)
    if key is None:
        raise BadRequest(f"{key_id!r}: no such key; `rolegate keys list` shows all keys.")
    if options.json:
        print(json_of(_public(key)))
        return
    print(f"Key {key.key_id} is revoked; running gateways refuse it within a second.")
    if all(other.revoked_at for other in await accounts.keys()):
        print(
            "It was the last valid key: all callers are refused until `rolegate keys create` "
            "makes another one, which needs no key."
        )


def _public(key: Key) -> dict[str, object]:
    fields = msgspec.structs.asdict(key)
    del fields["secret_sha256"]
    return {**fields, "scopes": sorted(key.scopes)}


def _minute(seconds: float | None) -> str:
    return "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


def _count(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) > MAX_LIMIT:
        raise argparse.ArgumentTypeError(
            f"{text!r}: give a whole number of at most {MAX_LIMIT}, or none"
        )
    return int(text)


def _nano(text: str) -> int | None:
    """Return dollars as billionths of a dollar."""
    if text == "none":
        return None
    try:
        nano = Decimal(text) * _NANO
    except InvalidOperation:
        nano = Decimal("nan")
    if not nano.is_finite() or not 0 <= nano <= MAX_LIMIT or nano != int(nano):
        raise argparse.ArgumentTypeError(f"{text!r}: give dollars, such as 2.50, or none")
    return int(nano)


Limit = Annotated[int, reads(_count, "N")] | None | UnsetType
USDLimit = Annotated[int, reads(_nano, "USD")] | None | UnsetType


class NamedTenantOptions(JSONConfigOptions, frozen=True, kw_only=True):
    """Options of commands on one tenant."""

    name: Annotated[str, POSITIONAL, reads(tenant_name, "NAME")]
    """The tenant."""


class ShowTenantOptions(NamedTenantOptions, frozen=True):
    """Show a tenant's limits, and what it has spent this day and month."""


class ListTenantsOptions(JSONConfigOptions, frozen=True):
    """Show all tenants with their limits."""


class SetTenantOptions(NamedTenantOptions, frozen=True):
    """Make a tenant, or change its settings.

    Settings without an option stay as they are; `none` removes a limit. A running gateway applies
    new limits from the next request on.

    Before anything is spent, the worst case of the next step is reserved, so that no limit is ever
    exceeded.
    """

    tokens_per_day: Limit = UNSET
    """Prompt and completion tokens per day, or none."""
    nano_usd_per_day: USDLimit = msgspec.field(default=UNSET, name="usd_per_day")
    """Dollars per day, or none."""
    requests_per_day: Limit = UNSET
    """Requests per day, or none."""
    tokens_per_month: Limit = UNSET
    """Prompt and completion tokens per month, or none."""
    nano_usd_per_month: USDLimit = msgspec.field(default=UNSET, name="usd_per_month")
    """Dollars per month, or none."""
    requests_per_month: Limit = UNSET
    """Requests per month, or none."""
    runs_in_flight: Limit = UNSET
    """Concurrent runs, or none."""
    redact: bool | UnsetType = UNSET
    """Keep the figures of its runs, but none of their texts."""
    training: bool | UnsetType = UNSET
    """Allow its runs to train an executor."""


def tenants(arguments: Sequence[str]) -> int:
    """List, set or show tenants."""
    commands = {
        "list": Command(ListTenantsOptions, _list_tenants),
        "set": Command(SetTenantOptions, _set_tenant),
        "show": Command(ShowTenantOptions, _show_tenant),
    }
    return run_subcommand(
        "tenants",
        _TENANTS,
        commands,
        arguments,
        _run,
    )


async def _tenants(accounts: Accounts) -> dict[str, Tenant]:
    """Return all tenants by name, with the default one, which always exists."""
    return {tenant.name: tenant for tenant in (Tenant(DEFAULT_TENANT), *await accounts.tenants())}


async def _set_tenant(accounts: Accounts, options: SetTenantOptions) -> None:
    tenant = (await _tenants(accounts)).get(options.name, Tenant(options.name))
    changes = {
        field: value
        for field in Tenant.__struct_fields__[1:]
        if (value := getattr(options, field)) is not UNSET
    }
    await accounts.set_tenant(msgspec.structs.replace(tenant, **changes))
    if any(limit is not None for name, limit in changes.items() if "usd" in name):
        for model in await _unpriced(read_config(options.config)):
            complain(
                f"no price is known for {model}: its calls for tenant {options.name} are refused "
                f'until the config has [prices."{model}"]'
            )
    await _show_tenant(accounts, options)


async def _unpriced(config: Config) -> Iterable[str]:
    """Return the models without a price, whose calls are refused under a limit in dollars."""
    roles = config.roles.by_name
    prices = await prices_of(roles, config.prices)
    return {roles[name].model: None for name, price in prices.items() if price is None}


async def _list_tenants(accounts: Accounts, options: JSONConfigOptions) -> None:
    tenants = list((await _tenants(accounts)).values())
    if options.json:
        print(json_of(tenants))
        return
    Console(highlight=False).print(_table(tenants))


def _table(tenants: Iterable[Tenant]) -> Table:
    """Return a row for each tenant, with its limits."""
    rows = [(each.name, [*_limits(each)], each.redact, each.training) for each in tenants]
    return new_table(("tenant", "limits", "redact", "training"), rows, texts=4)


async def _show_tenant(accounts: Accounts, options: NamedTenantOptions) -> None:
    """Print a tenant's limits, and the sums that it has spent this day and this month."""
    tenants = await _tenants(accounts)
    if (tenant := tenants.get(options.name)) is None:
        raise BadRequest(f"no tenant {options.name!r}; there are: {', '.join(tenants)}.")
    now = datetime.now(UTC)
    sums = {entry.period: entry for entry in await accounts.spending(options.name)}
    spent = [sums.get(period, Spent(period)) for period in (f"{now:%Y-%m-%d}", f"{now:%Y-%m}")]
    if options.json:
        print(json_of({**msgspec.structs.asdict(tenant), "spent": spent}))
        return

    console = Console(highlight=False)
    console.print(_table([tenant]))
    rows = [(entry.period, entry.requests, entry.tokens, _usd(entry.nano_usd)) for entry in spent]
    console.print(new_table(("spent", "requests", "tokens", "USD"), rows))


def _limits(tenant: Tenant) -> Iterator[str]:
    """Yield each limit, after its option's name."""
    for name, limit in msgspec.structs.asdict(tenant).items():
        if isinstance(limit, int) and not isinstance(limit, bool):
            shown = _usd(limit) if "usd" in name else f"{limit:,}"
            yield f"{name.removeprefix('nano_').replace('_', '-')} {shown}"


def _usd(nano: int) -> str:
    """Return dollars exactly, with at least two decimals."""
    dollars, _, rest = f"{Decimal(nano) / _NANO:.9f}".partition(".")
    return f"{int(dollars):,}.{rest.rstrip('0'):0<2}"
