"""What a document is called."""

import os
import re
from pathlib import Path
from typing import Literal

from serving.documents.document import cleaned

Kind = Literal["text", "HTML", "Markdown", "PDF", "DOCX", "rows"]

_KINDS: dict[str, Kind] = {
    "": "text",
    ".txt": "text",
    ".text": "text",
    ".rst": "text",
    ".md": "Markdown",
    ".markdown": "Markdown",
    ".html": "HTML",
    ".htm": "HTML",
    ".xhtml": "HTML",
    ".pdf": "PDF",
    ".docx": "DOCX",
    ".jsonl": "rows",
    ".json": "rows",
    ".parquet": "rows",
}
READ = f"{' '.join(filter(None, _KINDS))}, files without a suffix, text in .gz, and data sets saved by Hugging Face"
"""All kinds, for people."""


def kind_of(path: Path) -> Kind | None:
    """None for what has no reader."""
    if is_dataset(path):
        return "rows"
    packed = path.suffix.lower() == ".gz"
    suffix = (path.with_suffix("") if packed else path).suffix.lower()
    if suffix[1:].isdecimal():  # no kind but a version, as of LGPL-2.1, or a manual's section
        return "text"
    return None if packed and suffix in (".pdf", ".docx", ".parquet") else _KINDS.get(suffix)


def is_dataset(path: Path) -> bool:
    """Whether `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote this folder."""

    def has(name: str) -> bool:
        return os.path.isfile(path / name)  # noqa: PTH113  (pathlib's raises for a path that is too long)

    return has("dataset_dict.json") or (has("dataset_info.json") and has("state.json"))


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
