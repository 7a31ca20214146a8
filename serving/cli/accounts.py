"""`rolegate keys` and `rolegate tenants`: manage API keys, and limits and settings for tenants."""

import argparse
import asyncio
import getpass
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from rich.table import Table
from rolegate.client import AsyncClient
from rolegate.client.calls import Call
from rolegate.client.options import Result
from rolegate.v1 import admin_service_pb2 as pb

from router.access import CALLER, Spent, Tenant
from router.administration import (
    KEY_LIMITS,
    SETTINGS,
    Administration,
    Auditor,
    dollars,
    limit_from_text,
)
from router.edge.grpc.admin_service import AdminServicer
from router.edge.grpc.convert_request import from_proto, time_field
from router.errors import BadRequest
from router.store import SQLAccounts
from router.trace.identity import LOCAL, KeyScope
from serving.cli.command import POSITIONAL, exclusive, reads, run_subcommand
from serving.cli.grid import new_table
from serving.cli.options import (
    Name,
    Span,
    StoreOptions,
    TenantName,
    connection,
    json_of,
    tenant_name,
)
from serving.cli.store import opened_store
from serving.config.file import read_config
from serving.config.prices import unpriced
from serving.logs import errors_only
from serving.terminal import complain, table_console

_KEYS = """Manage the API keys of a gateway.

A key determines which tenant a request belongs to and what the request may do. Keys are stored in
the store that the config names. A running gateway applies changes within a second. With --address,
the command calls a running gateway instead; ROLEGATE_API_KEY must hold an operator's key.
"""
_TENANTS = """Manage what each tenant may spend, and what is stored of its runs.

Callers with an API key of a tenant see only the tenant's runs, and share its limits. Requests
without a key, or with an operator's key, count for the tenant `default`. Limits per day and month
use days and months in UTC. Tenants are stored in the store that the config names. With --address,
the command calls a running gateway instead; ROLEGATE_API_KEY must hold an operator's key.
"""


class StoreClient(AsyncClient):
    """Client that calls an `AdminServicer` in this process instead of a gateway."""

    def __init__(self, servicer: AdminServicer) -> None:
        self._servicer = servicer

    async def _call(self, call: Call[Result]) -> Result:
        return call.result(await getattr(self._servicer, call.method)(call.request, None))


def _limit(text: str, *, in_dollars: bool = False) -> int | None:
    try:
        return limit_from_text(text, in_dollars=in_dollars)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


Limit = Annotated[int, reads(_limit, "N")] | None | UnsetType
USDLimit = Annotated[int, reads(partial(_limit, in_dollars=True), "USD")] | None | UnsetType


class AccountOptions(StoreOptions):
    """Base class for options of the commands on keys and tenants: adds --json."""

    json: bool = False
    """Print JSON."""


class CreateKeyOptions(AccountOptions):
    """Options of `keys create`."""

    tenant: TenantName | None = None
    """Create the key for this tenant (default: an operator's key, which sees all tenants)."""
    scope: tuple[KeyScope, ...] = ()
    """Give the key these scopes (default: the scope `ask`, or for an operator's key all scopes)."""
    label: str = ""
    """Note for people about the key, such as its owner; `rolegate keys list` shows it."""


class KeyOptions(AccountOptions, kw_only=True):
    """Options of commands on one key."""

    key_id: Annotated[str, POSITIONAL]
    """ID of the key: the text between `rg_` and the next `_` in the key. `rolegate keys list` shows
    it.
    """


class RotateKeyOptions(KeyOptions):
    """Options of `keys rotate`."""

    grace: Span = 0.0
    """Keep the old key valid for this time, such as 12h (hours) or 7d (days), so that clients can
    change keys (default: revoke the old key immediately).
    """


class ExpireKeyOptions(KeyOptions):
    """Options of `keys expire`."""

    after: Annotated[Span, exclusive("expiry")] | None = None
    """Let the key expire after this time from now, such as 12h (hours) or 30d (days)."""
    never: Annotated[bool, exclusive("expiry")] = False
    """Remove the expiry: the key is valid until it is revoked."""


