"""What kind of document a file is, by its name."""

import os
from pathlib import Path
from typing import Literal

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
