"""Changes of keys and tenants by an operator, and the audit log of all administrative acts.

Commands, the gRPC service and the web pages all use this module, so that they have the same rules
and the same log.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar, get_args

import msgspec
import structlog
from msgspec.structs import replace

from router.access import ACT, Accounts, AuditEvent, Key, Spent, Tenant, caller, new_key
from router.errors import BadRequest, KeyNotFound, RolegateError, StoreFailed, TenantNotFound
from router.frozen import Frozen
from router.trace.identity import DEFAULT_TENANT, SCOPES, KeyScope
from router.trace.scope import DEFAULT_INDEX

_log = structlog.get_logger("admin")
T = TypeVar("T")
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Pattern of tenants' names. Such names need no quoting in shells, URLs and labels of metrics."""
SETTINGS = Tenant.__struct_fields__[1:]
"""Names of the settings of a tenant."""
LIMITS = tuple(name for name in SETTINGS if name not in ("redact", "training", "indexes"))
"""Names of the settings that are limits."""
KEY_LIMITS = "requests_per_minute", "tokens_per_minute"
"""Names of the limits of a key."""
MAX_LIMIT = 2 * 10**16
"""Max value of a limit, in requests, runs, tokens, or billionths of a dollar (20 million dollars).
Sums up to this value fit into the integers of the database.
"""
NANO = 1_000_000_000
_LONGEST_LABEL = 200
_AMOUNT = re.compile(r"(?=.)\d{0,17}(\.\d{1,9})?", re.ASCII)
_LONGEST_GRACE_S = 366 * 24 * 3600.0
_LAST_TIME = 253_370_764_800.0
"""The last day of the year 9999, as Unix time."""


class CreatedKey(NamedTuple):
    """A new key, and its text. The text is not stored, so it cannot be shown again."""

    text: str
    key: Key
    first: bool = False
    """True for the first key of the store."""
    replaced: Key | None = None
    """The key that the new key replaces; None if it replaces none."""


class Auditor(Frozen):
    """Writes all administrative acts to the audit log and to the gateway's log."""

    accounts: Accounts
    door: str
    """How the operator reached the gateway; see `AuditEvent.door`."""
    on_change: Callable[[], None] = lambda: None
    """Called after each act that has succeeded."""

    async def act(
        self,
        act: str,
        target: str,
        work: Awaitable[T],
        tenant: str | None = None,
        **known: object,
    ) -> T:
        """Carry out an administrative act on `target`: await `work`, and return the result of
        `work`. Log the act as `admin.ACT`, with the identifier of the caller's key. The act is
        completed and logged even if the request is cancelled meanwhile, for instance because the
        act revokes the key of the request. If `work` raises an error, the error is written to the
        audit log only, not to the gateway's log.

        `tenant`: the tenant that the act is about. `known`: the values that the act sets.
        """
        by = caller()
        event = AuditEvent(
            act,
            target,
            tenant,
            msgspec.json.encode(known).decode(),
            by.key_id,
            self.door,
            by.address,
            time.time(),
        )

        async def logged() -> T:
            ACT.set(event)
            try:
                result = await work
            except RolegateError as error:
                ACT.set(replace(event, result=type(error).__name__))
                with suppress(StoreFailed):
                    await self.accounts.note()
                raise
            _log.info(
                f"admin.{act}",
                by=by.key_id,
                door=self.door,
                target=target,
                tenant=tenant,
                **known,
            )
            self.on_change()
            return result

        return await asyncio.shield(asyncio.create_task(logged()))


