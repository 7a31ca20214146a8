"""`rolegate keys` and `rolegate tenants`: manage API keys, and limits and settings of tenants."""

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
from router.administration import MAX_LIMIT
from router.errors import BadRequest
from router.store import SQLAccounts
from router.trace.identity import DEFAULT_TENANT, SCOPES, KeyScope
from serving.cli.command import POSITIONAL, Command, reads, run_subcommand
from serving.cli.grid import new_table
from serving.cli.options import JSONConfigOptions, Name, TenantName, json_of, tenant_name
from serving.cli.store import opened_store
from serving.config.config import Config
from serving.config.file import read_config
from serving.config.prices import prices_of
from serving.logs import errors_only
from serving.terminal import complain

_KEYS = """Manage the API keys of a gateway.

A key determines which tenant a request belongs to and what the request may do. Keys are stored in
the store that the config names. A running gateway applies changes within a second.
"""
_TENANTS = """Manage what each tenant may spend, and what is stored of its runs.

Tenants are stored in the store that the config names. Requests without a key, or with an operator's
key, are booked to the tenant `default`. Limits per day and month use days and months in UTC.
"""
_NANO = 1_000_000_000


class CreateKeyOptions(JSONConfigOptions, frozen=True):
    """Create a key, and print it once.

    Only the key's hash is stored. Clients send the key as `authorization: Bearer rg_…`.

    With --tenant, a caller with the key sees only the runs of that tenant, and spends from its
    quota. Without --tenant, the key is an operator's key, which sees all tenants. Scopes: `ask`
    allows asking questions and reading their runs, `documents` allows uploading and deleting
    documents, `train` allows exporting traces, `operate` allows changing the executor's versions
    and comparing the ledger with the engines (operators' keys only).

    Until the first key is created, everybody on this machine may do everything, and other machines
    cannot reach the gateway. From the first key on, every caller needs a key, even after all keys
    are revoked. This command itself needs no key, so it always restores access.
    """

    tenant: TenantName | None = None
    """Create the key for this tenant (default: for the operator)."""
    scope: tuple[KeyScope, ...] = ()
    """Give the key these scopes (default: ask; for the operator, all scopes)."""
    label: str = ""
    """Show this note next to the key in `keys list`."""


class RevokeKeyOptions(JSONConfigOptions, frozen=True, kw_only=True):
    """Revoke a key permanently; runs that were made with the key are kept."""

    key_id: Annotated[str, POSITIONAL]
    """Identifier of the key, as in `keys list`: its part between `rg_` and the next `_`."""


class ListKeysOptions(JSONConfigOptions, frozen=True):
    """Show all keys, without their secrets."""


def keys(arguments: Sequence[str]) -> int:
    """Run `rolegate keys`; return the exit status."""
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
    """Run the coroutine function `work` with the accounts (keys and tenants) of the config's store,
    and with `options`. Create the store if it does not exist.
    """
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
            "--scope operate: allowed for operators' keys only; leave out --tenant, or this scope."
        )
    text, key = new_key(options.tenant, scopes, options.label)
    first = await accounts.add_key(key)
    if options.json:
        print(json_of({"key": text, **_public(key), "first": first}))
        return

    owner = "the operator, who sees all tenants" if key.tenant is None else f"tenant {key.tenant}"
    complain(f"A key of {owner}; scopes: {', '.join(sorted(scopes))}. It is shown only once:")
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
    Console(highlight=False).print(new_table(columns, rows, texts=6))


async def _revoke(accounts: Accounts, options: RevokeKeyOptions) -> None:
    # Accept a whole key too, but keep its secret out of messages
    key_id = options.key_id.removeprefix("rg_").partition("_")[0]
    key = await accounts.revoke_key(key_id)
    if key is None:
        raise BadRequest(f"{key_id!r}: there is no such key; `rolegate keys list` shows all keys.")
    if options.json:
        print(json_of(_public(key)))
        return
    print(f"Key {key.key_id} is revoked; running gateways refuse it within a second.")
    if all(other.revoked_at for other in await accounts.keys()):
        print(
            "It was the last valid key: all callers are refused until you create another key with "
            "`rolegate keys create`, which itself needs no key."
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
            f"must be a whole number from 0 to {MAX_LIMIT}, or none, got {text!r}"
        )
    return int(text)


def _nano(text: str) -> int | None:
    """Return an amount in dollars as billionths of a dollar; None for "none"."""
    if text == "none":
        return None
    try:
        nano = Decimal(text) * _NANO
    except InvalidOperation:
        nano = Decimal("nan")
    if not nano.is_finite() or not 0 <= nano <= MAX_LIMIT or nano != int(nano):
        raise argparse.ArgumentTypeError(
            f"must be dollars, 0 or more, such as 2.50, or none, got {text!r}"
        )
    return int(nano)


Limit = Annotated[int, reads(_count, "N")] | None | UnsetType
USDLimit = Annotated[int, reads(_nano, "USD")] | None | UnsetType


class NamedTenantOptions(JSONConfigOptions, frozen=True, kw_only=True):
    """Options of commands on one tenant."""

    name: Annotated[str, POSITIONAL, reads(tenant_name, "NAME")]
    """Name of the tenant."""


