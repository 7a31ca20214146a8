"""Failures of MCP servers as text."""


def reason(error: BaseException) -> str:
    """Return the first error of a task group, or the error itself, on one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    if message:
        return message
    return "did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
