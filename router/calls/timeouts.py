"""Timeouts of one upstream call."""

from dataclasses import dataclass

from router.errors import UpstreamUnavailable
from router.models import Model


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Max seconds until the first token of a call, and in total."""

    first_token_s: float = 60.0
    """Timeout of the whole reply, if it is not streamed."""
    call_s: float = 300.0

    @property
    def silent_s(self) -> float:
        """Max seconds until the first token."""
        return min(self.first_token_s, self.call_s)

    def passed(self, model: Model, *, wrote: bool) -> UpstreamUnavailable:
        """Return the error for a call that took too long. `wrote`: it had its first token."""
        problem = f"no token within {self.silent_s:g} s"
        if wrote:
            problem = f"not at its end within {self.call_s:g} s"
        return UpstreamUnavailable(
            f"model {model.name!r}: {problem}", endpoint=model.endpoint, repeatable=False
        )
