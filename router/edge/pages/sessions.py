"""Sessions of users who have signed in with an API key. A cookie holds the random name of the
session, and the gateway holds the identity of the key in memory.
"""

import hashlib
import hmac
import secrets

from cachetools import TTLCache

from router.access import Access
from router.errors import NoKey, Overloaded
from router.trace.identity import Identity

COOKIE = "rolegate_session"
LASTS_S = 12 * 3600
"""Lifetime of a session, in seconds. A restart of the gateway ends all sessions."""
_MAX_ENTRIES = 10_000
"""Max number of sessions, and max number of client addresses whose wrong keys are counted."""
_MAX_PER_KEY = 20
"""Max number of sessions of one key."""
_PAUSE_S = 60.0
"""Seconds for which the wrong keys of an address are counted."""
_MAX_WRONG = 10
"""Max wrong keys from one address within `_PAUSE_S` seconds."""
_NO_SESSION = "You are not signed in, or your session has ended; sign in with an API key."
_TOO_MANY = "Too many wrong keys from your address; try again in a minute."


class Sessions:
    """Sessions of users of the web pages. If the gateway requires no key, users need no session,
    and every user is the operator (`LOCAL`).
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._secret = secrets.token_bytes(32)
        self._open: TTLCache[str, Identity] = TTLCache(_MAX_ENTRIES, LASTS_S)
        self._wrong: TTLCache[str, int] = TTLCache(_MAX_ENTRIES, _PAUSE_S)

    async def open(self, key: str, client: str) -> str:
        """Open a session for a user who signs in with `key`. Return the name of the session, for
        the cookie. If the key has too many sessions, the oldest are closed.

        `client`: the address of the client. Wrong keys are counted by address. A right key is
        accepted even after many wrong ones, because several users may share an address.

        Raises `NoKey` for a wrong key, `Overloaded` for a wrong key after too many wrong keys, and
        `StoreFailed` if the keys cannot be read.
        """
        try:
            user = await self._access.identify(f"Bearer {key.strip()}")
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
        """Return the identity that the key of a session has now. Raises `NoKey` if there is no
        session of this name or if its key was revoked or has expired, and `StoreFailed` if the keys
        cannot be read.
        """
        if not await self._access.required():
            return await self._access.identify(None)
        if (user := self._open.get(name)) is None:
            raise NoKey(_NO_SESSION)
        return await self._access.renewed(user)

    def close(self, name: str) -> None:
        """Close a session; does nothing if there is no session of this name."""
        self._open.pop(name, None)

    def token(self, name: str) -> str:
        """Return the CSRF token of a session. All forms of the session must send this token."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def proves(self, name: str, token: str) -> bool:
        """Return True if `token` is the CSRF token of the session."""
        return hmac.compare_digest(self.token(name).encode(), token.encode())
