"""Print text on a terminal. Control characters in untrusted text are shown as visible characters,
so that the terminal does not execute them.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO, cast

from rich.console import Console
from rich.control import _CONTROL_STRIP_TRANSLATE
from rich.file_proxy import FileProxy
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rolegate.client.text import SHOWN, visible

_PIPE_WIDTH = 4000
"""Width of a table in characters, if the table is not printed on a terminal."""


def table_console() -> Console:
    """Return a console for tables on standard output. If standard output is not a terminal, rows
    are not wrapped, so that each row is one line for `grep`. If the environment variable COLUMNS is
    set, it is the width of the console in characters.
    """
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=_PIPE_WIDTH if is_wide else None)


def complain(text: str) -> None:
    """Print a line to standard error, with its control characters made visible."""
    print(visible(text), file=sys.stderr)


def progress_bar() -> Progress:
    """Return a context manager that shows progress bars on standard error. A bar has a description,
    the count of finished items, and the remaining time. If standard error is not a terminal,
    nothing is shown.
    """
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )


class _Visible(FileProxy):
    """Standard output for `print`: a stream that makes control characters visible. rich bypasses
    this object and writes to the underlying stream, because rich's styles are control sequences
    that must not be changed.
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
    """While the context is open, make control characters visible in all text that is passed to
    `print` and rich. The colours and styles of rich still work.
    """
    before = dict(_CONTROL_STRIP_TRANSLATE)
    # rich removes the five control characters in this table from all text; show them instead
    _CONTROL_STRIP_TRANSLATE.update(SHOWN)
    try:
        with redirect_stdout(cast(TextIO, _Visible(sys.stdout))):
            yield
    finally:
        _CONTROL_STRIP_TRANSLATE.clear()
        _CONTROL_STRIP_TRANSLATE.update(before)
