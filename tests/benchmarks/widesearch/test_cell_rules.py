"""Rules for cells, with scores worked out by hand."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.widesearch.cell_rules import (
    PREPROCESS,
    Criterion,
    Metric,
    official_score,
    strict_same,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("$1,234.5 or 7", "1234.5"),
        ("about -3.", "-3."),
        ("12 %", "12"),
        ("12%", "12%"),
        (".5% of 9", ".5%"),
        ("1-2", "1"),
        ("v1.2.3", "1.2"),
        ("1e3", "1"),
        ("+ 4", "4"),
        ("none", "NULL"),
        ("nan", "NULL"),
        ("", "NULL"),
    ],
)
def test_the_first_number_is_extracted(text: str, number: str) -> None:
    """It has no commas, its sign, and a directly following percent sign."""
    assert PREPROCESS["extract_number"](text) == number


def test_texts_and_dates_are_normalised() -> None:
    """Only spaces and asterisks are removed; a date gets the ISO form, and other text is
    unchanged.
    """
    assert PREPROCESS["norm_str"](" **A b**\tC\u00a0d ") == "ab\tc\u00a0d"
    assert PREPROCESS["norm_date"]("March 5, 2021") == "2021-03-05"
    assert PREPROCESS["norm_date"]("2021年3月5日") == "2021-03-05"
    assert PREPROCESS["norm_date"]("May 2020") == "2020-05-01"
    assert PREPROCESS["norm_date"]("no such day") == "no such day"


@pytest.mark.parametrize(
    ("metric", "response", "target", "criterion", "scores"),
    [
        ("exact_match", "Ab", "aB", None, (1, 1)),
        ("exact_match", "a b", "ab", None, (0, 1)),
        ("exact_match", "1701.0", "1701", None, (0, 0)),
        ("number_near", "105", "100", 0.05, (1, 1)),  # the distance is a share of the gold value
        ("number_near", "100", "105.3", 0.05, (0, 0)),
        ("number_near", "-95", "-100", 0.05, (1, 1)),
        ("number_near", "12%", "0.12", 0.0, (1, 1)),
        ("number_near", "12", "12%", 0.05, (0, 0)),
        ("number_near", "7", "7.0", 0.0, (1, 1)),  # equal, as 0 <= 7 * 0
        ("number_near", "7.0001", "7", 0.0, (0, 0)),
        ("number_near", "0", "0", 0.05, (1, 1)),
        ("number_near", "0.0001", "0", 0.05, (0, 0)),
        ("number_near", "NULL", "NULL", 0.05, (1, 1)),
        ("number_near", "NULL", "5", 0.05, (0, 0)),
        ("number_near", "nan", "nan", 0.05, (0, 1)),  # it is a number to Python, and near none
        ("number_near", "sold out", "none", 0.05, (0, 0)),
        ("in_match", "b", "abc", None, (1, 1)),
        ("in_match", "abc", "b", None, (0, 0)),
        ("in_match", "", "b", None, (1, 0)),
        # "a.org." is another host
        ("url_match", "http://a.org/x?y", "see https://a.org.", None, (0, 0)),
        ("url_match", "http://a.org/x", "https://a.org", None, (1, 1)),
        ("url_match", "http://A.org", "http://a.org", None, (0, 1)),
        ("url_match", "http://www.a.org", "http://a.org", None, (0, 1)),
        ("url_match", "http://a.org:80", "http://a.org", None, (0, 0)),
        # "b.org,"
        ("url_match", "http://a.org http://b.org", "http://b.org, http://a.org", None, (0, 0)),
        ("url_match", "http://a.org http://b.org", "http://b.org http://a.org", None, (1, 1)),
        ("url_match", "apples", "pears", None, (1, 0)),  # neither has a host
        ("url_match", "apples", "http://a.org", None, (0, 0)),
        ("date_near", "2021-03-05", "2021-04-05", None, (1, 1)),  # 31 days
        ("date_near", "2021-03-05", "2021-04-06", None, (0, 0)),  # 32
        ("date_near", "2021-04-05 12:00", "2021-03-05", None, (1, 1)),  # 31.5 days are 31
        # -31.5 are -32, when rounded down
        ("date_near", "2021-03-05", "2021-04-05 12:00", None, (0, 1)),
        ("date_near", "no day", "neither one", None, (1, 0)),
        ("date_near", "no day", "2021-03-05", None, (0, 0)),
        ("date_near", "x" * 101, "y" * 101, None, (1, 0)),
    ],
)
def test_metrics_score_cells(
    metric: Metric, response: str, target: str, criterion: Criterion, scores: tuple[int, int]
) -> None:
    """Official metrics get normalised cells, strict metrics the original ones."""
    official = official_score(metric, response, target, criterion)
    assert (official, strict_same(metric, response, target, criterion)) == scores


@pytest.mark.parametrize(
    ("response", "target", "same"),
    [
        ("2020", "2020", True),
        ("2020", "2020年", True),
        ("2020", "2021", False),
        ("2020", "5 May 2020", True),
        ("31 December 2019", "2020", False),
        ("2020", "no year", False),
    ],
)
def test_a_bare_year_is_no_date(response: str, target: str, same: bool) -> None:
    """It is not read as a day of the current month."""
    assert strict_same("date_near", response, target, None) is same


def test_errors_of_the_original_score_zero() -> None:
    """They are an invalid host, and dates of which one has a time zone: the whole response scores
    0.
    """
    with pytest.raises(ValueError, match="IPv6"):
        official_score("url_match", "http://[x", "http://a.org", None)
    with pytest.raises(TypeError, match="offset"):
        official_score("date_near", "2021-03-05T00:00:00+00:00", "2021-03-05", None)


@given(st.text(st.sampled_from("0123456789.,%+-eE ax"), max_size=30), st.floats(0, 1))
def test_each_text_equals_itself(text: str, criterion: float) -> None:
    """This holds for every strict rule."""
    for metric in ("exact_match", "number_near", "url_match", "llm_judge"):
        assert strict_same(metric, text, text, criterion)


@pytest.mark.parametrize(
    "piece", ["1", "1.", "-", ".", "http://", "https://a.org ", "1,", "%", " ", "<br>", "年"]
)
def test_rules_end_quickly_on_a_long_text(piece: str) -> None:
    begun = time.process_time()
    text = piece * (200_000 // len(piece))
    metrics: tuple[Metric, ...] = (
        "exact_match",
        "number_near",
        "date_near",
        "url_match",
        "in_match",
    )
    for metric in metrics:
        prepared = PREPROCESS["extract_number"](PREPROCESS["norm_str"](text))
        assert official_score(metric, prepared, "5", 0.05) in (0.0, 1.0)
        assert strict_same(metric, text, text + "b", 0.05) in (False, True)
    assert time.process_time() - begun < 4
