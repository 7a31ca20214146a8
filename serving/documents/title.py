"""What a document is called."""

import re
from pathlib import Path

from serving.documents.kind import kind_of
from serving.documents.unit import cleaned

_POOR = re.compile(
    r"untitled|Word Document|Microsoft (Word|PowerPoint) - .*|.+\.(docx?|pptx?|odt|rtf|tex|dvi|indd|pdf)", re.I
)
"""What programs write where nobody gave a title."""


_SURROGATE = re.compile(r"\\udc([89a-f][0-9a-f])")
_EVERYWHERE = frozenset("readme license licence copying copyright changelog changes news notice index".split())
"""Names that tell nothing without their folder's."""


def title_of(path: Path, *candidates: str | None) -> str:
    """The first of the candidates that a person may have given, else the file's name without its suffix."""
    titles = (" ".join(cleaned(candidate or "").split()) for candidate in candidates)
    return next((title for title in titles if title and not _POOR.fullmatch(title)), _plain_name(path))


def _plain_name(path: Path) -> str:
    unpacked = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    name = unpacked.stem if kind_of(unpacked) and not unpacked.suffix[1:].isdecimal() else unpacked.name
    return escaped(f"{path.parent.name}/{name}" if path.parent.name and name.casefold() in _EVERYWHERE else name)


def escaped(text: str) -> str:
    r"""A file's name, or a text with one, in which each byte that is not UTF-8 is shown as `\xe9`: it can be printed,
    stored and sent.
    """
    return _SURROGATE.sub(r"\\x\1", text.encode("utf-8", "backslashreplace").decode())
