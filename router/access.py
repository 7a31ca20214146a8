"""API keys, tenants, and the scopes of a key.

The text of a key is `rg_<key_id>_<secret>`. Only the SHA-256 of the secret is stored, so that keys
in a stolen database cannot be used.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

from router.background import loop_time
from router.errors import AccessDenied, BadRequest, NoKey, StoreFailed
from router.frozen import Frozen
from router.trace.identity import DEFAULT_TENANT, LOCAL, SHADOW_TENANT, Identity, KeyScope
from router.trace.scope import DEFAULT_INDEX, uploads_of

CALLER = ContextVar[Identity]("caller", default=LOCAL)
"""Identity of the caller of the current request. The servers set it after they have checked the
key.
"""


def caller() -> Identity:
    """Return the identity of the caller of the current request."""
    return CALLER.get()


CLOCK_SKEW_S = 10.0
"""Assumed max difference between the clocks of gateways that share a store, in seconds."""


class Tenant(Frozen):
    """Settings of a tenant, that is a customer or a team with its own keys and quotas.

    A limit of None means no limit. Minutes, days and months are those of the calendar, in UTC.
    """

    name: str
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    nano_usd_per_day: int | None = None
    """Max cost in a day, in billionths of a dollar."""
    nano_usd_per_month: int | None = None
    requests_per_day: int | None = None
    requests_per_month: int | None = None
    requests_per_minute: int | None = None
    """Max number of requests in a calendar minute."""
    tokens_per_minute: int | None = None
    runs_in_flight: int | None = None
    """Max number of the tenant's runs that are under way at the same time."""
    redact: bool = False
    """True if no texts of the tenant's runs are stored, such as questions and answers, but only
    figures, such as tokens, costs and times.
    """
    training: bool = True
    """True if executors may be trained on the tenant's runs."""
    indexes: tuple[str, ...] = (DEFAULT_INDEX,)
    """Names of the indexes that the tenant may search, sorted."""


class Key(Frozen):
    """An API key as it is stored, without its secret."""

    key_id: str
    """Public identifier of the key: the part of the key's text between `rg_` and the secret."""
    tenant: str | None
    """Name of the tenant that the key belongs to; None for an operator's key."""
    scopes: frozenset[KeyScope]
    """The scopes of requests that the key permits: `ask`, `documents`, `train`, `operate`."""
    label: str
    """Description for people, such as the name of the key's user."""
    secret_sha256: str
    created_at: float
    """Unix time, seconds."""
    revoked_at: float | None = None
    """Unix time from which the key is refused; in the future for a key that will expire. None for a
    key that was not revoked and does not expire.
    """
    requests_per_minute: int | None = None
    """Max number of requests with the key in a calendar minute; None for no limit."""
    tokens_per_minute: int | None = None

    @property
    def ended(self) -> bool:
        """True if the key was revoked or has expired. A key expires `CLOCK_SKEW_S` early, so that a
        gateway whose clock is behind refuses a key that another gateway has revoked.
        """
        return self.revoked_at is not None and self.revoked_at <= time.time() + CLOCK_SKEW_S


class Spent(Frozen):
    """The amounts that a tenant has spent in one day or one month. They count against the tenant's
    quotas.
    """

    period: str
    """The day or the month, in UTC, such as 2026-11-21 or 2026-11."""
    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    """Cost, in billionths of a dollar."""


class QuotaUse(Frozen):
    """A quota of a tenant, and how much of it is spent in the current day or month."""

    tenant: str
    quota: str
    """Name of the quota, such as `tokens_per_day`."""
    period: str
    """The current day or month, in UTC, such as 2026-11-21 or 2026-11."""
    limit: int
    used: int = 0

    @property
    def key(self) -> tuple[str, str, str, int]:
        """Identity of a warning about this quota: all fields except `used`."""
        return self.tenant, self.quota, self.period, self.limit

    @property
    def left(self) -> float:
        """The share of the limit that is not spent yet, from 0 to 1."""
        return max(0.0, 1 - self.used / self.limit)


