"""Means over questions of means over rollouts, their errors, and what beats what; each figure worked out by hand."""

import math

import pytest
from rich.console import Console
from rich.table import Table

from benchmarks.study.agreement import Agreement, agreement
from benchmarks.study.estimating import CellPilot, estimate_table, estimates, seconds_left, time_line
from benchmarks.study.pareto import pareto_front
from benchmarks.study.pricing import dollars, merged
from benchmarks.study.scores import METRICS, compared, macro, metrics_of, micro
from tests.benchmarks.study_rows import row, total

EM, JUDGE = METRICS["EM"], METRICS["Judge"]


def test_mean_at_k_is_clustered_by_question() -> None:
    """Questions of 1, 1/2 and 0: the mean is 1/2, and the rollouts do not make the error any smaller."""
    rights = [(number, right, rollout) for number, right in enumerate((4, 2, 0)) for rollout in range(4)]
    rows = [row(f"q{number}", rollout=rollout, exact_match=rollout < right) for number, right, rollout in rights]
    score = micro(rows, EM)
    assert (score.mean, score.questions) == (0.5, 3)
    assert score.error == pytest.approx(0.5 / math.sqrt(3))
    assert micro(rows[:1], EM).error is None


def test_micro_and_macro() -> None:
    """Three right questions of one data set and a wrong one of another are 3/4, or else 1/2."""
    rows = [row(f"q{number}") for number in range(3)] + [row("q9", dataset="books", exact_match=False)]
    assert (micro(rows, EM).mean, macro(rows, EM).mean) == (0.75, 0.5)
    assert macro(rows, EM).error is None, "of one question nobody knows it"
    four = [*rows, row("q10", dataset="books")]
    assert macro(four, EM).mean == 0.75
    assert macro(four, EM).error == pytest.approx(0.5 / 2)


def test_a_reply_that_cannot_be_read_is_in_the_denominator() -> None:
    """Accepted, not accepted, unreadable: one third. Without a judge there is no such score."""
    rows = [row("a"), row("b", accepted=False), row("c", accepted=None)]
    assert micro(rows, JUDGE).mean == pytest.approx(1 / 3)
    assert "Judge" not in metrics_of([row(judged=False, accepted=None)])


def test_agreement() -> None:
    """20 and 15 of 50 the same, 5 and 10 not: kappa is 0.4, as in the textbook; unreadable ones are apart."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    rows = [row(exact_match=matched, accepted=accepted) for matched, accepted in pairs] + [row(accepted=None)] * 3
    found = agreement([*rows, row(judged=False, accepted=None)])
    assert found == Agreement(20, 5, 10, 15, 3)
    assert found.kappa == pytest.approx(0.4)
    assert Agreement(9, 0, 0, 0, 0).kappa is None
    assert Agreement(0, 0, 0, 0, 2).kappa is None
    assert Agreement(5, 5, 0, 0, 0).kappa is None, "exact match is always right"
    assert Agreement(5, 0, 5, 0, 0).kappa is None, "the judge always accepts"


def test_compared_by_question() -> None:
    """Only questions that both have answered; the same answers differ by nothing at all."""
    rows = [row(f"q{number}", exact_match=number % 2 == 0) for number in range(20)]
    same = compared(rows, [*rows, row("other")], EM)
    assert same is not None
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    better = compared([row(f"q{number}") for number in range(20)], rows, EM)
    assert better is not None
    assert better.mean == 0.5
    assert 0 < better.low < 0.5 < better.high < 1
    assert compared(rows, [row("other")], EM) is None


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], []),
        ([(3, 1)], [0]),
        ([(1, 1), (2, 2), (3, 1.5), (4, 3)], [0, 1, 3]),
        ([(1, 1), (1, 2)], [1]),
        ([(1, 2), (2, 2)], [0]),
        ([(1, 2), (1, 2)], [0, 1]),
    ],
)
def test_the_pareto_front(points: list[tuple[float, float]], front: list[int]) -> None:
    """What nothing beats in one without losing in the other."""
    assert pareto_front(points) == front


def test_sums_of_roles() -> None:
    """What is unknown of one stays out of the sum; the cost is then unknown, and not lower."""
    one, other = total(tokens=100, cached_tokens=40), total(tokens=50, attempts_without_cost=1, nano_usd=None)
    (both,) = merged([one, other])
    assert (both.attempts, both.prompt_tokens, both.cached_tokens, both.nano_usd) == (2, 150, 40, 100_000)
    assert dollars([one]) == pytest.approx(1e-4)
    assert dollars([both]) is None


def test_an_estimate_goes_by_the_pilot() -> None:
    """Two rollouts took 100 tokens each, and three are left. Of a pair without any row nobody knows what it takes, nor
    of a role whose endpoint does not count; then the sum is not known either.
    """
    pilot = CellPilot()
    pilot.add(row("a"))
    pilot.add(row("b"))
    (known,) = estimates({"one": pilot, "done": CellPilot()}, {"one": 3, "done": 0})
    assert known.prompt_tokens == 300
    assert known.dollars == pytest.approx(3e-4)
    found = estimates({"one": pilot, "other": CellPilot()}, {"one": 3, "other": 4})
    assert (found[0], found[1].prompt_tokens, found[1].dollars) == (known, None, None)
    assert said(estimate_table(found, 7)) == ["unknown"] * 3
    assert said(estimate_table(found[:1], 3)) == ["300", "0", "0.0003"]
    uncounted = CellPilot()
    uncounted.add(row(spent=(total(tokens=0, attempts_without_usage=1, attempts_without_cost=1, nano_usd=None),)))
    (unknown,) = estimates({"one": uncounted}, {"one": 3})
    assert (unknown.prompt_tokens, unknown.completion_tokens, unknown.dollars) == (None, None, None)


def test_the_time_goes_by_the_pilot() -> None:
    """Of each cell; not known where a cell with work left had none. One rollout does not tell whether four at a time
    take as long each, or four times as long.
    """
    one, other = CellPilot(), CellPilot()
    for pilot, latency_s in ((one, 1.0), (one, 3.0), (one, None), (other, 10.0)):
        pilot.add(row(latency_s=latency_s))
    seconds = seconds_left({"one": one, "other": other}, {"one": 3, "other": 9, "done": 0}, 4)
    assert seconds == (24.5, 93)
    assert seconds_left({"one": one, "other": CellPilot()}, {"one": 3, "other": 1}, 4) is None
    assert "take about 0:00:24 to 0:01:33, " in time_line(seconds)
    assert "take about 0:00:24, " in time_line((24.1, 24.2))
    assert "take an unknown time, " in time_line(None)


def said(table: Table) -> list[str]:
    """Its last row: what everything takes."""
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    return [cell.strip() for cell in captured.get().splitlines()[-2].strip("│").split("│")][2:]