class Administration:
    """Manages keys and tenants. Every method raises `StoreFailed` if the store fails."""

    def __init__(
        self,
        auditor: Auditor,
        indexes: Collection[str],
        unpriced: Callable[[], Awaitable[Iterable[str]]],
    ) -> None:
        """`indexes`: names of the indexes of the config. `unpriced`: returns the models of the
        config without a known price.
        """
        self._accounts = auditor.accounts
        self._act = auditor.act
        self.audit = auditor.accounts.audit
        self._indexes = indexes
        self._unpriced = unpriced

    async def keys(self) -> list[Key]:
        """Return all keys, oldest first."""
        return await self._accounts.keys()

    async def create_key(
        self, tenant: str | None, scopes: Iterable[str] = (), label: str = ""
    ) -> CreatedKey:
        """Create a key of a tenant, or if `tenant` is None, an operator's key. Without `scopes`, a
        tenant's key gets the scope `ask`, and an operator's key all scopes. Raises `BadRequest` for
        an invalid name, scope or label.
        """
        if tenant is not None:
            _check_name(tenant)
        default = SCOPES if tenant is None else frozenset[KeyScope](["ask"])
        chosen = frozenset(scopes) or default
        if unknown := sorted(chosen - SCOPES):
            raise BadRequest(
                f"scope {unknown[0][:40]!r}: must be one of {', '.join(get_args(KeyScope))}."
            )
        if tenant is not None and "operate" in chosen:
            raise BadRequest(
                "scope operate: only keys without a tenant can have it; leave out tenant or scope."
            )
        if len(label) > _LONGEST_LABEL or not label.isprintable():
            raise BadRequest(
                f"label {label!r:.40}: has {len(label)} characters; a label must have at most "
                f"{_LONGEST_LABEL}, and all must be printable."
            )
        text, key = new_key(tenant, SCOPES.intersection(chosen), label)
        first = await self._act(
            "create_key",
            key.key_id,
            self._accounts.add_key(key),
            tenant,
            scopes=sorted(key.scopes),
        )
        return CreatedKey(text, key, first)

    async def rotate_key(self, key_id: str, grace_s: float) -> CreatedKey:
        """Replace a key by a new one with the same tenant, scopes, label, limits and expiry. The
        old key stays valid for `grace_s` seconds, unless it expires earlier. Raises `KeyNotFound`
        for an unknown key, and `BadRequest` if the key has ended or `grace_s` is out of range.
        """
        if not 0 <= grace_s <= _LONGEST_GRACE_S:
            raise BadRequest(
                f"grace: must be from 0 to {_LONGEST_GRACE_S:.0f} s (366 days), got {grace_s:g} s."
            )
        old = await self._known(key_id)
        text, made = new_key(old.tenant, old.scopes)
        key = replace(
            old,
            key_id=made.key_id,
            secret_sha256=made.secret_sha256,
            created_at=made.created_at,
        )
        ends_at = time.time() + grace_s
        if old.revoked_at is not None:
            ends_at = min(ends_at, old.revoked_at)
        changes = {"revoked_at": ends_at}
        replaced = await self._change(
            "rotate_key", old, changes, key, new_key=key.key_id, ends_at=ends_at
        )
        return CreatedKey(text, key, replaced=replaced)

    async def expire_key(self, key_id: str, at: float | None) -> Key:
        """Let a key expire at the Unix time `at`, or never if `at` is None. Return the key.
        Raises `KeyNotFound`, and `BadRequest` for a key that has ended or a time that is not in the
        future.
        """
        if at is not None and not time.time() < at <= _LAST_TIME:
            raise BadRequest(
                f"expire_time: the Unix time {at:.0f} is "
                f"{'after the year 9999' if at > _LAST_TIME else 'not in the future'}; give a "
                "time from now to the year 9999."
            )
        key = await self._known(key_id)
        return await self._change("expire_key", key, {"revoked_at": at}, ends_at=at)

    async def update_key(self, key_id: str, limits: Mapping[str, int | None]) -> Key:
        """Change limits of a key, and return the key. `limits`: new values by name; None for no
        limit. Raises `KeyNotFound`, and `BadRequest` for a key that has ended or an invalid limit.
        """
        self._check_settings(limits)
        return await self._change("update_key", await self._known(key_id), limits, None, **limits)

    async def revoke_key(self, key_id: str) -> tuple[Key, bool]:
        """Revoke a key, unless it has ended already. Return the key, and True if no valid key is
        left. Raises `KeyNotFound` for an unknown key.
        """
        known = await self._known(key_id)
        revoked = await self._act(
            "revoke_key",
            known.key_id,
            self._accounts.change_key(known.key_id, {"revoked_at": time.time()}),
            known.tenant,
        )
        keys = await self._accounts.keys()
        return revoked or known, all(key.ended for key in keys)

    async def tenants(self) -> list[Tenant]:
        """Return all tenants: first `default`, which always exists, then the others by name."""
        return list((await self._tenants()).values())

    async def _tenants(self) -> dict[str, Tenant]:
        default = Tenant(DEFAULT_TENANT)
        return {tenant.name: tenant for tenant in (default, *await self._accounts.tenants())}

    async def tenant(self, name: str) -> tuple[Tenant, list[Spent]]:
        """Return a tenant, and the amounts that it has spent on the current day and in the current
        month. Raises `TenantNotFound`.
        """
        tenants = await self._tenants()
        if (tenant := tenants.get(name)) is None:
            raise TenantNotFound(
                f"no tenant {name[:80]!r}; the tenants are: {', '.join([*tenants][:10])}."
            )
        now = datetime.now(UTC)
        sums = {entry.period: entry for entry in await self._accounts.spending(name)}
        return tenant, [
            sums.get(period, Spent(period)) for period in (f"{now:%Y-%m-%d}", f"{now:%Y-%m}")
        ]

    async def update_tenant(
        self, name: str, changes: Mapping[str, Any], *, create: bool = True
    ) -> tuple[Tenant, Sequence[str]]:
        """Change settings of a tenant, or create the tenant. Return the tenant. If a limit in
        dollars was set, also return the models without a known price, because the tenant's
        calls of these models are refused from now on.

        `changes`: new values by the name of the setting; empty `indexes` mean the default index.
        `create`: False to raise `TenantNotFound` for a tenant that does not exist. Raises
        `BadRequest` for an invalid value.
        """
        _check_name(name)
        self._check_settings(changes)
        changes = dict(changes)
        if "indexes" in changes:
            changes["indexes"] = tuple(sorted({*changes["indexes"]})) or (DEFAULT_INDEX,)
        known = await self._tenants()
        if not create and name not in known:
            raise TenantNotFound(
                f"no tenant {name!r}; set allow_missing to create it (`rolegate tenants set` does)."
            )
        tenant = replace(known.get(name, Tenant(name)), **changes)
        await self._act(
            "update_tenant",
            name,
            self._accounts.set_tenant(tenant, list(changes)),
            name,
            **changes,
        )
        limited = any("usd" in setting and changes[setting] for setting in changes)
        return (await self.tenant(name))[0], [*await self._unpriced()] if limited else []

    def _check_settings(self, changes: Mapping[str, Any]) -> None:
        """Raise `BadRequest` for a limit out of range or an index that is not in the config."""
        for name in LIMITS:
            limit = changes.get(name)
            if limit is not None and not 0 <= limit <= MAX_LIMIT:
                raise BadRequest(f"{name}: must be from 0 to {MAX_LIMIT}, got {limit}.")
        if unknown := sorted({*changes.get("indexes", ())} - {*self._indexes}):
            known = ", ".join(self._indexes)
            raise BadRequest(
                f"index {unknown[0][:80]!r}: is not in the config; use one of {known}."
            )

    async def _known(self, key_id: str) -> Key:
        """Return a key by its identifier. The text of a key is accepted too, but error messages
        never contain its secret.
        """
        key_id = key_id.removeprefix("rg_").partition("_")[0]
        keys = await self._accounts.keys()
        if (key := next((key for key in keys if key.key_id == key_id), None)) is None:
            raise KeyNotFound(
                f"no key has the identifier {key_id[:40]!r}; `rolegate keys list` shows all keys."
            )
        return key

    async def _change(
        self,
        act: str,
        key: Key,
        changes: Mapping[str, float | None],
        successor: Key | None = None,
        **known: object,
    ) -> Key:
        """Change a key, and log the change as the administrative act `act`. For the parameters, see
        `Accounts.change_key` and `Auditor.act`. Raises `BadRequest` for a key that has ended.
        """

        async def change() -> Key:
            changed = await self._accounts.change_key(key.key_id, changes, successor)
            if changed is None:
                raise BadRequest(
                    f"key {key.key_id}: revoked or expired; create another (rolegate keys create)."
                )
            return changed

        return await self._act(act, key.key_id, change(), key.tenant, **known)