class LimitKeyOptions(KeyOptions):
    """Options of `keys limit`."""

    requests_per_minute: Limit = UNSET
    """Max requests per calendar minute; the word `none` removes the limit."""
    tokens_per_minute: Limit = UNSET
    """Max tokens per calendar minute, prompt and completion together; `none` removes the limit."""


class AuditOptions(StoreOptions):
    """Options of `keys audit`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Show at most this many entries of the audit log."""


def keys(arguments: Sequence[str]) -> int:
    """Run `rolegate keys`; return the exit status."""
    return run_subcommand(
        "keys",
        _KEYS,
        {
            "create": _create,
            "list": _list_keys,
            "rotate": _rotate,
            "expire": _expire,
            "revoke": _revoke,
            "limit": _limit_key,
            "audit": _audit,
        },
        arguments,
        _run,
    )


def _run(work: Callable[[AsyncClient, Any], Any], options: StoreOptions) -> int:
    """Run the coroutine function `work` with a client and `options`, and return 0. The client calls
    the gateway at `options.address`. Without an address, the client works on the config's store; a
    missing store is created. Raises `GatewayError`.
    """
    errors_only()

    async def run() -> None:
        if options.address is not None:
            async with AsyncClient(connection(options, options.address)) as client:
                await work(client, options)
            return
        assert options.config is not None
        config = read_config(options.config)
        async with opened_store(options.config, make=True) as database:
            administration = Administration(
                Auditor(SQLAccounts(database), "command"),
                config.all_indexes,
                partial(unpriced, config),
            )
            user = f"{getpass.getuser()}@{socket.gethostname()}"
            CALLER.set(msgspec.structs.replace(LOCAL, address=user))
            await work(StoreClient(AdminServicer(administration)), options)

    asyncio.run(run())
    return 0


async def _create(client: AsyncClient, options: CreateKeyOptions) -> None:
    """Create a key, and print it. The key cannot be shown again.

    Only the key's hash is stored. Clients send the key as `authorization: Bearer rg_…`.

    With --tenant, a caller with the key sees only the runs of that tenant, and spends from the
    tenant's quota. Without --tenant, the key is an operator's key, which sees all tenants. Scopes:
    `ask` allows asking questions and reading their runs, `documents` allows uploading and deleting
    documents, `train` allows exporting runs with their prompts and outputs, `operate` (operators'
    keys only) allows changing the executor's versions and comparing the stored token counts with
    the engines' counters.

    Until the first key is created, everybody on this machine may do everything, and other machines
    cannot reach the gateway. From the first key on, every caller needs a key, even after all keys
    are revoked. This command itself needs no key, so it always restores access.
    """
    created = await client.create_key(options.tenant, options.scope, options.label)
    _show_created(created, options)


async def _rotate(client: AsyncClient, options: RotateKeyOptions) -> None:
    """Replace a key by a new key with the same tenant, scopes, label, limits and expiry."""
    rotated = await client.rotate_key(options.key_id, options.grace)
    _show_created(rotated, options)
    if not options.json:
        complain(f"The new key replaces an older key. {_until(rotated.replaced)}")


def _show_created(
    created: pb.CreateKeyResponse | pb.RotateKeyResponse, options: AccountOptions
) -> None:
    key = created.key
    first = getattr(created, "first", False)
    if options.json:
        print(json_of({"key": created.key_text, **_public(key), "first": first}))
        return

    owner = f"tenant {key.tenant}" if key.tenant else "the operator, who sees all tenants"
    complain(f"New key of {owner}; scopes: {', '.join(key.scopes)}. It is shown only once:")
    print(created.key_text, flush=True)
    if first:
        complain(
            "This is the first key: from now on every caller of this store's gateways needs a key."
        )


