"""Ends an output that goes on past its `max_tokens`, for engines that ignore them."""

from collections.abc import AsyncGenerator, AsyncIterator

from msgspec.structs import replace

from router.model import Completion, Delta, Usage, largest

_CHARACTERS_A_TOKEN, _CHARACTERS_MORE = 32, 256
"""No output has as many: words have six, and long tokens, of spaces or dashes, are evened out by others."""
_BYTES_A_CHARACTER = 4
"""At most; a token has at least one byte."""


async def within(deltas: AsyncIterator[Delta], max_tokens: int) -> AsyncGenerator[Delta, None]:
    """`deltas` up to where `max_tokens` tokens can hold no more, or where the engine writes on after it has counted
    more; there the output ends as `length`. Whoever leaves the stream then has the engine stop.
    """
    room, written, over, usage = _room(max_tokens), 0, False, None
    async for delta in deltas:
        more = len(delta.text) + len(delta.reasoning)
        written += more
        told = _held(delta.usage, written, max_tokens)
        if more and (over or written > room):
            left = 0 if over else room - written + more
            usage = largest(usage, told)
            text, reasoning = delta.text[: max(0, left - len(delta.reasoning))], delta.reasoning[:left]
            yield Delta(text, reasoning, "length", usage and replace(usage, lower_bound=True))
            return
        over, usage = over or told is not delta.usage, largest(usage, told)
        yield replace(delta, usage=told)


def whole_within(completion: Completion, max_tokens: int) -> Completion:
    """The same of an output that came at once."""
    text, reasoning, room = completion.text, completion.reasoning, _room(max_tokens)
    written = len(text) + len(reasoning)
    completion = replace(completion, usage=_held(completion.usage, written, max_tokens))
    if written <= room:
        return completion
    text, reasoning = text[: max(0, room - len(reasoning))], reasoning[:room]
    return replace(completion, text=text, reasoning=reasoning, finish_reason="length")


def _room(max_tokens: int) -> int:
    return _CHARACTERS_A_TOKEN * max_tokens + _CHARACTERS_MORE


def _held(usage: Usage | None, written: int, max_tokens: int) -> Usage | None:
    """Where more tokens were counted than asked for, and as many can have been written: at least what was asked for."""
    if usage is None or not max_tokens < usage.completion_tokens <= written * _BYTES_A_CHARACTER:
        return usage
    return replace(usage, completion_tokens=max_tokens, reasoning_tokens=None, lower_bound=True)
