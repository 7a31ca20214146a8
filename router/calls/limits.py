"""Limits that all calls of a role share: concurrent calls, retries, and bounds of prompt tokens."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from unicodedata import decomposition, normalize

from cachetools import LRUCache

from router.background import loop_time
from router.models import Message

_SHARE = 0.2
_RESERVE = 10.0
_MAX_BALANCE = 100.0


class RetryBudget:
    """Limit on the retries of a role, as in Twitter's Finagle, so that retries do not overload an
    endpoint that fails.

    The balance starts at ten retries. Every call adds a fifth of a retry, up to 100. Below ten, the
    balance also grows by one retry per second.
    """

    def __init__(self) -> None:
        self.balance = _RESERVE
        """Number of retries that are allowed now."""
        self._seen = 0.0

    def called(self) -> None:
        """Count a call, which adds a fifth of a retry."""
        self.balance = min(self.balance + _SHARE, _MAX_BALANCE)

    def spend(self) -> bool:
        """Return whether a retry is allowed. If so, deduct it from the balance."""
        now = loop_time()
        if self._seen and self.balance < _RESERVE:
            self.balance = min(self.balance + now - self._seen, _RESERVE)
        self._seen = now
        allowed = self.balance >= 1
        self.balance -= allowed
        return allowed


_TEMPLATE_TOKENS = 128
MESSAGE_TOKENS = 16
"""Max tokens that a chat template is assumed to add: 128 in total, and 16 around each message."""


def prompt_bound(messages: Iterable[Message]) -> int:
    """Return an upper bound of the number of tokens of messages, computed from their bytes.

    The bound holds for every tokenizer whose smallest tokens are bytes, that is, for byte-level
    tokenizers and SentencePiece with byte fallback. Each of their tokens covers at least one byte
    of the text, or of the text in Unicode's normal form C or KC. A chat template is assumed to add
    at most 16 tokens per message and 128 in total.
    """
    sizes = [
        (_known_bytes if message.role == "system" else _max_bytes)(message.content)
        for message in messages
    ]
    return _TEMPLATE_TOKENS + MESSAGE_TOKENS * len(sizes) + sum(sizes)


def _max_bytes(text: str) -> int:
    """Return an upper bound of the bytes of a text in UTF-8, in any of Unicode's normal forms.

    The bound is the sum of the bytes of each character's longest form. It holds because composing
    characters never makes them longer. The text is not normalized as a whole, as that would take
    quadratic time for long runs of combining marks.
    """
    if text.isascii():
        return len(text)
    return sum(times * _longest(character) for character, times in Counter(text).items())


def _longest(character: str) -> int:
    # `decomposition` is empty for Hangul syllables, which forms C and KC leave composed.
    forms = (
        [normalize(form, character) for form in ("NFD", "NFKD")] if decomposition(character) else []
    )
    return max(len(form.encode(errors="surrogatepass")) for form in (character, *forms))


_known_bytes = lru_cache(maxsize=8)(_max_bytes)
"""Cached `_max_bytes`, for system prompts, which are the same in every call of a role."""


class PromptCounts:
    """Computes an upper bound of a prompt's tokens from the token counts that the engine reported
    for earlier prompts. Used for models whose tokenizer is not available.

    A prompt has at most as many tokens as an earlier prompt with the same system prompt, plus the
    bound of the new prompt's other messages. This holds because chat templates never merge the
    tokens of two messages.
    """

    def __init__(self) -> None:
        self._tokens = LRUCache[str, int](8)

    def learn(self, messages: Sequence[Message], tokens: int) -> None:
        """Record that a prompt with these messages has `tokens` tokens."""
        if messages and messages[0].role == "system":
            system = messages[0].content
            self._tokens[system] = min(tokens, self._tokens.get(system, tokens))

    def bound(self, messages: Sequence[Message]) -> int:
        """Return an upper bound of the number of tokens of `messages`."""
        bound = prompt_bound(messages)
        if not messages or messages[0].role != "system":
            return bound
        counted = self._tokens.get(messages[0].content)
        if counted is None:
            return bound
        others = [MESSAGE_TOKENS + _max_bytes(message.content) for message in messages[1:]]
        return min(bound, counted + sum(others))


_MAX_FAILURES = 5
"""Number of consecutive failed attempts after which a role counts as failing. A circuit breaker
opens after the same number. A role has its own count, because the breaker of an endpoint also
counts the calls of other roles. These calls may succeed in between.
"""
_FAILING_S = 2.0
"""Seconds that a role's attempts must keep failing before the role counts as failing."""


class RoleHealth:
    """State that all calls of a role share: slots for concurrent attempts, the retry budget, prompt
    counts, and recent failures. As a context manager, it takes a slot for one attempt.
    """

    def __init__(self, max_in_flight: int | None = None) -> None:
        """`max_in_flight`: max attempts that are under way at the same time, over all replicas;
        None for no limit.
        """
        self._slots = asyncio.Semaphore(max_in_flight) if max_in_flight else None
        self.retries = RetryBudget()
        self.counts = PromptCounts()
        self.in_flight = 0
        """Number of attempts under way."""
        self.waiting = 0
        """Number of attempts that wait for a slot."""
        self.fallbacks = 0
        """Number of calls that were sent to a fallback role."""
        self.failures = 0
        """Number of consecutive attempts that failed, or that were refused because of a wrong key
        or model name.
        """
        self._failing_since = 0.0

    def succeeded(self) -> None:
        """Reset the count of consecutive failures."""
        self.failures = 0

    def failed(self) -> None:
        """Count one more consecutive failure."""
        if not self.failures:
            self._failing_since = loop_time()
        self.failures += 1

    @property
    def works(self) -> bool:
        """False if at least five consecutive attempts have failed and the first of them was at
        least two seconds ago. So a short burst of calls that hits a rate limit does not count.
        """
        lasting = loop_time() - self._failing_since >= _FAILING_S
        return self.failures < _MAX_FAILURES or not lasting

    async def __aenter__(self) -> None:
        """Wait for a slot and take it. Slots are granted in the order of the requests."""
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
