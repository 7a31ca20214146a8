"""Who may ask for what: keys, and what each of them opens.

A key is `rg_<key_id>_<secret>`. Only the SHA-256 of its secret is kept, so that what is stored
opens nothing.
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
"""Set by whoever checks keys, before the call reaches its servicer."""


def caller() -> Identity:
    """The identity behind the call that is being served."""
    return CALLER.get()


class Tenant(msgspec.Struct, frozen=True):
    """One tenant's settings; None is no limit. Days and months are UTC's."""

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
    """Keep the figures of its runs, and none of their texts."""
    training: bool = True
    """Whether its runs may train an executor."""

    @property
    def limited(self) -> bool:
        """Whether anything of what it spends is limited, so that it must be reserved before."""
        limits = (
            self.tokens_per_day,
            self.tokens_per_month,
            self.nano_usd_per_day,
            self.nano_usd_per_month,
        )
        return any(limit is not None for limit in limits)


class Key(msgspec.Struct, frozen=True):
    """An API key, as far as it is kept: its secret is not."""

    key_id: str
    """Public; a part of the key."""
    tenant: str | None
    """None for the operator's."""
    scopes: frozenset[KeyScope]
    label: str
    """What its owner is to know it by."""
    secret_sha256: str
    created_at: float
    """Unix time, seconds."""
    revoked_at: float | None = None
    """None while it is good."""


class Spent(msgspec.Struct, frozen=True):
    """Amounts that count against a tenant's quotas."""

    period: str
    """A day or a month in UTC: 2026-11-21 or 2026-11."""
    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0
    """Billionths of a dollar."""


class Accounts(Protocol):
    """Keeps tenants and keys. Every method raises `StoreFailed`."""

    async def keys(self) -> list[Key]:
        """All keys, oldest first, revoked ones too."""

    async def add_key(self, key: Key) -> bool:
        """Keep a key, and its tenant where there is none of that name; whether it is the first
        of all keys.
        """

    async def revoke_key(self, key_id: str) -> Key | None:
        """The key, which is good no longer; None where there is none of that name."""

    async def tenants(self) -> list[Tenant]:
        """All of them, by name."""

    async def set_tenant(self, tenant: Tenant) -> None:
        """Keep a tenant's settings, in place of those it had."""

    async def spending(self, tenant: str) -> list[Spent]:
        """Amounts that the tenant has spent, newest first, one entry for each day and each
        month in which it asked.
        """


_FRESH_S = 0.5
"""For how long keys that were read are good; a revoked one is refused after that, and what it
asked for ends.
"""
_SENT = re.compile(r"bearer +rg_([0-9a-f]+)_([\w-]+)", re.ASCII | re.IGNORECASE)
_ABSENT = (
    "A key is needed: send `authorization: Bearer rg_…`, or set ROLEGATE_API_KEY for "
    "commands and clients. "
    "The operator makes keys (`rolegate keys`)."
)
_UNKNOWN = (
    "The key is not known, or no longer; ask the operator for another one, to be sent as "
    "`Bearer rg_…`."
)


def new_key(tenant: str | None, scopes: Iterable[KeyScope], label: str = "") -> tuple[str, Key]:
    """A key, and what is to be kept of it. `tenant`: None makes it the operator's. Raises
    `BadRequest` for a name that is taken.
    """
    if tenant == SHADOW_TENANT:
        raise BadRequest(
            f"tenant {tenant!r}: what it costs to try executors is booked on this name; "
            "take another one."
        )
    key_id = secrets.token_hex(4)
    secret = secrets.token_urlsafe(32)
    return f"rg_{key_id}_{secret}", Key(
        key_id, tenant, frozenset(scopes), label, _sha256(secret), time.time()
    )


class Access:
    """Tells who calls by the key that is sent. While there are no keys, everybody is `LOCAL`."""

    def __init__(self, accounts: Accounts, extra: Key | None = None) -> None:
        """`extra`: a key that is good here, and kept nowhere."""
        self._accounts = accounts
        self._extra = [extra] if extra else []
        self._keys: dict[str, Key] = {}
        self._required = False
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._served: dict[asyncio.Task[Any], str] = {}
        """The identifier of the key that each task works for."""

    async def identify(self, authorization: str | None) -> Identity:
        """Find whose key it is. `authorization`: the header of that name. Raises `NoKey`, which
        never repeats it, and `StoreFailed`.
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
        """The identity of a key that was found before, as the key is now. Raises `NoKey` where it
        is good no longer, and `StoreFailed`.
        """
        await self.required()
        if (key := self._keys.get(known.key_id)) is None:
            raise NoKey(_UNKNOWN)
        return Identity(key.tenant, key.scopes, key.key_id)

    async def required(self) -> bool:
        """Whether callers need a key: once one was made, also if all are revoked. Raises
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
        """Work for `identity` in the current task, which is cancelled once its key is revoked:
        that raises `NoKey`.
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
        """Read the keys while anybody is served by one, for ever."""
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
    """Raises `AccessDenied` where the key does not open `scope`; no tenant's key opens
    `operate`.
    """
    if scope not in identity.scopes:
        held = ", ".join(sorted(identity.scopes))
        raise AccessDenied(
            f"This needs a key of scope `{scope}`; this one has {held}. Ask the operator "
            "for another one."
        )
    if scope == "operate" and identity.tenant is not None:
        raise AccessDenied(
            "This is for the operator, and the key is a tenant's, whatever its scopes."
        )


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
