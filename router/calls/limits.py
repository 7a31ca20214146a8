"""Limits that all calls of a role share, whichever version of it makes them: places and
retries; bounds of prompts.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from unicodedata import decomposition, normalize

from cachetools import LRUCache

from router.models import Message

_SHARE = 0.2
_RESERVE = 10.0
_MOST = 100.0


class RetryBudget:
    """A fifth of the calls, and ten beside, which come back at one a second (as in Finagle)."""

    def __init__(self) -> None:
        self.balance = _RESERVE
        """Retries that may be made now."""
        self._seen = 0.0

    def called(self) -> None:
        """Count a call."""
        self.balance = min(self.balance + _SHARE, _MOST)

    def spend(self) -> bool:
        """Whether a retry may be made; then it is counted."""
        now = asyncio.get_running_loop().time()
        if self.balance < _RESERVE:
            self.balance = (
                min(self.balance + now - self._seen, _RESERVE) if self._seen else self.balance
            )
        self._seen = now
        allowed = self.balance >= 1
        self.balance -= allowed
        return allowed


_TEMPLATE_TOKENS = 128
MESSAGE_TOKENS = 16
"""What chat templates add: texts of their own, and what stands around each message."""


def prompt_bound(messages: Iterable[Message]) -> int:
    """A true bound for every tokenizer whose smallest pieces are bytes, that is, byte-level ones
    and SentencePiece with byte fallback: each token stands for at least one byte of the text, be it
    as it is or in normal form C or KC. What a chat template adds is taken to be no more than 16
    tokens a message and 128 in all.
    """
    sizes = [
        (_known_bytes if message.role == "system" else _most_bytes)(message.content)
        for message in messages
    ]
    return _TEMPLATE_TOKENS + MESSAGE_TOKENS * len(sizes) + sum(sizes)


def _most_bytes(text: str) -> int:
    """The bytes of each character's longest form: composing makes no pair longer. So nothing is
    normalized as a whole, which takes quadratic time where combining marks follow each other.
    """
    if text.isascii():
        return len(text)
    return sum(times * _longest(character) for character, times in Counter(text).items())


def _longest(character: str) -> int:
    # Hangul syllables, of which Unicode lists no decomposition, are always composed again.
    forms = (
        [normalize(form, character) for form in ("NFD", "NFKD")] if decomposition(character) else []
    )
    return max(len(form.encode(errors="surrogatepass")) for form in (character, *forms))


_known_bytes = lru_cache(maxsize=8)(_most_bytes)
"""Of system prompts, which come with every call of their role."""


class PromptCounts:
    """Counts of prompts by a model's engine, for models whose tokenizer is not to be had: a prompt
    has no more tokens than another one with the same system prompt, and what else stands in it.
    Chat templates keep messages apart.
    """

    def __init__(self) -> None:
        self._tokens: LRUCache[str, int] = LRUCache(8)

    def learn(self, messages: Sequence[Message], tokens: int) -> None:
        """Note that `messages` have so many tokens."""
        if messages and messages[0].role == "system":
            system = messages[0].content
            self._tokens[system] = min(tokens, self._tokens.get(system, tokens))

    def bound(self, messages: Sequence[Message]) -> int:
        """The most tokens that `messages` can have."""
        known = (
            self._tokens.get(messages[0].content)
            if messages and messages[0].role == "system"
            else None
        )
        bound = prompt_bound(messages)
        if known is None:
            return bound
        return min(
            bound,
            known
            + sum([MESSAGE_TOKENS + _most_bytes(message.content) for message in messages[1:]]),
        )


_MOST_FAILURES = 5
_FAILING_S = 2.0
"""As many in a row open a breaker, which is an endpoint's and may have other roles' successes
between them.
"""


class RoleHealth:
    """Places and retries of a role's calls, and the counts of its prompts. As a context, one of
    the places.
    """

    def __init__(self, max_in_flight: int | None = None) -> None:
        """`max_in_flight`: attempts under way at a time, over all replicas; None for any number."""
        self._places = asyncio.Semaphore(max_in_flight) if max_in_flight else None
        self.retries = RetryBudget()
        self.counts = PromptCounts()
        self.in_flight = self.waiting = 0
        self.fallbacks = 0
        """Calls that went to a fallback."""
        self.failures = 0
        """Attempts in a row that failed, or were refused as every other would be, for the key
        or the model's name.
        """
        self._failing_since = 0.0

    def succeeded(self) -> None:
        """End the count of failures in a row."""
        self.failures = 0

    def failed(self) -> None:
        """Count one more failure in a row."""
        self._failing_since = (
            self._failing_since if self.failures else asyncio.get_running_loop().time()
        )
        self.failures += 1

    @property
    def works(self) -> bool:
        """False where calls fail again and again, and for some time: a burst that is throttled
        is over soon.
        """
        lasting = asyncio.get_running_loop().time() - self._failing_since >= _FAILING_S
        return self.failures < _MOST_FAILURES or not lasting

    async def __aenter__(self) -> None:
        """Take one of the places, once it is free; in the order of coming."""
        if self._places:
            self.waiting += 1
            try:
                await self._places.acquire()
            finally:
                self.waiting -= 1
        self.in_flight += 1

    async def __aexit__(self, *_error: object) -> None:
        self.in_flight -= 1
        if self._places:
            self._places.release()
