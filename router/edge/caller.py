"""Who makes the call that is being served."""

from contextvars import ContextVar

from router.identity import LOCAL, Identity

CALLER: ContextVar[Identity] = ContextVar("caller", default=LOCAL)
"""Set by whoever checks keys, before the call reaches its servicer."""


def caller() -> Identity:
    """The identity behind the call that is being served."""
    return CALLER.get()