class AuditEvent(Frozen):
    """An administrative act, as recorded in the audit log. It contains no secrets."""

    act: str
    """Name of the act, such as `revoke_key`."""
    target: str
    """The object of the act: the identifier of a key, or the name of a tenant or executor version.
    """
    tenant: str | None
    """The tenant that the act is about; None for operators' keys and for executor versions."""
    details_json: str
    """The values that the act sets, as a JSON object."""
    key_id: str
    """Identifier of the operator's key with which the act was done; empty for commands, and while
    no keys exist.
    """
    door: str
    """How the operator reached the gateway or its store: `command`, `grpc` or `page`."""
    address: str
    """Network address from which the request came; for a command, USER@HOST of the caller."""
    at: float
    """Unix time, seconds."""
    result: str = "done"
    """`done`, or the name of the error with which the act was refused."""
    number: int = 0
    """Number of the event, from 1; 0 until it is stored."""


LAST_EVENT = 2**62
"""Upper bound of the numbers of events in the audit log."""
ACT = ContextVar[AuditEvent | None]("act", default=None)
"""The administrative act that the current task carries out; None if it carries out none. The store
writes the act to the audit log, in the same transaction as the act's changes.
"""


class Accounts(Protocol):
    """Storage of tenants, of keys and of the audit log. Every method raises `StoreFailed` if the
    store fails.
    """

    async def keys(self) -> list[Key]:
        """Return all keys, oldest first, including revoked ones."""

    async def add_key(self, key: Key) -> bool:
        """Store a key, and also the key's tenant if that tenant is not stored yet. Return True if
        this is the first key in the store.
        """

    async def change_key(
        self, key_id: str, changes: Mapping[str, float | None], successor: Key | None = None
    ) -> Key | None:
        """Change fields of a key that has not ended, and return the key. `changes`: the new values
        of `revoked_at` or of limits, by name. `successor`: a new key to store in the same
        transaction. Return None, and change nothing, if the key has ended or does not exist.
        """

    async def tenants(self) -> list[Tenant]:
        """Return all tenants, sorted by name."""

    async def set_tenant(self, tenant: Tenant, only: Collection[str] | None = None) -> None:
        """Store a tenant's settings. They replace the tenant's earlier settings, if any. `only`:
        names of the settings to replace if the tenant is stored already; None for all.
        """

    async def note(self) -> None:
        """Write the administrative act of the current task (`ACT`) to the audit log."""

    async def audit(self, size: int, before: int = LAST_EVENT) -> list[AuditEvent]:
        """Return at most `size` events with numbers below `before`, newest first."""

    async def spending(self, tenant: str) -> list[Spent]:
        """Return the spending of the tenant, newest first: one entry for each day, and one for each
        month, in which the tenant sent requests.
        """


_FRESH_S = 0.5
"""Max age of the keys in memory, in seconds; after that, they are read from the store again. A key
that another process has revoked may be accepted for this long. After that, the key's requests that
are under way are cancelled.
"""
_SENT = re.compile(r"bearer +rg_([0-9a-f]+)_([\w-]+)", re.ASCII | re.IGNORECASE)
_ABSENT = (
    "A key is needed: send the header `authorization: Bearer rg_…`, or set ROLEGATE_API_KEY for "
    "commands and clients. The operator creates keys (`rolegate keys create`)."
)
_UNKNOWN = (
    "The API key is unknown, revoked or expired; ask the operator for another key, and send it as "
    "`Bearer rg_…`."
)


def new_key(tenant: str | None, scopes: Iterable[KeyScope], label: str = "") -> tuple[str, Key]:
    """Create a key. Return the text that its user sends, and the `Key` to store.

    `tenant`: None for an operator's key. Raises `BadRequest` if the tenant's name is reserved.
    """
    if tenant == SHADOW_TENANT:
        raise BadRequest(
            f"tenant {tenant!r}: this name is reserved for the costs of trials of executor "
            "versions; choose another name."
        )
    key_id = secrets.token_hex(4)
    secret = secrets.token_urlsafe(32)
    return f"rg_{key_id}_{secret}", Key(
        key_id,
        tenant,
        frozenset(scopes),
        label,
        _sha256(secret),
        time.time(),
    )


