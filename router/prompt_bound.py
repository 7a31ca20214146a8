"""The most tokens that a prompt can have, told without asking its model."""

from collections.abc import Iterable
from functools import lru_cache
from unicodedata import normalize

from router.model import Message

_TEMPLATE_TOKENS, _MESSAGE_TOKENS = 128, 16
"""What chat templates add: texts of their own, and what stands around each message."""


def prompt_bound(messages: Iterable[Message]) -> int:
    """A true bound for every tokenizer whose smallest pieces are bytes, that is, byte-level ones and SentencePiece with
    byte fallback: each token stands for at least one byte of the text, be it as it is or in normal form C or KC. What a
    chat template adds is taken to be no more than 16 tokens a message and 128 in all.
    """
    return _TEMPLATE_TOKENS + sum([_MESSAGE_TOKENS + _bytes_of(message) for message in messages])


def _bytes_of(message: Message) -> int:
    """Those of system prompts are known, as they come with every call of their role."""
    return _known_bytes(message.content) if message.role == "system" else _most_bytes(message.content)


def _most_bytes(text: str) -> int:
    if text.isascii():
        return len(text)
    forms = (text, normalize("NFC", text), normalize("NFKC", text))
    return max(len(form.encode(errors="surrogatepass")) for form in forms)


_known_bytes = lru_cache(maxsize=8)(_most_bytes)
