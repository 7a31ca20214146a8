"""Those who have signed in with a key: a random name in a cookie, and whose key it was in
memory.
"""

import hashlib
import hmac
import secrets

from cachetools import TTLCache

from router.access import Access
from router.errors import NoKey, Overloaded
from router.trace.identity import LOCAL, Identity

COOKIE = "rolegate_session"
LASTS_S = 12 * 3600
"""After which one signs in again; so, too, after a restart of the gateway."""
_MOST = 10_000
_OF_ONE_KEY = 20
_PAUSE_S = 60.0
_MOST_WRONG = 10
_NO_SESSION = "Sign in with a key."
_TOO_MANY = "Too many wrong keys; wait a minute."


class Sessions:
    """Tells who looks at a page. Where no keys are in use, that is `LOCAL`, without a session."""

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self._secret = secrets.token_bytes(32)
        self._open: TTLCache[str, Identity] = TTLCache(_MOST, LASTS_S)
        self._wrong: TTLCache[str, int] = TTLCache(_MOST, _PAUSE_S)

    async def open(self, key: str, client: str) -> str:
        """The name of a new session, for the cookie; the oldest of a key's many ends. `client`: the
        address that it comes from; its wrong keys are counted, but a right one passes, as others
        may come from there too. Raises `NoKey`, `StoreFailed`, and `Overloaded` after too many.
        """
        try:
            found = await self._access.identify(f"Bearer {key.strip()}") if self._access else LOCAL
        except NoKey:
            if self._wrong.get(client, 0) >= _MOST_WRONG:
                raise Overloaded(_TOO_MANY, retry_after_s=_PAUSE_S) from None
            self._wrong[client] = self._wrong.get(client, 0) + 1
            raise
        own = [
            name
            for name in self._open
            if (one := self._open.get(name)) and one.key_id == found.key_id
        ]
        for name in own[: 1 - _OF_ONE_KEY]:
            self.close(name)
        name = secrets.token_urlsafe(32)
        self._open[name] = found
        return name

    async def identify(self, name: str) -> Identity:
        """The owner of a session, as the key is now. Raises `NoKey`, also once that is revoked,
        and `StoreFailed`.
        """
        if self._access is None or not await self._access.required():
            return LOCAL
        if (found := self._open.get(name)) is None:
            raise NoKey(_NO_SESSION)
        return await self._access.renewed(found)

    def close(self, name: str) -> None:
        """Sign out."""
        self._open.pop(name, None)

    def token(self, name: str) -> str:
        """The proof that a form comes from a page that this session was shown."""
        return hmac.new(self._secret, name.encode(), hashlib.sha256).hexdigest()

    def proves(self, name: str, token: str) -> bool:
        """Tell whether it is the token of that session."""
        return hmac.compare_digest(self.token(name).encode(), token.encode())