async def _list_keys(client: AsyncClient, options: AccountOptions) -> None:
    """Show all keys, without their secrets."""
    listed = client.keys()
    keys = [key async for key in listed]
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
            [*key.scopes],
            key.label,
            _minute(key, "create_time"),
            _minute(key, "revoke_time"),
            [*_limits(from_proto(Tenant, key, name=""))],
        )
        for key in keys
    ]
    columns = ("key", "tenant", "scopes", "label", "made", "ends", "limits")
    table_console().print(new_table(columns, rows, texts=7), highlight=False)


async def _expire(client: AsyncClient, options: ExpireKeyOptions) -> None:
    """Let a key expire, or remove its expiry."""
    if options.after is None and not options.never:
        raise BadRequest("keys expire: no time is given; give --after or --never.")
    at = None
    if options.after is not None:
        at = datetime.now(UTC) + timedelta(seconds=options.after)
    key = await client.expire_key(options.key_id, at)
    print(json_of(_public(key)) if options.json else _until(key))


async def _revoke(client: AsyncClient, options: KeyOptions) -> None:
    """Revoke a key permanently; runs that were made with the key are kept."""
    revoked = await client.revoke_key(options.key_id)
    key = revoked.key
    if options.json:
        print(json_of(_public(key)))
        return
    print(f"Key {key.key_id} is revoked; running gateways refuse it within a second.")
    if revoked.last:
        print(
            "It was the last valid key: all callers are refused until you create another key with "
            "`rolegate keys create`, which itself needs no key."
        )


async def _limit_key(client: AsyncClient, options: LimitKeyOptions) -> None:
    """Limit the requests and tokens of a key in each calendar minute (from second 0 to 59).

    Limits whose options are not given do not change; the value `none` removes a limit.
    """
    changes = {name: limit for name in KEY_LIMITS if (limit := getattr(options, name)) is not UNSET}
    key = await client.update_key(pb.Key(key_id=options.key_id, **changes), list(changes))
    print(json_of(_public(key)))


async def _audit(client: AsyncClient, options: AuditOptions) -> None:
    """Print the audit log, one line of JSON for each event, newest event first.

    Each event is a change of a key, a tenant or an executor version. Its line says what was
    changed, by which key, and from where. The log has the events of all gateways that share the
    store, and of commands that opened the store.
    """
    for event in (await client.audit(options.limit)).events:
        print(json_of(event))


def _public(key: pb.Key) -> dict[str, object]:
    return {
        "key_id": key.key_id,
        "tenant": key.tenant or None,
        "scopes": [*key.scopes],
        "label": key.label,
        "created_at": time_field(key, "create_time"),
        "revoked_at": time_field(key, "revoke_time"),
        **{name: getattr(key, name) if key.HasField(name) else None for name in KEY_LIMITS},
    }


def _until(key: pb.Key) -> str:
    return f"Key {key.key_id} expires (UTC): {_minute(key, 'revoke_time') or 'never'}"


def _minute(key: pb.Key, field: str) -> str:
    at = time_field(key, field)
    return "" if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


class NamedTenantOptions(AccountOptions, kw_only=True):
    """Options of commands on one tenant."""

    name: Annotated[str, POSITIONAL, reads(tenant_name, "NAME")]
    """Name of the tenant: 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a
    letter or a digit.
    """


