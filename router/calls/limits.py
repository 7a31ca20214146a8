"""Limits shared by all calls of a role: calls in flight, retries, and bounds of prompts."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from unicodedata import decomposition, normalize

from cachetools import LRUCache

from router.models import Message

_SHARE = 0.2
_RESERVE = 10.0
_MAX_BALANCE = 100.0


class RetryBudget:
    """Retry budget, as in Finagle: a fifth of the calls, plus ten that refill at one a second."""

    def __init__(self) -> None:
        self.balance = _RESERVE
        """Number of retries that may be made now."""
        self._seen = 0.0

    def called(self) -> None:
        """Count a call."""
        self.balance = min(self.balance + _SHARE, _MAX_BALANCE)

    def spend(self) -> bool:
        """Return whether a retry may be made, and count it."""
        now = asyncio.get_running_loop().time()
        if self._seen and self.balance < _RESERVE:
            self.balance = min(self.balance + now - self._seen, _RESERVE)
        self._seen = now
        allowed = self.balance >= 1
        self.balance -= allowed
        return allowed


_TEMPLATE_TOKENS = 128
MESSAGE_TOKENS = 16
"""Tokens that a chat template adds: in total, and around each message."""


def prompt_bound(messages: Iterable[Message]) -> int:
    """Return a bound of the tokens of messages.

    It holds for every tokenizer whose smallest pieces are bytes (byte-level ones, and SentencePiece
    with byte fallback): each token stands for at least one byte of the text, as it is or in normal
    form C or KC. A chat template is assumed to add at most 16 tokens per message and 128 in total.
    """
    sizes = [
        (_known_bytes if message.role == "system" else _max_bytes)(message.content)
        for message in messages
    ]
    return _TEMPLATE_TOKENS + MESSAGE_TOKENS * len(sizes) + sum(sizes)


def _max_bytes(text: str) -> int:
    """Return the bytes of a text in its longest form, as the sum over its characters: composing
    makes no pair longer. Normalizing the whole text takes quadratic time for runs of combining
    marks.
    """
    if text.isascii():
        return len(text)
    return sum(times * _longest(character) for character, times in Counter(text).items())


def _longest(character: str) -> int:
    # Hangul syllables have no decomposition here; normal forms C and KC compose them again.
    forms = (
        [normalize(form, character) for form in ("NFD", "NFKD")] if decomposition(character) else []
    )
    return max(len(form.encode(errors="surrogatepass")) for form in (character, *forms))


_known_bytes = lru_cache(maxsize=8)(_max_bytes)
"""Cached sizes of system prompts, which are part of every call."""


class PromptCounts:
    """Bounds of prompts by the engine's counts of earlier ones, for models without a tokenizer.

    A prompt has at most as many tokens as an earlier one with the same system prompt, plus the
    bound of its other messages, because chat templates keep messages apart.
    """

    def __init__(self) -> None:
        self._tokens: LRUCache[str, int] = LRUCache(8)

    def learn(self, messages: Sequence[Message], tokens: int) -> None:
        """Note the count of a prompt."""
        if messages and messages[0].role == "system":
            system = messages[0].content
            self._tokens[system] = min(tokens, self._tokens.get(system, tokens))

    def bound(self, messages: Sequence[Message]) -> int:
        """Return a bound of the tokens of `messages`."""
        bound = prompt_bound(messages)
        if not messages or messages[0].role != "system":
            return bound
        counted = self._tokens.get(messages[0].content)
        if counted is None:
            return bound
        others = [MESSAGE_TOKENS + _max_bytes(message.content) for message in messages[1:]]
        return min(bound, counted + sum(others))


_MAX_FAILURES = 5
"""Failures in a row that mark a role as failing, as many as open a breaker. Breakers belong to
endpoints, and may count successes of other roles in between.
"""
_FAILING_S = 2.0


class RoleHealth:
    """Slots, retries and prompt counts of a role. As a context manager, it takes a slot."""

    def __init__(self, max_in_flight: int | None = None) -> None:
        """`max_in_flight`: max attempts under way, over all replicas; None for no limit."""
        self._slots = asyncio.Semaphore(max_in_flight) if max_in_flight else None
        self.retries = RetryBudget()
        self.counts = PromptCounts()
        self.in_flight = 0
        self.waiting = 0
        self.fallbacks = 0
        """Number of calls that went to a fallback."""
        self.failures = 0
        """Attempts in a row that failed, or were refused for the key or the model name."""
        self._failing_since = 0.0

    def succeeded(self) -> None:
        """Reset the count of failures in a row."""
        self.failures = 0

    def failed(self) -> None:
        """Count one more failure in a row."""
        if not self.failures:
            self._failing_since = asyncio.get_running_loop().time()
        self.failures += 1

    @property
    def works(self) -> bool:
        """False if calls have kept failing for two seconds; a throttled burst is over sooner."""
        lasting = asyncio.get_running_loop().time() - self._failing_since >= _FAILING_S
        return self.failures < _MAX_FAILURES or not lasting

    async def __aenter__(self) -> None:
        """Wait for a slot, first come, first served."""
        if self._slots:
            self.waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self.waiting -= 1
        self.in_flight += 1

    async def __aexit__(self, *_error: object) -> None:
        self.in_flight -= 1
        if self._slots:
            self._slots.release()
