"""Metadata of documents, such as the author. Searches can be filtered by metadata."""

import io
import re
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from email.utils import parsedate
from typing import Any

from router.frozen import Frozen
from router.protocol import Passage

MAX_CHARS = 200
"""Max characters of each text in the metadata."""
_MAX_TAGS = 20
_PROPERTIES = ("core.xml", "meta.xml", ".psmdcp")
"""Endings of file names in the archive of an office document. Files with these endings contain the
document's properties.
"""
_NAMES = (
    "title",
    "created creation-date creationdate date",
    "author authors initial-creator creator from",
    "path",
    "tags keywords keyword subject",
)
"""Names of the title, the date, the author, the path and the tags in documents of different kinds,
most preferred name first.
"""
_DAY = re.compile(r"\s*(?:D:)?(\d{4})([-/.]?)(\d\d)\2(\d\d)(?!\d\d?\b)")
"""Matches the day at the beginning of a date in ISO 8601, or in PDF's format."""


class Metadata(Frozen, gc=False, omit_defaults=True):
    """Properties of a document. The text of an unknown property is empty."""

    title: str = ""
    date: str = ""
    """Day of writing or publication, such as `2020-01-31`."""
    author: str = ""
    """Authors, separated by `; `."""
    path: str = ""
    """Name of the document's file (`SourceFile.name`), or the path in a row of a corpus file."""
    tags: tuple[str, ...] = ()


class StoredPassage(Passage, frozen=True, gc=False):
    """A passage with its document's metadata, as an index stores it."""

    metadata: Metadata = Metadata()


def metadata_of(fields: Mapping[str, Any]) -> Metadata:
    """Return the metadata in `fields`, with texts of at most 200 characters, and at most 20 tags.

    `fields`: texts and lists of texts, by the names in `_NAMES`. Tags are separated by commas or
    semicolons. Values of other types, and dates that cannot be parsed, are ignored.
    """
    values = [
        next((fields[name] for name in names.split() if fields.get(name)), None) for names in _NAMES
    ]
    title, day, author, path, words = map(_texts, values)
    tags = map(_clipped, re.split("[,;]", ",".join(words)))
    return Metadata(
        _clipped("".join(title[:1])),
        _iso_day(_clipped("".join(day[:1]))),
        _clipped("; ".join(author)),
        _clipped("".join(path[:1])),
        tuple(dict.fromkeys(filter(None, tags)))[:_MAX_TAGS],
    )


def archive_metadata(content: bytes, package: str = "") -> Metadata:
    """Return the metadata of the document in an archive. The metadata is empty if the archive has
    none, or is damaged.

    `package`: name of the file with the metadata; empty for the properties of an office document.
    """
    fields = defaultdict[str, list[str]](list)
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(content)) as packed:
        names = [name for name in packed.namelist() if name.endswith(_PROPERTIES)]
        for element in parsed(packed.read(package or min(names, key=len))).iter("{*}*"):
            fields[element.tag.rpartition("}")[2]].append(element.text or "")
    return metadata_of(fields)


def parsed(xml: bytes) -> Any:
    """Return the root element of `xml`. Entities are not resolved. If the XML is damaged, only its
    valid part is parsed. Raises `ValueError` if no part is valid.
    """
    from lxml import etree

    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, recover=True
    )
    root = etree.fromstring(xml, parser)
    if root is None:
        raise ValueError("is not XML")
    return root


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [str(text) for text in values if isinstance(text, str | date) and str(text).strip()]


def _clipped(text: str) -> str:
    return "".join(filter(str.isprintable, " ".join(text.split())))[:MAX_CHARS]


def _iso_day(text: str) -> str:
    with suppress(ValueError, IndexError, TypeError):
        if day := _DAY.match(text):
            return date(int(day[1]), int(day[3]), int(day[4])).isoformat()
        if parts := parsedate(text) or parsedate(f"{text} 00:00:00"):
            return date(*parts[:3]).isoformat()
    return ""
