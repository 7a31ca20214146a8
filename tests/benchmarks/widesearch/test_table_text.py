"""Tables in responses: by WideSearch's reader, by the plain reader, and hostile ones."""

import time
from collections.abc import Callable

import pytest

from benchmarks.widesearch.table_text import Table, Unreadable, official_table, plain_table, typed
from tests.benchmarks.widesearch.made_tasks import fenced

BORDER = "|---|---|"


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        # Only the first fence counts
        (fenced("| Na Me | B |", BORDER, "| x | y |"), {"name": ["x"], "b": ["y"]}),
        ("Text.\n\n|a|b|\n|---|---|\n|x|y|\nMore.\n|later|z|", {"a": ["x"], "b": ["y"]}),
        ("See a|b|\n|---|---|\n|x|y|\n", {"b": ["y"]}),  # the first column is lost
        # Nothing is required under the header
        ("|a|b|\n|x|y|\n|z|w|", {"a": ["x", "z"], "b": ["y", "w"]}),
        ("|a|b|\n|-|- -|\n|x|y|", {"a": ["x"], "b": ["y"]}),
        (fenced("a | b", "x | y"), {"a": ["x"], "b": ["y"]}),  # no outer borders
        # Rows of dashes vanish
        (fenced("|a|b|", BORDER, "|-|-|", "| : | - |", "|x|y|"), {"a": ["x"], "b": ["y"]}),
        (fenced("|a|b|", BORDER, "no border here", "|x|y|"), {"a": ["x"], "b": ["y"]}),
        # The header is the second line
        (fenced("The table", "|A B|b|", BORDER, "|x|y|"), {"ab": ["x"], "b": ["y"]}),
        (fenced('|a|b|\n|---|---|\n|"x" y|z "w"|'), {"a": ["x y"], "b": ['z "w"']}),
        (fenced("|a|b|", BORDER, "|x|"), {"a": ["x"], "b": ["nan"]}),
        # Moved by one
        (fenced("|a|b|", BORDER, "|x|y|z|", "|u|v|"), {"a": ["y", "v"], "b": ["z", "nan"]}),
        (fenced("a|b", "x|y|z|w", "u|v|s"), {"a": ["z", "s"], "b": ["w", "nan"]}),  # by two
        # A column without a name
        (fenced("|a||b|", "|---|---|---|", "|x|y|z|"), {"a": ["x"], "b": ["z"]}),
        (fenced("", "x|Unnamed y|b", "u|v|w"), {"x": ["u"], "unnamedy": ["v"], "b": ["w"]}),
        (fenced("The", "x|Unnamed y|b", "u|v|w"), {"x": ["u"], "b": ["w"]}),
        (fenced("|a|a|b|", "|x|y|z|"), {"a": ["x"], "a.1": ["y"], "b": ["z"]}),
        (fenced("|a|b|"), {"a": [], "b": []}),
        # A quoted cell continues
        (fenced("|a|b|", '|"x|y|', '|u"|v|'), {"a": ["x|y|\n|u"], "b": ["v"]}),
    ],
)
def test_the_official_reader_follows_the_evaluator(response: str, expected: Table) -> None:
    """Expected tables were derived by hand from the evaluator's rules."""
    assert official_table(response) == expected


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("", "it has no table"),
        ("nothing | to | see", "it has no table"),
        (fenced(), "No columns to parse"),
        (fenced("|---|---|"), "No columns to parse"),
        (fenced("|a|b|", '|"x|y|'), "EOF inside string"),
        (fenced("|a|b|", "|x|y|", "|u|v|w|"), "Expected 4 fields in line 3, saw 5"),
        (fenced("The", "a b|ab", "x|y"), "two of its columns have the same name"),
    ],
)
def test_responses_without_an_official_table_score_zero(response: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        official_table(response)


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("007 1701 -3 +4", "7 1701 -3 4"),
        ("007 NULL 3", "7.0 nan 3.0"),
        ("1701 1.50 1e3", "1701.0 1.5 1000.0"),
        (".5 5. -INF", "0.5 5.0 -inf"),
        ("true FALSE True", "True False True"),
        ("true N/A", "True nan"),
        ("true 1", "true 1"),
        ("1,234 5", "1,234 5"),
        ("12% 5", "12% 5"),
        ("- 5", "- 5"),
        ("007 x None", "007 x nan"),
        ("n/a NA", "nan nan"),
        ("18446744073709551615 0", "18446744073709551615 0"),
    ],
)
def test_typed_columns_are_written_like_pandas(column: str, text: str) -> None:
    """They are columns of numbers or of truth values; any other is unchanged."""
    assert typed(column.split(" ")) == text.split(" ")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (
            fenced("| **Na Me** | B |", "|:---|---:|", '| "x | y\\|z |'),
            {"name": ['"x'], "b": ["y|z"]},
        ),
        ("Text | with | borders\n\na|b\n-|-\n007|1<br>2\n\nlater|x", {"a": ["007"], "b": ["1\n2"]}),
        (
            fenced("|a|b|", BORDER, "|-|-|", "|x|", "|u|v|w|"),
            {"a": ["-", "x", "u"], "b": ["-", "", "v"]},
        ),
    ],
)
def test_the_plain_reader_keeps_texts(response: str, expected: Table) -> None:
    """Extra cells are dropped, missing cells are empty."""
    assert plain_table(response) == expected


def test_a_plain_table_needs_a_line_of_dashes() -> None:
    """It is under the header."""
    with pytest.raises(Unreadable, match="a line of dashes"):
        plain_table("|a|b|\n|x|y|")


HOSTILE = {
    "borders": "|" * 1_000_000,
    "lines of one border": "|a|b|\n|---|---|\n" + "|\n" * 300_000,
    "wide and long": "|" * 200_000 + "x|\n|---|\n" + "|a\n" * 150_000,
    "fences": "```markdown" * 90_000,
    "quotation marks": '|a|b|\n|---|---|\n|"' * 60_000,
    "digits": f"|a|b|\n|---|---|\n|{'1' * 1_000_000}|x|",
    "almost numbers": "|a|b|\n|---|---|\n" + f"|{'1' * 9_999}x|{' ' * 9_999}|\n" * 50,
    "headers": "|a" * 300_000 + "|\n" + "|-" * 300_000 + "|",
    "dashes": "|" + "-" * 1_000_000 + "|",
}


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("read", [official_table, plain_table])
def test_hostile_responses_end(read: Callable[[str], Table], kind: str, times: int) -> None:
    """The result is a table or a reason, within seconds for each megabyte."""
    begun = time.process_time()
    try:
        table = read(HOSTILE[kind] * times)
    except ValueError as error:
        assert str(error)
    else:
        assert len({len(cells) for cells in table.values()}) <= 1
    assert time.process_time() - begun < 10 * times
