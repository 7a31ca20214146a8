"""Timeouts of one upstream call."""

from dataclasses import dataclass

from router.errors import UpstreamUnavailable
from router.models import Model


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times that a call may take until its first token, and in all; seconds."""

    first_token_s: float = 60.0
    """A reply that is not streamed has to be there by then."""
    call_s: float = 300.0

    @property
    def silent_s(self) -> float:
        """The longest that it may take until it says something."""
        return min(self.first_token_s, self.call_s)

    def passed(self, model: Model, *, wrote: bool) -> UpstreamUnavailable:
        """The error for a call that took too long. `wrote`: it had its first token."""
        said = (
            f"not at its end within {self.call_s:g} s"
            if wrote
            else f"no token within {self.silent_s:g} s"
        )
        return UpstreamUnavailable(
            f"model {model.name!r}: {said}", endpoint=model.endpoint, repeatable=False
        )
