"""The chunks of one streamed reply, turned into deltas."""

import msgspec

from router.model import Delta, Usage, end_at_stop, largest
from router.openai_reply import ChatReply, MessageReply
from router.stop_cut import StopCut


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
        """Whether the text is complete, by the engine's word or by a stop string."""
        return self._finish_reason is not None or self._cut.met

    @property
    def abandoned(self) -> bool:
        """Whether nothing that still comes is wanted, because the engine writes on past a stop string."""
        return self._writes_on and self._finish_reason is None

    def take(self, chunk: ChatReply) -> Delta:
        """What `chunk` adds to the output; an empty delta where it adds nothing. The finish reason waits for `end`."""
        usage = chunk.usage.usage() if chunk.usage else None
        self._usage = largest(self._usage, usage)
        choice = chunk.choice
        if choice is None:
            return Delta(usage=usage)
        said = MessageReply() if self._finish_reason is not None else choice.said  # it ended before
        if choice.finish_reason:
            self._finish_reason, self._matched = choice.ended, choice.matched
        written, thought = said.text, said.thought
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
