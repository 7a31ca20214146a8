"""Turn exceptions of MCP servers and their connections into texts for error messages."""


def reason(error: BaseException) -> str:
    """Return the message of an error on one line, or the name of the error's type if it has no
    message. For an exception group, return the message of its first error.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    message = " ".join(str(error).split())
    if message:
        return message
    return "did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__
