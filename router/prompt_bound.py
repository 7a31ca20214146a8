"""The most tokens that a prompt can have, told without asking its model."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from unicodedata import decomposition, normalize

from router.lru import LRU
from router.model import Message

_TEMPLATE_TOKENS, MESSAGE_TOKENS = 128, 16
"""What chat templates add: texts of their own, and what stands around each message."""


def prompt_bound(messages: Iterable[Message]) -> int:
    """A true bound for every tokenizer whose smallest pieces are bytes, that is, byte-level ones and SentencePiece with
    byte fallback: each token stands for at least one byte of the text, be it as it is or in normal form C or KC. What a
    chat template adds is taken to be no more than 16 tokens a message and 128 in all.
    """
    return _TEMPLATE_TOKENS + sum([MESSAGE_TOKENS + _bytes_of(message) for message in messages])


def _bytes_of(message: Message) -> int:
    """Those of system prompts are known, as they come with every call of their role."""
    return _known_bytes(message.content) if message.role == "system" else _most_bytes(message.content)


def _most_bytes(text: str) -> int:
    """No form of a text has more bytes than its characters, each decomposed by itself: decomposing only reorders them
    further, and composing makes no pair longer. So nothing is normalized as a whole, which takes quadratic time where
    combining marks follow each other.
    """
    if text.isascii():
        return len(text)
    counts = Counter(text).items()
    grown = sum(count * _growth(character) for character, count in counts if decomposition(character))
    return len(text.encode(errors="surrogatepass")) + grown


def _growth(character: str) -> int:
    """Bytes that the decomposition of a character may have more than itself. Hangul syllables count as they are, since
    they are always composed again; Unicode lists no decomposition of theirs.
    """
    longest = max(len(normalize(form, character).encode()) for form in ("NFD", "NFKD"))
    return max(0, longest - len(character.encode()))


_known_bytes = lru_cache(maxsize=8)(_most_bytes)


class PromptCounts:
    """Counts of prompts by a model's engine, for models whose tokenizer is not to be had: a prompt has no more
    tokens than another one with the same system prompt, and what else stands in it. Chat templates keep messages apart.
    """

    def __init__(self) -> None:
        self._tokens: LRU[str, int] = LRU(8)

    def learn(self, messages: Sequence[Message], tokens: int) -> None:
        """Note that `messages` have so many tokens."""
        if messages and messages[0].role == "system":
            system = messages[0].content
            self._tokens.put(system, min(tokens, self._tokens.get(system) or tokens))

    def bound(self, messages: Sequence[Message]) -> int:
        """The most tokens that `messages` can have."""
        known = self._tokens.get(messages[0].content) if messages and messages[0].role == "system" else None
        bound = prompt_bound(messages)
        if known is None:
            return bound
        return min(bound, known + sum([MESSAGE_TOKENS + _most_bytes(message.content) for message in messages[1:]]))
