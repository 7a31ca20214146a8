"""Assembly of one model output, either from a whole reply or from the chunks of a stream."""

from math import inf
from typing import Self

from msgspec.structs import replace

from router.models.failures import Upstream
from router.models.model import Completion, Delta, OnDelta, Prompt, Usage, encodable, end_at_stop
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
    """Cuts a text that arrives in pieces after its first stop string, even if the stop string is
    split between pieces.

    No text is held back until the next piece: a stop string stays in the text, so its possible
    beginning can be passed on immediately.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._overlap = max((len(string) for string in stop), default=1) - 1
        self._tail = ""
        firsts = {string[:1] for string in stop}
        self._first = firsts.pop() if len(firsts) == 1 else ""
        """The character with which all stop strings begin; empty if they begin differently."""
        self.met = False
        """True once a stop string has been passed on. From then on, `feed` returns nothing."""

    def feed(self, piece: str) -> str:
        """Return the part of `piece` that lies before the end of the first stop string."""
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
        """Return the remaining text and the finish reason. `matched`: the stop string at which the
        output ended, as the engine reports it, or None. If the engine left this string out of the
        text, the string is the remaining text.
        """
        return ("", "stop") if self.met else end_at_stop("", self._stop, finish_reason, matched)


_CHARACTERS_A_TOKEN = 32
_CHARACTERS_MORE = 256
"""An output of n tokens may have at most 32 n + 256 characters. Ordinary words have about six
characters per token, and few tokens have more than 32.
"""
_BYTES_A_CHARACTER = 4
"""Max bytes of a character in UTF-8. As a token has at least one byte, a character has at most four
tokens.
"""


class StreamedReply:
    """Collects the chunks of one output in order, and decides when the output is complete and when
    reading should stop.

    After a stop string, the next chunk shows whether the engine has stopped. If it has, reading
    continues until the final usage arrives. If the engine continues to write, it ignores stop
    strings, and the stream is `abandoned`: reading ends. That saves tokens but loses the final
    usage, so the latest usage is marked as a lower bound. A stream is also abandoned once the
    engine has written more than `max_tokens`, either by its own count or because the text is longer
    than that many tokens can be.

    Use it as a context manager: on exit, it passes the usage so far to `on_delta` if the stream was
    interrupted.
    """

    def __init__(
        self,
        prompt: Prompt,
        on_delta: OnDelta = lambda _delta: None,
        *,
        thinks: bool = True,
        opened: bool = False,
    ) -> None:
        """`thinks`: False for a model whose thinking is switched off. If its engine nevertheless
        sends the whole output as reasoning, the output becomes the text, and is passed on with the
        last delta. `opened`: whether to assume that the chat template opened a thought, that is,
        ended with a mark such as `<think>`.
        """
        self._stop = prompt.stop
        self._max_tokens = prompt.sampling.max_tokens
        self._on_delta = on_delta
        self._thinks = thinks
        self._stops = bool(prompt.stop) and not prompt.unstopped
        self._cut = StopCut(prompt.stop)
        self._thoughts = Thoughts(opened=opened)
        self._opened = opened
        self.opened = False
        """True if the output shows that the chat template opened a thought."""

        self._texts = list[str]()
        self._reasoning = list[str]()
        self._reported = 0
        """Number of pieces that were passed to `on_delta`."""
        self._revoked = 0
        """Number of pieces, counted from the first, whose text was turned into reasoning."""
        self._calls = Calls()
        self._refusal = ""
        self._waiting = ""
        """Text that is held back while it is unclear whether it is text or reasoning."""
        self._half = ""
        """First half of a surrogate pair whose second half is in the next piece."""

        self._index: float = inf
        """Lowest index of an output so far. Outputs (`choices`) with a higher index are ignored."""
        self._finish_reason: str | None = None
        self._matched: str | None = None
        self._usage: UsageReply | None = None
        self._counted_tokens = -1
        """Completion tokens of the latest usage; -1 if there was none."""

        self._wrote = False
        """Whether any text other than reasoning has arrived."""
        self._null = True
        """Whether the field `content` was null in every chunk so far."""
        self._writes_on = False
        """Whether the engine has written after a stop string."""
        self._over = False
        """Whether the engine has counted more tokens than `max_tokens`."""
        self._exceeded = False
        """Whether text was dropped because of `max_tokens`."""
        self._ended = False

        self._chars = 0
        self._room = _CHARACTERS_A_TOKEN * self._max_tokens + _CHARACTERS_MORE
        self._check_at = self._max_tokens // _BYTES_A_CHARACTER
        """An output with fewer characters than this cannot have more than `max_tokens` tokens, so
        its tokens need not be checked.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._ended:
            self.report(self._counted)

    @property
    def begun(self) -> bool:
        """True once any text or reasoning has arrived."""
        return self._chars > 0

    @property
    def complete(self) -> bool:
        """True once the output is complete: the engine sent a finish reason, or a stop string was
        met.
        """
        return self._finish_reason is not None or self._cut.met

    @property
    def overran(self) -> bool:
        """True if the engine continues to write after a stop string, so reading should stop."""
        return self._writes_on and self._finish_reason is None

    @property
    def abandoned(self) -> bool:
        """True if the engine continues to write after a stop string or after `max_tokens`. Reading
        should stop after the chunks that have already arrived, because they may contain the usage.
        """
        return self._exceeded or self.overran

    def take(self, chunk: ChatReply) -> None:
        """Add the content of `chunk` to the output."""
        if chunk.usage is not None:
            self._count(chunk.usage)
        choice = chunk.choice
        if choice is None or self._exceeded or choice.index > self._index:
            return
        self._index = choice.index
        if choice.reason and self._finish_reason != FILTERED:  # some servers repeat the reason
            self._finish_reason = choice.reason
            self._matched = choice.matched or self._matched

        content = choice.content
        # Some servers send the whole message again after its pieces
        repeated = self._wrote and choice.message is not None and not choice.delta
        text, thought = ("", "") if repeated else self._read(content)
        if self._calls:
            text = ""
        thoughts = self._thoughts
        if text:
            self._wrote = True
            if thought:  # the engine separates reasoning itself
                thoughts.opened = False
            text, more = thoughts.feed(text)
            text, thought = self._settled(text, thought + more)
        if content.calls and not (repeated and self._calls):
            begun = bool(self._calls)
            self._calls.add(content.calls)
            if self._calls and not begun:
                if thoughts.unsettled:
                    thoughts.revoke()
                    text, thought = self._settled(text, thought)
                text += CALL_BEGIN

        cut = self._cut
        kept_thought = "" if cut.met else thought
        kept_text = cut.feed(text)
        if cut.met:
            self._writes_on |= kept_text != text or kept_thought != thought
        if kept_text or kept_thought:
            self._add(kept_text, kept_thought)

    def _settled(self, text: str, thought: str) -> tuple[str, str]:
        """Return the text and the reasoning that can be added now. After a closing mark such as
        `</think>` without an opening mark, text is held back until it is clear whether it is
        reasoning.
        """
        thoughts = self._thoughts
        if thoughts.revoked:
            thoughts.revoked = False
            thought = self._waiting + thought
            self._waiting = ""
            self._revoke()
        text = self._waiting + text
        self._waiting = text if thoughts.unsettled else ""
        return ("" if thoughts.unsettled else text), thought

    def _read(self, content: MessageReply) -> tuple[str, str]:
        """Return the text and the reasoning of a piece. Half of a surrogate pair at its end is kept
        for the next piece.
        """
        text = content.content or ""
        thought = content.reasoning or content.reasoning_content or ""
        if not isinstance(text, str) or not (text or thought):
            text, thought, refusal = content.parts
            self._refusal += refusal
            self._null &= content.content is None
        text = text[: 2 * self._room]
        if not text.isascii() or self._half:
            text = self._half + text
            self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
            text = encodable(text[: len(text) - len(self._half)])
        return text, encodable(thought[: 2 * self._room])

    def _count(self, usage: UsageReply) -> None:
        """Keep `usage` as the latest one, unless it is unreadable or counts fewer completion tokens
        than an earlier one.
        """
        counts = usage.usage()
        if counts and (self._usage is None or counts.completion_tokens >= self._counted_tokens):
            self._usage = usage
            self._counted_tokens = counts.completion_tokens

    def take_complete(self, reply: ChatReply) -> None:
        """Add a reply that was not streamed. If it has no finish reason, `stop` is assumed."""
        self.take(reply)
        self._finish_reason = self._finish_reason or "stop"

    def _revoke(self) -> None:
        """Turn all text so far into reasoning. Deltas that were already passed on as text cannot be
        changed.
        """
        for number in range(self._revoked, len(self._texts)):
            self._reasoning[number] += self._texts[number]
            self._texts[number] = ""
        self._revoked = len(self._texts)
        self._cut = StopCut(self._stop)

    def report(self, usage: Usage | None = None) -> None:
        """Pass everything that was added since the last call to `on_delta`."""
        text = "".join(self._texts[self._reported :])
        reasoning = "".join(self._reasoning[self._reported :])
        self._reported = len(self._texts)
        if text or reasoning or usage:
            self._on_delta(Delta(text, reasoning, usage))

    def end(self) -> Completion:
        """Return the whole output, and pass its remaining text to `on_delta` with the usage. Call
        this once the stream has ended or is abandoned.
        """
        finish_reason = self._finish_reason or ""
        rest, thought, thinking = self._rest(cut=finish_reason == "length")
        silent = self._null and self._thinks and not (self._wrote or self._calls)
        unclosed = (
            (thinking or silent)
            and self._stops
            and finish_reason == "stop"
            and not self._cut.met
            and not any(string in rest for string in self._stop)
        )
        self.opened |= self._opened and not (thinking and finish_reason == "stop" and not unclosed)

        if self._exceeded:
            text = ""
            finish_reason = "length"
        elif not self._thinks and not self._wrote and not self._calls:
            reasoning = "".join(self._reasoning)
            text, finish_reason = end_at_stop(reasoning, self._stop, finish_reason, self._matched)
            self._writes_on = len(text) < len(reasoning)
        elif unclosed and not self._opened:
            text = ""
        else:
            text = self._cut.feed(rest)
            self._writes_on |= text != rest
            matched, finish_reason = self._cut.end(finish_reason, self._matched)
            text += matched

        usage = self._counted
        if usage is not None and (self._exceeded or self._finish_reason is None):
            usage = replace(usage, lower_bound=True)
        self._ended = True
        self._texts.append(text)
        self._reasoning.append(thought)
        self.report(usage)
        output = Completion(
            "".join(self._texts),
            finish_reason,
            "".join(self._reasoning),
            usage,
            self._writes_on,
        )
        return replace(output, unclosed=True) if unclosed else output

    def _rest(self, *, cut: bool) -> tuple[str, str, bool]:
        """Return the text and the reasoning that were held back, and whether a thought is still
        open. `cut`: True if the length limit ended the output.
        """
        thoughts = self._thoughts
        rest, thought = thoughts.end(cut=cut)
        thoughts.unsettled = False
        rest, thought = self._settled(rest, thought)
        self.opened = thoughts.revealed
        if self._half:
            rest += encodable(self._half)
        if self._calls:
            rest = encodable(self._calls.text(cut=cut)[len(CALL_BEGIN) :])
        rest = rest[: self._room]
        self._chars += len(rest)
        return rest, thought, thoughts.open

    @property
    def refused(self) -> str | None:
        """The refusal that the model or a content filter wrote; None if neither declined."""
        declined = self._refusal and not self._calls and not any(self._texts)
        if declined or self._finish_reason == FILTERED:
            return self._refusal or "".join(self._texts)
        return None

    @property
    def _counted(self) -> Usage | None:
        """The latest usage; None if none has arrived. If its count of completion tokens is
        plausible but exceeds `max_tokens`, the count is reduced to `max_tokens`, and the usage is
        marked as a lower bound.
        """
        usage = self._usage.usage() if self._usage else None
        if usage is None or not self._holds(usage.completion_tokens):
            return usage
        return replace(
            usage, completion_tokens=self._max_tokens, reasoning_tokens=None, lower_bound=True
        )

    def _holds(self, tokens: int) -> bool:
        """Return whether the count `tokens` exceeds `max_tokens` and is plausible for the length of
        the text so far.
        """
        return self._max_tokens < tokens <= self._chars * _BYTES_A_CHARACTER

    def _add(self, text: str, reasoning: str) -> None:
        """Add a piece of the output. Cut it, and mark the output as exceeded, if the output becomes
        longer than `max_tokens` allows.
        """
        before = self._chars
        self._chars += len(text) + len(reasoning)
        if self._over or self._chars > self._room:
            room = 0 if self._over else self._room - before
            text = text[: max(0, room - len(reasoning))]
            reasoning = reasoning[:room]
            self._finish_reason = "length"
            self._exceeded = True
        elif self._chars >= self._check_at:
            self._over = self._holds(self._counted_tokens)
            self._check_at = (
                self._chars + (self._max_tokens - self._counted_tokens) // _BYTES_A_CHARACTER
            )
        self._texts.append(text)
        self._reasoning.append(reasoning)


def completed(streamed: StreamedReply, upstream: Upstream) -> Completion:
    """Return the output of a reply that has ended. Raises `UpstreamUnavailable` if the reply ended
    before the output was complete, and `ContentRefused` if the model or a filter declined.
    """
    if not streamed.complete:
        raise upstream.unavailable("the stream ended before the output was complete")
    output = streamed.end()
    if (words := streamed.refused) is not None:
        raise upstream.declined(words)
    return output
