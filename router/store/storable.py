"""Text that every database can keep."""


def storable(text: str) -> str:
    """The same without NUL, which PostgreSQL refuses."""
    return text.replace("\0", "\ufffd")