class Access:
    """Identifies callers by their API keys. As long as no key was ever created, callers need no
    key, and each of them is identified as `LOCAL`, the operator.
    """

    def __init__(
        self, accounts: Accounts, extra: Key | None = None, *, uploads: bool = False
    ) -> None:
        """`extra`: a key that is valid in addition to the stored ones. `uploads`: whether each
        tenant may also search the documents that it has uploaded.
        """
        self._uploads = uploads
        self._accounts = accounts
        self._extra = [extra] if extra else []
        self._keys = dict[str, Key]()
        self._indexes = dict[str, tuple[str, ...]]()
        """Names of the indexes that each tenant may search, by tenant."""
        self._required = False
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._served = dict[asyncio.Task[Any], str]()
        """For each task that serves a request, the identifier of the key of that request."""

    async def identify(self, authorization: str | None) -> Identity:
        """Return the identity of a caller. `authorization`: the header of that name in the request;
        None if there is none.

        Raises `NoKey` if the key is missing, unknown, revoked or expired; the message never
        contains the key. Raises `StoreFailed` if the keys cannot be read.
        """
        if not await self.required():
            return self._identity(LOCAL.tenant, LOCAL.scopes)
        if not authorization:
            raise NoKey(_ABSENT)
        sent = _SENT.fullmatch(authorization)
        key = self._keys.get(sent[1].lower()) if sent else None
        if not sent or not key or not hmac.compare_digest(_sha256(sent[2]), key.secret_sha256):
            raise NoKey(_UNKNOWN)
        return self._identity(key.tenant, key.scopes, key.key_id)

    async def renewed(self, known: Identity) -> Identity:
        """Return the current identity for the key of `known`, an identity that `identify` returned
        earlier. Raises `NoKey` if the key was revoked or has expired meanwhile, and `StoreFailed`
        if the keys cannot be read.
        """
        await self.required()
        if (key := self._keys.get(known.key_id)) is None:
            raise NoKey(_UNKNOWN)
        return self._identity(key.tenant, key.scopes, key.key_id)

    def _identity(
        self, tenant: str | None, scopes: frozenset[KeyScope], key_id: str = ""
    ) -> Identity:
        owner = tenant or DEFAULT_TENANT
        indexes = self._indexes.get(owner, LOCAL.indexes)
        if self._uploads:
            indexes = (*sorted((*indexes, uploads_of(owner))),)
        return Identity(tenant, scopes, key_id, indexes)

    def outdate(self) -> None:
        """Make the next request read the keys again. Called after a key has changed."""
        self._read_at = None

    async def required(self) -> bool:
        """Return whether callers need a key. They need one as soon as the first key was created,
        even if all keys have been revoked since. Raises `StoreFailed` if the keys cannot be read.
        """
        if not self._fresh:
            async with self._reading:
                if not self._fresh:
                    await self._read()
        return self._required

    @property
    def _fresh(self) -> bool:
        return self._read_at is not None and loop_time() - self._read_at < _FRESH_S

    @contextmanager
    def serving(self, identity: Identity) -> Iterator[None]:
        """Mark the current task as serving a request of `identity` while the context is open. If
        the key is revoked meanwhile, the task is cancelled, and the context raises `NoKey`.
        """
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        if identity.key_id:
            self._served[task] = identity.key_id
        try:
            yield
        except asyncio.CancelledError:
            if not identity.key_id or task in self._served or task.uncancel() > before:
                raise
            raise NoKey(_UNKNOWN) from None
        finally:
            self._served.pop(task, None)

    async def follow(self) -> None:
        """Until cancelled, read the keys again at short intervals while requests with keys are
        being served, so that requests whose keys were revoked are cancelled.
        """
        while True:
            await asyncio.sleep(_FRESH_S)
            if self._served:
                with suppress(StoreFailed):
                    async with self._reading:
                        await self._read()

    async def _read(self) -> None:
        now = loop_time()
        stored = await self._accounts.keys()
        tenants = await self._accounts.tenants()
        self._indexes = {tenant.name: tenant.indexes for tenant in tenants}
        good = (key for key in (*stored, *self._extra) if not key.ended)
        self._keys = {key.key_id: key for key in good}
        self._required |= bool(stored)
        self._read_at = now
        for task in [task for task, key_id in self._served.items() if key_id not in self._keys]:
            del self._served[task]
            task.cancel()


def check_scope(identity: Identity, scope: KeyScope) -> None:
    """Raise `AccessDenied` if the caller's key does not have `scope`. For a tenant's key, the scope
    `operate` is denied even if the key lists it.
    """
    if scope not in identity.scopes:
        held = ", ".join(sorted(identity.scopes))
        raise AccessDenied(
            f"This request needs a key with the scope `{scope}`; your key has {held}. Ask the "
            "operator for another key."
        )
    if scope == "operate" and identity.tenant is not None:
        raise AccessDenied(
            "Only the operator may do this, but your key is a tenant's; use an operator's key."
        )


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