class SetTenantOptions(NamedTenantOptions):
    """Options of `tenants set`."""

    tokens_per_day: Limit = UNSET
    """Max tokens per day, prompt and completion together; `none` removes the limit."""
    nano_usd_per_day: USDLimit = msgspec.field(default=UNSET, name="usd_per_day")
    """Max dollars per day; the word `none` removes the limit."""
    requests_per_day: Limit = UNSET
    """Max requests per day; the word `none` removes the limit."""
    tokens_per_month: Limit = UNSET
    """Max tokens per month, prompt and completion together; `none` removes the limit."""
    nano_usd_per_month: USDLimit = msgspec.field(default=UNSET, name="usd_per_month")
    """Max dollars per month; the word `none` removes the limit."""
    requests_per_month: Limit = UNSET
    """Max requests per month; the word `none` removes the limit."""
    requests_per_minute: Limit = UNSET
    """Max requests per calendar minute (from second 0 to 59); `none` removes the limit."""
    tokens_per_minute: Limit = UNSET
    """Max tokens per calendar minute, prompt and completion together; `none` removes the limit."""
    runs_in_flight: Limit = UNSET
    """Max runs at the same time; `none` removes the limit."""
    redact: bool | UnsetType = UNSET
    """Store no texts of the tenant's runs, only figures such as token counts and times. A new
    tenant has --no-redact, which stores the texts too.
    """
    indexes: tuple[Name, ...] | UnsetType = msgspec.field(default=UNSET, name="index")
    """Let the tenant search only the indexes with these names: `default` (of the config's table
    [retrieval]), or NAME of a table [indexes.NAME]. A new tenant may search only `default`.
    """
    training: bool | UnsetType = UNSET
    """Allow executors to be trained on the tenant's runs. For a new tenant, this is allowed."""


def tenants(arguments: Sequence[str]) -> int:
    """Run `rolegate tenants`; return the exit status."""
    return run_subcommand(
        "tenants",
        _TENANTS,
        {
            "list": _list_tenants,
            "set": _set_tenant,
            "show": _show_tenant,
        },
        arguments,
        _run,
    )


async def _set_tenant(client: AsyncClient, options: SetTenantOptions) -> None:
    """Create a tenant, or change its settings.

    Settings whose options are not given do not change; the value `none` removes a limit. A running
    gateway applies new limits from the next request on.

    No limit is ever exceeded: before each model call, the gateway reserves the highest cost that
    the call can have.
    """
    changes = {name: value for name in SETTINGS if (value := getattr(options, name)) is not UNSET}
    changed = await client.update_tenant(
        pb.Tenant(name=options.name, **changes), list(changes), allow_missing=True
    )
    for model in changed.unpriced_models:
        complain(
            f"no price is known for {model}: because of its limit in dollars, {options.name} "
            f'cannot call this model until the config has [prices."{model}"]'
        )
    await _show_tenant(client, options)


async def _list_tenants(client: AsyncClient, options: AccountOptions) -> None:
    """Show all tenants with their limits."""
    tenants = [from_proto(Tenant, message) async for message in client.tenants()]
    if options.json:
        print(json_of(tenants))
        return
    table_console().print(_table(tenants), highlight=False)


def _table(tenants: Iterable[Tenant]) -> Table:
    """Return a table with a row for each tenant: its limits and settings."""
    rows = [
        (each.name, each.indexes, [*_limits(each)], each.redact, each.training) for each in tenants
    ]
    return new_table(("tenant", "indexes", "limits", "redact", "training"), rows, texts=5)


async def _show_tenant(client: AsyncClient, options: NamedTenantOptions) -> None:
    """Show a tenant's limits, and what it has spent today and this month."""
    shown = await client.tenant(options.name)
    tenant = from_proto(Tenant, shown.tenant)
    spent = [from_proto(Spent, message) for message in shown.spent]
    if options.json:
        print(json_of({**msgspec.structs.asdict(tenant), "spent": spent}))
        return

    console = table_console()
    console.print(_table([tenant]), highlight=False)
    rows = [
        (entry.period, entry.requests, entry.tokens, dollars(entry.nano_usd)) for entry in spent
    ]
    spending = new_table(("spent", "requests", "tokens", "USD, as far as known"), rows)
    console.print(spending, highlight=False)


def _limits(tenant: Tenant) -> Iterator[str]:
    """Yield a text such as "tokens-per-day 2,000,000" for each limit that the tenant has."""
    for name, limit in msgspec.structs.asdict(tenant).items():
        if isinstance(limit, int) and not isinstance(limit, bool):
            shown = dollars(limit) if "usd" in name else f"{limit:,}"
            yield f"{name.removeprefix('nano_').replace('_', '-')} {shown}"
