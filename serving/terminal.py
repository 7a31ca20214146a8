"""Text on a terminal: what came from outside is shown with its control characters, which the
terminal does not obey.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO, cast

from rich.console import Console
from rich.control import _CONTROL_STRIP_TRANSLATE
from rich.file_proxy import FileProxy
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rolegate.client.text import SHOWN, visible


def complain(text: str) -> None:
    """Print one line to the standard error stream."""
    print(visible(text), file=sys.stderr)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Bars on the standard error stream while this is open; nothing at all where that is no
    terminal. Without `columns`: what it is about, the bar, how much is done, and the time that is
    left.
    """
    console = Console(stderr=True)
    console.quiet = not console.is_interactive
    usual = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*(columns or usual), console=console, transient=True)


class _Visible(FileProxy):
    """The standard output as `print` sees it; rich, whose styles are sequences too, writes to
    the stream behind it.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(Console(file=stream), stream)
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def visible_output() -> Iterator[None]:
    """Make everything that is printed inside, by `print` or by rich, visible; rich's own styles
    stay.
    """
    before = dict(_CONTROL_STRIP_TRANSLATE)
    # By which rich drops five of them from all text; nothing else sets it
    _CONTROL_STRIP_TRANSLATE.update(SHOWN)
    try:
        with redirect_stdout(cast(TextIO, _Visible(sys.stdout))):
            yield
    finally:
        _CONTROL_STRIP_TRANSLATE.clear()
        _CONTROL_STRIP_TRANSLATE.update(before)
