"""`rolegate keys`: who may ask a gateway, and for what.

Keys are kept in the store that the config names. A gateway that runs hears of them within two seconds.
"""

import argparse
import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.access import Accounts, Key, new_key
from router.errors import BadRequest
from router.store.accounts import SQLAccounts
from router.trace.identity import SCOPES
from serving.cli.options import add_config, tenant_name
from serving.cli.store import opened_store
from serving.logs import errors_only

_CREATE = """\
Makes a key and prints it, this once: only its hash is kept. Clients send it as `authorization: Bearer rg_…`.

A tenant's key sees and spends what is that tenant's, and nothing else. Without --tenant it is a key of the operator,
who sees all tenants. Scopes: `ask` puts questions and sees what became of them, `train` exports traces, `operate`
compares the ledger with the engines (the operator's keys only).

While there are no keys, everybody on this machine may ask for everything, and nobody else can reach the gateway. From
the first key on, every caller needs one."""


def main(arguments: Sequence[str]) -> int:
    """Create, list or revoke."""
    parser = argparse.ArgumentParser(
        prog="rolegate keys", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser(
        "create",
        help="make a key",
        description=_CREATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    create.add_argument("--tenant", type=tenant_name, metavar="NAME", help="whose it is (default: the operator's)")
    create.add_argument(
        "--scope",
        nargs="+",
        choices=sorted(SCOPES),
        metavar="SCOPE",
        help="ask, train, operate (default: ask; of the operator's, all)",
    )
    create.add_argument("--label", default="", metavar="TEXT", help="what to know it by in `keys list`")
    listing = commands.add_parser("list", help="show the keys", description="Shows all keys, without their secrets.")
    revoke = commands.add_parser(
        "revoke", help="make a key worthless", description="Makes a key worthless, for good. Its runs stay."
    )
    revoke.add_argument("key_id", metavar="KEY_ID", help="what stands between `rg_` and the next `_`")
    for command in (create, listing, revoke):
        command.add_argument("--json", action="store_true", help="print JSON")
        add_config(command)
    given = parser.parse_args(arguments)
    errors_only()
    asyncio.run(_run(given))
    return 0


async def _run(given: argparse.Namespace) -> None:
    async with opened_store(given, make=True) as database:
        accounts = SQLAccounts(database)
        match given.command:
            case "create":
                await _create(accounts, given)
            case "list":
                _show(await accounts.keys(), given)
            case "revoke":
                await _revoke(accounts, given)


async def _create(accounts: Accounts, given: argparse.Namespace) -> None:
    scopes = frozenset(given.scope or (SCOPES if given.tenant is None else ["ask"]))
    if given.tenant is not None and "operate" in scopes:
        raise BadRequest("--scope operate: is for the operator's keys; leave out --tenant, or that scope.")
    text, key = new_key(given.tenant, scopes, given.label)
    first = await accounts.add_key(key)
    if given.json:
        print(msgspec.json.encode({"key": text, **_public(key), "first": first}).decode())
        return
    whose = "of the operator, who sees all tenants" if key.tenant is None else f"of tenant {key.tenant}"
    progress = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    progress.print(f"A key {whose}, for {', '.join(sorted(scopes))}. It is shown this once:")
    print(text, flush=True)
    if first:
        progress.print("This is the first key: from now on every caller of this store's gateways needs one.")


def _show(keys: Sequence[Key], given: argparse.Namespace) -> None:
    if given.json:
        print(msgspec.json.encode([_public(key) for key in keys]).decode())
        return
    if not keys:
        print("There are no keys: everybody on this machine may ask for everything, and nobody else gets in.")
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
    key_id = given.key_id.removeprefix("rg_").partition("_")[0]  # a whole key will do, and is not repeated
    key = await accounts.revoke_key(key_id)
    if key is None:
        raise BadRequest(f"{key_id!r}: there is no such key; `rolegate keys list` shows them.")
    if given.json:
        print(msgspec.json.encode(_public(key)).decode())
    else:
        print(f"Key {key.key_id} is revoked; gateways that run refuse it within two seconds.")


def _public(key: Key) -> dict[str, object]:
    fields = msgspec.structs.asdict(key)
    del fields["secret_sha256"]
    return {**fields, "scopes": sorted(key.scopes)}


def _day(moment: float | None) -> str:
    return "" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}"
