"""Format and print the output of commands: tables, cells of tables, counts, and plain lines."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text


def new_table(
    columns: Iterable[Column | str], rows: Iterable[Iterable[object]] = (), *, texts: int = 1
) -> Table:
    """Return a table of `rows` in the style that all commands use. The first `texts` columns hold
    text, and are aligned left. The other columns hold figures, and are aligned right.
    """
    table = Table(*columns, box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, column in enumerate(table.columns):
        column.justify = "left" if number < texts else "right"
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(cell, row))
    return table


def cell(value: object) -> Text:
    """Return a value as the text of a table's cell, such as "1,234", "yes", or "–" for an empty
    value. A dictionary with mean, low and high becomes a mean with its interval.
    """
    shown = str(value)
    match value:
        case Text():
            return value
        case None | "" | [] | ():
            shown = "–"
        case bool():
            shown = "yes" if value else "no"
        case {"mean": mean, "low": low, "high": high}:
            shown = f"{mean:+.4g} ({low:+.4g} to {high:+.4g})"
        case int():
            shown = f"{value:,}"
        case float():
            digits = 0 if value.is_integer() or abs(value) >= 100 else 4
            shown = f"{value:,.{digits}f}"
        case dict():
            shown = ", ".join(f"{name}: {cell(item)}" for name, item in value.items())
        case list() | tuple():
            shown = ", ".join(map(str, value))
    return Text(shown)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 row", "2 rows"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def print_line(
    console: Console,
    text: str,
    indent: int = 0,
    style: str = "",
) -> None:
    """Print `text` with each of its lines indented by `indent` spaces. Brackets in the text are
    printed, and not interpreted as rich's markup. `style`: a style of rich, such as `dim`.
    """
    console.print(Padding(Text(text, style), (0, 0, 0, indent), expand=False))


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print lines without wrapping or highlighting them."""
    for line in lines:
        console.out(line, highlight=False)