def limit_from_text(text: str, *, in_dollars: bool) -> int | None:
    """Parse a limit that a user has typed. `in_dollars`: True for dollars, which are returned in
    billionths of a dollar; False for a whole number. Return None for "none", that is, no limit.
    Raises `BadRequest` for any other text.
    """
    if text == "none":
        return None
    must = f"a whole number from 0 to {MAX_LIMIT}"
    if in_dollars:
        must = "dollars, 0 or more, such as 2.50"
    amount = Decimal(MAX_LIMIT + 1)
    if _AMOUNT.fullmatch(text):
        amount = Decimal(text) * (NANO if in_dollars else 1)
    if amount > MAX_LIMIT or amount != int(amount):
        raise BadRequest(f"must be {must}, or none, got {text[:40]!r}")
    return int(amount)


def dollars(nano: int) -> str:
    """Format billionths of a dollar as dollars, without rounding, with at least two decimals."""
    whole, _, rest = f"{Decimal(nano) / NANO:.9f}".partition(".")
    return f"{int(whole):,}.{rest.rstrip('0'):0<2}"


def _check_name(name: str) -> None:
    if not TENANT_NAME.fullmatch(name):
        raise BadRequest(
            f"tenant {name[:80]!r}: must be 1 to 64 letters, digits, dots, underscores or hyphens, "
            "beginning with a letter or a digit."
        )
