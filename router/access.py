"""API keys, tenants, and the scopes of a key.

A key is `rg_<key_id>_<secret>`. Only the SHA-256 of its secret is stored, so that a stolen
database opens nothing.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from router.errors import AccessDenied, BadRequest, NoKey, StoreFailed
from router.trace.identity import LOCAL, SHADOW_TENANT, Identity, KeyScope

CALLER: ContextVar[Identity] = ContextVar("caller", default=LOCAL)
"""Identity of the current call; set where keys are checked."""


def caller() -> Identity:
    """Return the identity behind the current call."""
    return CALLER.get()


class Tenant(msgspec.Struct, frozen=True):
    """Settings of a tenant; None is no limit. Days and months are in UTC."""

    name: str
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    nano_usd_per_day: int | None = None
    """Billionths of a dollar."""
    nano_usd_per_month: int | None = None
    requests_per_day: int | None = None
    requests_per_month: int | None = None
    runs_in_flight: int | None = None
    redact: bool = False
    """True stores the figures of its runs, but none of their texts."""
    training: bool = True
    """True if its runs may train an executor."""

    @property
    def limited(self) -> bool:
        """True if its tokens or its money are limited, so that calls must be reserved."""
        limits = (
            self.tokens_per_day,
            self.tokens_per_month,
            self.nano_usd_per_day,
            self.nano_usd_per_month,
        )
        return any(limit is not None for limit in limits)


class Key(msgspec.Struct, frozen=True):
    """An API key as it is stored, without its secret."""

    key_id: str
    """Public part of the key."""
    tenant: str | None
    """None for an operator's key."""
    scopes: frozenset[KeyScope]
    label: str
    """A name for people."""
    secret_sha256: str
    created_at: float
    """Unix time, seconds."""
    revoked_at: float | None = None
    """Unix time; None while the key is valid."""


class Spent(msgspec.Struct, frozen=True):
    """Amounts that count against a tenant's quotas, in one day or month."""

    period: str
    """A day or a month in UTC: 2026-11-21 or 2026-11."""
    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    """Billionths of a dollar."""


class Accounts(Protocol):
    """Stores tenants and keys. Every method raises `StoreFailed`."""

    async def keys(self) -> list[Key]:
        """Return all keys, oldest first, including revoked ones."""

    async def add_key(self, key: Key) -> bool:
        """Store a key, and its tenant if that is new. Return whether it is the first key of all."""

    async def revoke_key(self, key_id: str) -> Key | None:
        """Revoke a key and return it; None if there is no such key."""

    async def tenants(self) -> list[Tenant]:
        """Return all tenants by name."""

    async def set_tenant(self, tenant: Tenant) -> None:
        """Store a tenant's settings, in place of earlier ones."""

    async def spending(self, tenant: str) -> list[Spent]:
        """Return what the tenant has spent, newest first: one entry for each day and each month
        with requests.
        """


_FRESH_S = 0.5
"""Time until keys are read again. Then a revoked key is refused, and its requests are cancelled."""
_SENT = re.compile(r"bearer +rg_([0-9a-f]+)_([\w-]+)", re.ASCII | re.IGNORECASE)
_ABSENT = (
    "A key is needed: send `authorization: Bearer rg_…`, or set ROLEGATE_API_KEY for "
    "commands and clients. "
    "The operator makes keys (`rolegate keys`)."
)
_UNKNOWN = "The key is unknown or revoked; ask the operator for another one (`Bearer rg_…`)."


def new_key(tenant: str | None, scopes: Iterable[KeyScope], label: str = "") -> tuple[str, Key]:
    """Make a key; return its text and what is stored of it. `tenant`: None for an operator's key.
    Raises `BadRequest` for a reserved name.
    """
    if tenant == SHADOW_TENANT:
        raise BadRequest(
            f"tenant {tenant!r}: this name is reserved for the cost of trying executors; "
            "choose another one."
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
    """Identifies callers by their keys. While there are no keys, every caller is `LOCAL`."""

    def __init__(self, accounts: Accounts, extra: Key | None = None) -> None:
        """`extra`: another valid key, which is not stored."""
        self._accounts = accounts
        self._extra = [extra] if extra else []
        self._keys: dict[str, Key] = {}
        self._required = False
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._served: dict[asyncio.Task[Any], str] = {}
        """Identifiers of keys by the tasks that serve them."""

    async def identify(self, authorization: str | None) -> Identity:
        """Return the identity of a key. `authorization`: the header of that name. Raises `NoKey`,
        which never repeats the key, and `StoreFailed`.
        """
        if not await self.required():
            return LOCAL
        if not authorization:
            raise NoKey(_ABSENT)
        sent = _SENT.fullmatch(authorization)
        key = self._keys.get(sent[1].lower()) if sent else None
        if not sent or not key or not hmac.compare_digest(_sha256(sent[2]), key.secret_sha256):
            raise NoKey(_UNKNOWN)
        return Identity(key.tenant, key.scopes, key.key_id)

    async def renewed(self, known: Identity) -> Identity:
        """Return the current identity of a key that was identified before. Raises `NoKey` if it
        was revoked, and `StoreFailed`.
        """
        await self.required()
        if (key := self._keys.get(known.key_id)) is None:
            raise NoKey(_UNKNOWN)
        return Identity(key.tenant, key.scopes, key.key_id)

    async def required(self) -> bool:
        """Return whether callers need a key: once one was made, even if all are revoked. Raises
        `StoreFailed`.
        """
        if not self._fresh:
            async with self._reading:
                if not self._fresh:
                    await self._read()
        return self._required

    @property
    def _fresh(self) -> bool:
        return (
            self._read_at is not None
            and asyncio.get_running_loop().time() - self._read_at < _FRESH_S
        )

    @contextmanager
    def serving(self, identity: Identity) -> Iterator[None]:
        """Serve `identity` in the current task. If its key is revoked, the task is cancelled, and
        the block raises `NoKey`.
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
        """Read the keys again and again, while a key is being served. Never returns."""
        while True:
            await asyncio.sleep(_FRESH_S)
            if self._served:
                with suppress(StoreFailed):
                    async with self._reading:
                        await self._read()

    async def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        stored = await self._accounts.keys()
        good = (key for key in (*stored, *self._extra) if key.revoked_at is None)
        self._keys = {key.key_id: key for key in good}
        self._required |= bool(stored)
        self._read_at = now
        for task in [task for task, key_id in self._served.items() if key_id not in self._keys]:
            del self._served[task]
            task.cancel()


def check_scope(identity: Identity, scope: KeyScope) -> None:
    """Raise `AccessDenied` if the key lacks `scope`. A tenant's key never has `operate`."""
    if scope not in identity.scopes:
        held = ", ".join(sorted(identity.scopes))
        raise AccessDenied(
            f"This needs a key with the scope `{scope}`; this one has {held}. Ask the operator "
            "for another one."
        )
    if scope == "operate" and identity.tenant is not None:
        raise AccessDenied(
            "Only the operator may do this, and the key is a tenant's; use an operator's key."
        )


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
