"""The chunks of one streamed reply, turned into deltas."""

from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from msgspec.structs import replace

from router.models.model import Completion, Delta, Usage, end_at_stop, largest
from router.models.openai_wire import ChatReply


class StopCut:
    """Passes text on up to the end of the first stop string, however the pieces are split.

    Nothing is held back: the string that is met belongs to the text, so what could be its beginning does too.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._overlap = max((len(string) for string in stop), default=1) - 1
        self._tail = ""
        self.met = False
        """True once a stop string has been passed on; from there on everything is dropped."""

    def feed(self, piece: str) -> str:
        """The part of `piece` that still belongs to the text."""
        if self.met or not piece:
            return ""
        window = self._tail + piece
        kept, reason = end_at_stop(window, self._stop, "", None)
        self.met = reason == "stop"
        text = kept[len(self._tail) :]
        self._tail = window[-self._overlap :] if self._overlap else ""
        return text

    def end(self, finish_reason: str, matched: str | None) -> tuple[str, str]:
        """The rest of the text at its end, and its finish reason. `matched`: as for `end_at_stop`."""
        return ("", "stop") if self.met else end_at_stop("", self._stop, finish_reason, matched)


class StreamedReply:
    """Takes the chunks in order; knows when the output is whole and when to stop listening.

    After a stop string the engine gets one chunk to show whether it stopped by itself. If so, its final usage is still
    on its way and worth the wait. If it writes on, it ignores stop strings: the stream is `abandoned`, which saves the
    tokens but forgoes the final usage, so that the last one that was reported is marked as a lower bound.
    """

    def __init__(self, stop: tuple[str, ...], *, thinks: bool = True) -> None:
        """`thinks`: as for `completion`; an output that was taken for reasoning comes with the last delta."""
        self._stop, self._thinks = stop, thinks
        self._cut = StopCut(stop)
        self._silent = True
        self._thoughts: list[str] = []
        self._finish_reason: str | None = None
        self._matched: str | None = None
        self._usage: Usage | None = None
        self._writes_on = False

    @property
    def whole(self) -> bool:
        """True where the text is complete, by the engine's word or by a stop string."""
        return self._finish_reason is not None or self._cut.met

    @property
    def abandoned(self) -> bool:
        """True where nothing that still comes is wanted, because the engine writes on past a stop string."""
        return self._writes_on and self._finish_reason is None

    def take(self, chunk: ChatReply) -> Delta:
        """The delta that `chunk` adds to the output, empty where it adds nothing. The finish reason waits for `end`."""
        usage = chunk.counted
        self._usage = largest(self._usage, usage)
        choice = chunk.choice
        if choice is None:
            return Delta(usage=usage)
        if self._finish_reason is not None:  # it ended before
            return Delta(usage=usage)
        if choice.finish_reason:
            self._finish_reason, self._matched = choice.ended, choice.matched
        written, thought = choice.said.content or "", choice.thought
        reasoning = "" if self._cut.met else thought
        self._silent &= not written
        if not self._thinks:
            self._thoughts.append(reasoning)
        text = self._cut.feed(written)
        self._writes_on |= self._cut.met and (text != written or thought != reasoning)
        return Delta(text, reasoning, usage=usage)

    def end(self) -> Delta:
        """The last delta, once the stream has ended or is abandoned."""
        text, finish_reason = self._cut.end(self._finish_reason or "", self._matched)
        overran = self._writes_on
        if self._silent and self._thoughts:
            written = "".join(self._thoughts)
            text, finish_reason = end_at_stop(written, self._stop, finish_reason, self._matched)
            overran = len(text) < len(written)
        usage = self._usage
        if usage is not None and self._finish_reason is None:
            usage = msgspec.structs.replace(usage, lower_bound=True)
        return Delta(text, finish_reason=finish_reason, usage=usage, overran=overran)


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
    """The usage, with what was asked for as a lower bound where more was counted and can have been written."""
    if usage is None or not max_tokens < usage.completion_tokens <= written * _BYTES_A_CHARACTER:
        return usage
    return replace(usage, completion_tokens=max_tokens, reasoning_tokens=None, lower_bound=True)
