"""What a reply amounts to: a whole one, or the chunks of a stream one after the other."""

from typing import Self

from msgspec.structs import replace

from router.models.model import Completion, Delta, OnDelta, Prompt, Usage, end_at_stop
from router.models.openai_wire import (
    CALL_BEGIN,
    FILTERED,
    Calls,
    ChatReply,
    MessageReply,
    UsageReply,
)
from router.models.thoughts import Thoughts


class StopCut:
    """Passes text on up to the end of the first stop string, however the pieces are split.

    Nothing is held back: the string that is met belongs to the text, so what could be its beginning
    does too.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._overlap = max((len(string) for string in stop), default=1) - 1
        self._tail = ""
        firsts = {string[:1] for string in stop}
        self._first = firsts.pop() if len(firsts) == 1 else ""
        """The character that all of them begin with; empty where there is none."""
        self.met = False
        """True once a stop string has been passed on; from there on everything is dropped."""

    def feed(self, piece: str) -> str:
        """The part of `piece` that still belongs to the text."""
        if self.met or not piece:
            return ""
        window = self._tail + piece
        if self._first and self._first not in window:
            self._tail = ""
            return piece
        for string in self._stop:
            if string in window:
                self.met = True
                return end_at_stop(window, self._stop, "", None)[0][len(self._tail) :]
        self._tail = window[-self._overlap :] if self._overlap else ""
        return piece

    def end(self, finish_reason: str, matched: str | None) -> tuple[str, str]:
        """The rest of the text at its end, and its finish reason. `matched`: as for
        `end_at_stop`.
        """
        return ("", "stop") if self.met else end_at_stop("", self._stop, finish_reason, matched)


class StreamedReply:
    """Takes the chunks in order; knows when the output is whole and when to stop listening.

    After a stop string the engine gets one chunk to show whether it stopped by itself. If so, its
    final usage is still on its way and worth the wait. If it writes on, it ignores stop strings:
    the stream is `abandoned`, which saves the tokens but forgoes the final usage, so that the last
    one that was reported is marked as a lower bound. So it is where the engine writes on after it
    has counted more tokens than it was to write, or more than they can hold.

    Leaving it as a context tells the usage so far where the stream was cut.
    """

    def __init__(
        self,
        prompt: Prompt,
        on_delta: OnDelta = lambda _delta: None,
        *,
        thinks: bool = True,
        opened: bool = False,
    ) -> None:
        """`thinks`: False for a model whose thinking is switched off; what its engine took for
        reasoning is then the output, and comes with the last delta. `opened`: as for `Thoughts`.
        """
        self._stop = prompt.stop
        self._max_tokens = prompt.sampling.max_tokens
        self._on_delta = on_delta
        self._thinks = thinks
        self._stops = bool(prompt.stop) and not prompt.unstopped
        self._cut = StopCut(prompt.stop)
        self._thoughts = None if prompt.raw else Thoughts(opened=opened)
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls = Calls()
        self._refusal = ""
        self._half = ""
        """The first half of a character beyond 16 bits, as JSON escapes it, whose second half
        is to come.
        """
        self._finish_reason: str | None = None
        self._matched: str | None = None
        self._usage: UsageReply | None = None
        self._most_counted = -1
        self._told = 0
        self._revoked = 0
        """How many pieces are no text any more."""
        self._wrote = False
        self._null = True
        """Whether the content is null."""
        self._opened = opened
        self.opened = False
        """True where the template has opened a thought, as far as the output tells."""
        self._writes_on = self._over = self._exceeded = self._ended = False
        self._chars, self._room, self._check_at = (
            0,
            _room(self._max_tokens),
            self._max_tokens // _BYTES_A_CHARACTER,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._ended:
            self.tell(self._counted)

    @property
    def begun(self) -> bool:
        """True where some of the output has come."""
        return self._chars > 0

    @property
    def whole(self) -> bool:
        """True where the text is complete, by the engine's word or by a stop string."""
        return self._finish_reason is not None or self._cut.met

    @property
    def overran(self) -> bool:
        """True where the engine writes on past a stop string, so that nothing that still comes
        is wanted.
        """
        return self._writes_on and self._finish_reason is None

    @property
    def abandoned(self) -> bool:
        """True where it does so, or past what it may write; then what has come already may tell
        its usage.
        """
        return self._exceeded or self.overran

    def take(self, chunk: ChatReply) -> None:
        """Note what `chunk` adds to the output."""
        if chunk.usage is not None:
            self._count(chunk)
        choice = chunk.choice
        if choice is None or self._finish_reason is not None:
            return
        if choice.finish_reason:
            self._finish_reason = choice.ended
            self._matched = choice.matched
        if self._wrote and choice.message is not None and not choice.delta:
            return  # the whole once more, at the end of its pieces
        said = choice.said
        cut = self._cut
        written, thought = self._read(said)
        if written:
            self._wrote = True
            if self._thoughts:
                if thought:
                    self._thoughts.opened = False
                written, more = self._thoughts.feed(written)
                thought += more
                if self._thoughts.revoked:
                    self._thoughts.revoked = False
                    cut = self._revoke()
        if said.tool_calls:
            written += "" if self._calls else CALL_BEGIN
            self._calls.add(said.tool_calls)
        reasoning = "" if cut.met else thought
        text = cut.feed(written)
        if cut.met:
            self._writes_on |= text != written or thought != reasoning
        if text or reasoning:
            self._add(text, reasoning)

    def _read(self, said: MessageReply) -> tuple[str, str]:
        """Return the text and the reasoning of a piece, in whole characters."""
        written = said.content or ""
        thought = said.reasoning or said.reasoning_content or ""
        if not isinstance(written, str) or not (written or thought):
            written, thought, refusal = said.parts
            self._refusal += refusal
            self._null &= said.content is None
        if not written.isascii() or self._half:
            written = self._joined(written)
        return written, thought if thought.isascii() else _valid(thought)

    def _joined(self, written: str) -> str:
        """Return the next piece with the first half of a character from the piece before; a
        half at its end waits.
        """
        written = self._half + written
        self._half = written[-1:] if "\ud800" <= written[-1:] <= "\udbff" else ""
        return _valid(written[: len(written) - len(self._half)])

    def _count(self, chunk: ChatReply) -> None:
        told = chunk.told
        counted = (told and told.completion_tokens) or 0
        if self._usage is None or counted >= self._most_counted:  # it only grows
            self._usage = told
            self._most_counted = counted

    def take_whole(self, reply: ChatReply) -> None:
        """Note a reply that is no stream. Without a finish reason, it has stopped."""
        self.take(reply)
        self._finish_reason = self._finish_reason or "stop"

    def _revoke(self) -> StopCut:
        """Make reasoning of all text so far; what was passed on stays so."""
        for at in range(self._revoked, len(self._texts)):
            self._reasoning[at] += self._texts[at]
            self._texts[at] = ""
        self._revoked = len(self._texts)
        self.opened |= self._thoughts is not None and not self._thoughts.open
        self._cut = StopCut(self._stop)
        return self._cut

    def tell(self, usage: Usage | None = None) -> None:
        """Pass on what was noted since the last time."""
        new = slice(self._told, None)
        text = "".join(self._texts[new])
        reasoning = "".join(self._reasoning[new])
        self._told = len(self._texts)
        if text or reasoning or usage:
            self._on_delta(Delta(text, reasoning, usage))

    def end(self) -> Completion:
        """The whole output, once the stream has ended or is abandoned; its rest is passed on
        with the usage.
        """
        finish_reason = self._finish_reason or ""
        rest = ""
        thought = ""
        within = False
        if self._thoughts:
            rest, thought = self._thoughts.end(cut=finish_reason == "length")
            within = self._thoughts.open
            if self._thoughts.revoked:
                self._revoke()
        if self._half:
            rest += _valid(self._half)
        if self._calls:
            rest = _valid(self._calls.text(cut=finish_reason == "length")[len(CALL_BEGIN) :])
        rest = rest[: self._room]
        self._chars += len(rest)
        unclosed = within or (self._null and self._thinks and not (self._wrote or self._calls))
        unclosed &= self._stops and finish_reason == "stop" and not self._cut.met
        unclosed &= not any(string in rest for string in self._stop)
        if self._exceeded:
            text = ""
            finish_reason = "length"
        elif not self._thinks and not self._wrote and not self._calls:
            rest = "".join(self._reasoning)
            text, finish_reason = end_at_stop(rest, self._stop, finish_reason, self._matched)
            self._writes_on = len(text) < len(rest)
        elif unclosed and not self._opened:
            text = ""
        else:
            text = self._cut.feed(rest)
            self._writes_on |= text != rest
            matched, finish_reason = self._cut.end(finish_reason, self._matched)
            text += matched
        self.opened |= self._opened and not (within and finish_reason == "stop" and not unclosed)
        usage = self._counted
        if usage is not None and (self._exceeded or self._finish_reason is None):
            usage = replace(usage, lower_bound=True)
        self._ended = True
        self._texts.append(text)
        self._reasoning.append(thought)
        self.tell(usage)
        output = Completion(
            "".join(self._texts), finish_reason, "".join(self._reasoning), usage, self._writes_on
        )
        return replace(output, unclosed=True) if unclosed else output

    @property
    def refused(self) -> str | None:
        """The words with which the model, or a filter, declined; None where none did."""
        if self._finish_reason == FILTERED or (
            self._refusal and not self._calls and not any(self._texts)
        ):
            return self._refusal or "".join(self._texts)
        return None

    @property
    def _counted(self) -> Usage | None:
        """The usage so far."""
        return _held(self._usage.usage() if self._usage else None, self._chars, self._max_tokens)

    def _add(self, text: str, reasoning: str) -> None:
        more = len(text) + len(reasoning)
        self._chars += more
        if self._over or self._chars > self._room:
            left = 0 if self._over else self._room - self._chars + more
            text = text[: max(0, left - len(reasoning))]
            reasoning = reasoning[:left]
            self._finish_reason = "length"
            self._exceeded = True
        elif self._chars >= self._check_at:  # no earlier can more have been counted
            self._over = self._max_tokens < self._most_counted <= self._chars * _BYTES_A_CHARACTER
            self._check_at = (
                self._chars + (self._max_tokens - self._most_counted) // _BYTES_A_CHARACTER
            )
        self._texts.append(text)
        self._reasoning.append(reasoning)


_CHARACTERS_A_TOKEN = 32
_CHARACTERS_MORE = 256
"""No output has as many: words have six, and long tokens, of spaces or dashes, are evened out
by others.
"""
_BYTES_A_CHARACTER = 4
"""At most; a token has at least one byte."""


def _room(max_tokens: int) -> int:
    return _CHARACTERS_A_TOKEN * max_tokens + _CHARACTERS_MORE


def _held(usage: Usage | None, written: int, max_tokens: int) -> Usage | None:
    """The usage, with what was asked for as a lower bound where more was counted and can have
    been written.
    """
    if usage is None or not max_tokens < usage.completion_tokens <= written * _BYTES_A_CHARACTER:
        return usage
    return replace(usage, completion_tokens=max_tokens, reasoning_tokens=None, lower_bound=True)


def _valid(text: str) -> str:
    """Return a text with its halves of characters joined, and with U+FFFD for those that stand
    alone.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
