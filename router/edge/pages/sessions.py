"""Sessions of signed-in users: a random name in a cookie, and the key's identity in memory."""

import hashlib
import hmac
import secrets

from cachetools import TTLCache

from router.access import Access
from router.errors import NoKey, Overloaded
from router.trace.identity import LOCAL, Identity

COOKIE = "rolegate_session"
LASTS_S = 12 * 3600
"""Lifetime of a session in seconds; a restart of the gateway ends all sessions."""
_MAX_ENTRIES = 10_000
_MAX_PER_KEY = 20
_PAUSE_S = 60.0
_MAX_WRONG = 10
_NO_SESSION = "Sign in with a key."
_TOO_MANY = "Too many wrong keys; wait a minute."


class Sessions:
    """Identifies the users of pages. If no key is required, all are `LOCAL`, without a session."""

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self._secret = secrets.token_bytes(32)
        self._open: TTLCache[str, Identity] = TTLCache(_MAX_ENTRIES, LASTS_S)
        self._wrong: TTLCache[str, int] = TTLCache(_MAX_ENTRIES, _PAUSE_S)

    async def open(self, key: str, client: str) -> str:
        """Open a session and return its name, for the cookie. Closes the oldest ones of a key with
        too many. `client`: the client's address; its wrong keys are counted, but a right key is
        accepted, as clients may share an address. Raises `NoKey`, `StoreFailed`, and `Overloaded`
        after too many wrong keys.
        """
        try:
            user = await self._access.identify(f"Bearer {key.strip()}") if self._access else LOCAL
        except NoKey:
            if self._wrong.get(client, 0) >= _MAX_WRONG:
                raise Overloaded(_TOO_MANY, retry_after_s=_PAUSE_S) from None
            self._wrong[client] = self._wrong.get(client, 0) + 1
            raise
        own = [
            name
            for name in self._open
            if (other := self._open.get(name)) and other.key_id == user.key_id
        ]
        for name in own[: 1 - _MAX_PER_KEY]:
            self.close(name)
        name = secrets.token_urlsafe(32)
        self._open[name] = user
        return name

    async def identify(self, name: str) -> Identity:
        """Return the current identity of a session's key. Raises `NoKey`, also for a revoked key,
        and `StoreFailed`.
        """
        if self._access is None or not await self._access.required():
            return LOCAL
        if (user := self._open.get(name)) is None:
            raise NoKey(_NO_SESSION)
        return await self._access.renewed(user)

    def close(self, name: str) -> None:
        """Close a session."""
        self._open.pop(name, None)

    def token(self, name: str) -> str:
        """Return the CSRF token of a session."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def proves(self, name: str, token: str) -> bool:
        """Return whether this is the CSRF token of the session."""
        return hmac.compare_digest(self.token(name).encode(), token.encode())
