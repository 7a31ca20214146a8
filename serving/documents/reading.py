"""Reading a document of any kind, and the one place where what parsers raise becomes an error of ours."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from router.errors import BadConfig, BadDocument, RolegateError
from serving.documents.document import Document, Part, Row, Title
from serving.documents.docx import read_docx
from serving.documents.markup import read_html, read_markdown
from serving.documents.pdf import read_pdf
from serving.documents.rows import read_rows
from serving.documents.text import read_text
from serving.documents.title import Kind, escaped, kind_of

T = TypeVar("T")

_READERS: dict[Kind, Callable[[Path], Document]] = {
    "text": read_text,
    "HTML": read_html,
    "Markdown": read_markdown,
    "PDF": read_pdf,
    "DOCX": read_docx,
}


def read_parts(path: Path) -> Iterator[Part]:
    """The rows of a file that holds rows; else its title, and then its blocks.

    Raises `BadDocument` or `BadCorpus` where it cannot be read, and `BadConfig` where a package is missing.
    """
    if kind_of(path) == "rows":
        yield from (Row(escaped(where), row) for where, row in guarded(path, read_rows(path)))
    else:
        document = read_document(path)
        yield Title(document.title)
        yield from document.blocks


def read_document(path: Path) -> Document:
    """The document in a file that does not hold rows; one of an unknown kind counts as text.

    Raises, as its blocks do, `BadDocument` where it cannot be read, and `BadConfig` where a package is missing.
    """
    with _mapped(path):
        if path.is_dir():
            next(path.iterdir())  # it was found only because it cannot be listed
        document = _READERS[kind_of(path) or "text"](path)
    return Document(document.title, guarded(path, document.blocks))


def guarded(path: Path, items: Iterable[T]) -> Iterator[T]:
    """The items; whatever reading them from `path` raises becomes `BadDocument` or `BadConfig`."""
    with _mapped(path):
        yield from items


@contextmanager
def _mapped(path: Path) -> Iterator[None]:
    try:
        yield
    except (RolegateError, MemoryError):
        raise
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = "datasets" if package in ("datasets", "pyarrow") else "documents"
        raise BadConfig(
            f"{path}: reading it needs the package {package}; install the extra rolegate[{extra}]."
        ) from error
    except OSError as error:
        raise BadDocument(
            f"{path}: cannot be read ({error.strerror or error}); make it readable, or leave it out."
        ) from error
    except Exception as error:  # parsers raise anything for a damaged file
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadDocument(
            f"{path}: damaged, or not what its name says ({reason}); mend it, or leave it out."
        ) from error
