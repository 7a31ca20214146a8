"""Scores of tables: cases worked out by hand, and equality with WideSearch's strict rules."""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.widesearch.scoring import CellJudge, scores_of
from router.table.scores import table_score
from router.trace.table import Column, Schema
from tests.benchmarks.widesearch.made_tasks import TEXT, fenced, number, task

SCHEMA = Schema((Column("name", key=True), Column("year", type="integer")))
GOLD = [("Ada", "1815"), ("Alan", "1912"), ("Grace", "1906")]


def test_a_missing_row_and_a_wrong_cell_lower_recall_and_precision() -> None:
    rows = [("ada", "1815"), ("Alan", "1,912"), ("Grace", "7"), ("Edsger", "1930")]
    score = table_score(SCHEMA, rows, GOLD)
    assert (score.row_precision, score.row_recall, score.row_f1) == (2 / 4, 2 / 3, 4 / 7)
    assert (score.item_precision, score.item_recall, score.item_f1) == (5 / 8, 5 / 6, 5 / 7)
    assert not score.success


def test_two_spellings_of_a_key_count_once() -> None:
    score = table_score(SCHEMA, [*GOLD, ("ADA", "1815"), ("ada.", "1815")], GOLD)
    assert score.item_recall == score.item_precision == 1
    assert score.success


def test_a_table_without_rows_is_no_success() -> None:
    score = table_score(SCHEMA, [], GOLD)
    assert (score.item_f1, score.row_f1, score.success) == (0, 0, False)
    assert not table_score(SCHEMA, [], []).success


_NAME = st.sampled_from(["Ada", "ada", "Alan", "Grace", "Edsger"])
_ROWS = st.lists(st.tuples(_NAME, st.sampled_from(["1815", "1912", "7"])), max_size=8)


@given(_ROWS, _ROWS.filter(bool))
@example([("Ada", "1815")], [("ada", "1815"), ("Ada", "1912"), ("ada", "7")])
def test_scores_equal_those_of_the_strict_rules_of_widesearch(
    rows: list[tuple[str, str]],
    gold: list[tuple[str, str]],
) -> None:
    made = task("name,year\n" + "\n".join(map(",".join, gold)), TEXT, number(0))
    lines = [f"|{name}|{year}|" for name, year in rows]
    response = fenced("|name|year|", "|---|---|", *lines)
    strict = asyncio.run(scores_of(made, response, CellJudge(), "strict"))
    score = table_score(SCHEMA, rows, gold)
    assert round(strict.item_f1, 9) == round(score.item_f1, 9)
    assert round(strict.row_f1, 9) == round(score.row_f1, 9)
    assert strict.success == score.success
