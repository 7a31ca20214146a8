"""Ends a streamed text at a stop string, as `end_at_stop` ends a whole one."""

from router.model import end_at_stop


class StopCut:
    """Passes text on up to the end of the first stop string, however the pieces are split.

    Nothing is held back: the string that is met belongs to the text, so what could be its beginning does too.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._overlap = max((len(string) for string in stop), default=1) - 1
        self._tail = ""
        self.met = False
        """Whether a stop string has been passed on; from there on everything is dropped."""

    def feed(self, piece: str) -> str:
        """What of `piece` still belongs to the text."""
        if self.met or not piece:
            return ""
        window = self._tail + piece
        kept, reason = end_at_stop(window, self._stop, "", None)
        self.met = reason == "stop"
        text = kept[len(self._tail) :]
        self._tail = window[-self._overlap :] if self._overlap else ""
        return text

    def end(self, finish_reason: str, matched: str | None) -> tuple[str, str]:
        """What is missing at the end of the text, and its finish reason. `matched`: as for `end_at_stop`."""
        return ("", "stop") if self.met else end_at_stop("", self._stop, finish_reason, matched)
