"""Timeouts of one upstream call."""

from router.errors import UpstreamUnavailable
from router.frozen import Frozen
from router.models import Model


class Timeouts(Frozen):
    """Timeouts of one upstream call: until the first token, and until the end of the output."""

    first_token_s: float = 60.0
    """Max seconds until the first token. If the output is not streamed, max seconds until the whole
    reply.
    """
    call_s: float = 300.0
    """Max seconds until the end of the output."""

    @property
    def silent_s(self) -> float:
        """Max seconds until the first token: `first_token_s`, but not more than `call_s`."""
        return min(self.first_token_s, self.call_s)

    def passed(self, model: Model, *, wrote: bool) -> UpstreamUnavailable:
        """Return the error to raise for a call that took too long. `wrote`: True if the model had
        written its first token.
        """
        problem = (
            f"the model wrote nothing within {self.silent_s:g} s; raise first_token_timeout_s of "
            "the role, and call_timeout_s if that is lower"
        )
        if wrote:
            problem = (
                f"the output did not end within {self.call_s:g} s; raise the role's call_timeout_s"
            )
        return UpstreamUnavailable(
            f"model {model.name!r}: {problem}", endpoint=model.endpoint, repeatable=False
        )