class ShowTenantOptions(NamedTenantOptions, frozen=True):
    """Show a tenant's limits, and what it has spent today and this month."""


class ListTenantsOptions(JSONConfigOptions, frozen=True):
    """Show all tenants with their limits."""


class SetTenantOptions(NamedTenantOptions, frozen=True):
    """Create a tenant, or change its settings.

    Settings whose options are not given stay as they are; the value `none` removes a limit. A
    running gateway applies new limits from the next request on.

    No limit is ever exceeded: before each model call, the gateway reserves the most that the call
    can cost.
    """

    tokens_per_day: Limit = UNSET
    """Max prompt and completion tokens per day, or none for no limit."""
    nano_usd_per_day: USDLimit = msgspec.field(default=UNSET, name="usd_per_day")
    """Max dollars per day, or none for no limit."""
    requests_per_day: Limit = UNSET
    """Max requests per day, or none for no limit."""
    tokens_per_month: Limit = UNSET
    """Max prompt and completion tokens per month, or none for no limit."""
    nano_usd_per_month: USDLimit = msgspec.field(default=UNSET, name="usd_per_month")
    """Max dollars per month, or none for no limit."""
    requests_per_month: Limit = UNSET
    """Max requests per month, or none for no limit."""
    runs_in_flight: Limit = UNSET
    """Max concurrent runs, or none for no limit."""
    redact: bool | UnsetType = UNSET
    """Store the figures of the tenant's runs (tokens, times), but none of their texts."""
    indexes: tuple[Name, ...] | UnsetType = msgspec.field(default=UNSET, name="index")
    """Let the tenant search these indexes of the config, and no others (at first: default)."""
    training: bool | UnsetType = UNSET
    """Allow executors to be trained on the tenant's runs."""


def tenants(arguments: Sequence[str]) -> int:
    """Run `rolegate tenants`; return the exit status."""
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
    """Return all tenants by name, including the tenant `default`, which always exists."""
    return {tenant.name: tenant for tenant in (Tenant(DEFAULT_TENANT), *await accounts.tenants())}


async def _set_tenant(accounts: Accounts, options: SetTenantOptions) -> None:
    tenant = (await _tenants(accounts)).get(options.name, Tenant(options.name))
    changes = {
        field: value
        for field in Tenant.__struct_fields__[1:]
        if (value := getattr(options, field)) is not UNSET
    }
    if options.indexes is not UNSET:
        changes["indexes"] = tuple(sorted(set(options.indexes)))
        known = read_config(options.config).all_indexes
        if unknown := [name for name in options.indexes if name not in known]:
            raise BadRequest(f"--index {unknown[0]}: the config's indexes are {', '.join(known)}.")
    await accounts.set_tenant(msgspec.structs.replace(tenant, **changes))
    if any(limit is not None for name, limit in changes.items() if "usd" in name):
        for model in await _unpriced(read_config(options.config)):
            complain(
                f"no price is known for {model}: calls of this model for tenant {options.name} are "
                f'refused until the config has [prices."{model}"]'
            )
    await _show_tenant(accounts, options)


async def _unpriced(config: Config) -> Iterable[str]:
    """Return the models of the config that have no known price. Their calls are refused for tenants
    with a limit in dollars.
    """
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
    """Return a table with a row for each tenant: its limits and settings."""
    rows = [
        (each.name, each.indexes, [*_limits(each)], each.redact, each.training) for each in tenants
    ]
    return new_table(("tenant", "indexes", "limits", "redact", "training"), rows, texts=5)


async def _show_tenant(accounts: Accounts, options: NamedTenantOptions) -> None:
    """Print a tenant's limits, and the sums that it has spent this day and this month."""
    tenants = await _tenants(accounts)
    if (tenant := tenants.get(options.name)) is None:
        raise BadRequest(f"no tenant {options.name!r}; the tenants are: {', '.join(tenants)}.")
    now = datetime.now(UTC)
    sums = {entry.period: entry for entry in await accounts.spending(options.name)}
    spent = [sums.get(period, Spent(period)) for period in (f"{now:%Y-%m-%d}", f"{now:%Y-%m}")]
    if options.json:
        print(json_of({**msgspec.structs.asdict(tenant), "spent": spent}))
        return

    console = Console(highlight=False)
    console.print(_table([tenant]))
    rows = [(entry.period, entry.requests, entry.tokens, _usd(entry.nano_usd)) for entry in spent]
    console.print(new_table(("spent", "requests", "tokens", "USD, as far as known"), rows))


def _limits(tenant: Tenant) -> Iterator[str]:
    """Yield each limit that is set, after its option's name: "tokens-per-day 2,000,000"."""
    for name, limit in msgspec.structs.asdict(tenant).items():
        if isinstance(limit, int) and not isinstance(limit, bool):
            shown = _usd(limit) if "usd" in name else f"{limit:,}"
            yield f"{name.removeprefix('nano_').replace('_', '-')} {shown}"


def _usd(nano: int) -> str:
    """Return billionths of a dollar as exact dollars, with at least two decimals."""
    dollars, _, rest = f"{Decimal(nano) / _NANO:.9f}".partition(".")
    return f"{int(dollars):,}.{rest.rstrip('0'):0<2}"
