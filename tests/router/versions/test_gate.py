"""The gate errs no more often than it says, however often one looks, and decides where the difference is clear."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.versions import GateRule
from router.versions.book import Judgement, Pair
from router.versions.gate import STAKES, GateVerdict, decide, figures_of

RULE = GateRule(margin=0.05, error=0.05, most_tokens=2.0, most_trials=10_000)
STRICT = GateRule(margin=0.05, error=0.05, most_tokens=1.0, most_trials=10_000)
"""With it, versions that spend the same are at the edge of what is allowed."""
STREAMS, LENGTH = 1000, 500
Array = np.ndarray[Any, np.dtype[np.float64]]


def pair(
    right: bool | None = True,
    active_right: bool = True,
    *,
    failed: bool = False,
    active_failed: bool = False,
    tokens: int = 100,
    active_tokens: int = 100,
) -> Pair:
    """A run in which both did the same, but for what is said. `right`: None where nobody knows."""
    judgement = None if right is None else Judgement(right, active_right)
    return Pair(failed, active_failed, tokens, active_tokens, judgement)


def paths(gains: Array) -> Array:
    """The evidence after each pair of each stream, (streams, pairs): as the gate's, worked out otherwise."""
    wealth = [np.exp(np.cumsum(np.log1p(stake * gains), axis=1)) for stake in STAKES]
    return np.asarray(np.mean(wealth, axis=0))


def drawn(draw: np.random.Generator, better: float, worse: float) -> Array:
    """Differences of streams of pairs: 1 and -1 with these probabilities, else 0."""
    drawn = draw.random((STREAMS, LENGTH))
    return np.asarray((drawn < better).astype(float) - (drawn > 1 - worse).astype(float))


def saved(draw: np.random.Generator) -> Array:
    """Differences in tokens of streams of pairs of versions that spend the same."""
    tokens = draw.integers(50, 400, (2, STREAMS, LENGTH)).astype(float)
    return np.asarray((tokens[0] - tokens[1]) / tokens.sum(axis=0))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.builds(
            pair,
            st.sampled_from([None, False, True]),
            st.booleans(),
            failed=st.booleans(),
            active_failed=st.booleans(),
            tokens=st.integers(0, 500),
            active_tokens=st.integers(0, 500),
        ),
        max_size=60,
    )
)
def test_evidence_is_that_of_the_simulations(pairs: list[Pair]) -> None:
    """What the tests below show of paths, they show of the gate."""
    judged = [each.judgement for each in pairs if each.judgement]
    spent = [(2.0 * each.active_tokens, each.candidate_tokens) for each in pairs]
    differences: dict[str, tuple[list[float], float]] = {
        "correctness": ([bool(each.candidate_right) - bool(each.active_right) for each in judged], 0.05),
        "failures": ([each.active_failed - each.candidate_failed for each in pairs], 0.05),
        "tokens": ([(most - tokens) / (most + tokens) if most + tokens else 0 for most, tokens in spent], 0.0),
    }
    for evidence in figures_of(pairs, RULE).evidence:
        values, margin = differences[evidence.measure]
        ahead = paths(np.array([[0.0, *(value + margin for value in values)]]))
        behind = paths(np.array([[0.0, *(-value for value in values)]]))
        assert evidence.in_favour == pytest.approx(ahead[0, -1])
        assert evidence.against == pytest.approx(behind[0, -1])


@pytest.mark.parametrize("differing", [0.0, 0.02, 0.1, 0.4])
def test_equal_versions_are_not_rolled_back(differing: float) -> None:
    """Of 1,000 streams of 500 pairs, looked at after every pair, at most the stated share, over all three measures."""
    draw = np.random.default_rng(7)
    against = [paths(-drawn(draw, differing / 2, differing / 2)) for _ in range(2)]
    against.append(paths(-saved(draw)))
    wrong = np.any([each >= 3 / RULE.error for each in against], axis=(0, 2))
    assert wrong.mean() <= RULE.error


@pytest.mark.parametrize("differing", [0.05, 0.1, 0.4])
@pytest.mark.parametrize("measure", ["correctness", "failures", "tokens"])
def test_a_worse_version_is_not_promoted(measure: str, differing: float) -> None:
    """The same of one that is worse by just the margin in one measure, and the better version in both others."""
    draw = np.random.default_rng(8)
    gains = saved(draw) if measure == "tokens" else drawn(draw, (differing - 0.05) / 2, (differing + 0.05) / 2) + 0.05
    wrong = np.any(paths(gains) >= 1 / RULE.error, axis=1)
    assert wrong.mean() <= RULE.error


def test_the_tests_have_power() -> None:
    """Without which the two above would say nothing: nearly all of such streams are decided, and rightly."""
    draw = np.random.default_rng(9)
    assert np.any(paths(-drawn(draw, 0.05, 0.25)) >= 3 / RULE.error, axis=1).mean() > 0.9
    assert np.any(paths(drawn(draw, 0.03, 0.03) + 0.05) >= 1 / RULE.error, axis=1).mean() > 0.9


def pairs_until_decided(pairs: list[Pair], rule: GateRule = RULE) -> tuple[GateVerdict, int]:
    """What the gate says first that is not `wait`, and after how many pairs."""
    for count in itertools.count(1):
        verdict, _, _ = decide(pairs[:count], rule)
        if verdict != "wait" or count >= len(pairs):
            return verdict, count
    raise AssertionError


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([pair(False)] * 2 + [pair()], "roll_back"),
        ([pair(failed=True), pair(), pair()], "roll_back"),
        ([pair(None, tokens=1000)], "roll_back"),
        ([pair(True, False)] * 2 + [pair()], "promote"),
        ([pair(active_failed=True, tokens=50)], "promote"),
    ],
)
def test_a_clear_difference_decides_soon(pairs: list[Pair], verdict: GateVerdict) -> None:
    """Within some tens of pairs; that nothing ever fails takes longest to be sure of."""
    decided, count = pairs_until_decided(pairs * 100)
    assert decided == verdict
    assert count < (40 if verdict == "roll_back" else 100)


def test_nobody_is_promoted_unjudged() -> None:
    """Without feedback it is not known whether answers are right, whatever else is known."""
    verdict, figures, reason = decide([pair(None, tokens=10)] * 1000, RULE)
    assert (verdict, figures.judged) == ("wait", 0)
    assert "correctness (evidence 1 of 20): no run has been judged" in reason
    assert decide([pair(None, tokens=10)] * 10_000, RULE)[0] == "stop"


def test_the_margin_allows_for_some_loss() -> None:
    """A version that is a little worse is promoted with a wide margin and not with a narrow one."""
    pairs = ([pair(False)] * 3 + [pair(True, False)] * 2 + [pair()] * 45) * 10
    assert pairs_until_decided(pairs, GateRule(0.2, 0.05, 2.0, 10_000))[0] == "promote"
    assert decide(pairs, GateRule(0.01, 0.05, 2.0, 10_000))[0] == "wait"


def test_what_it_may_spend() -> None:
    """The same tokens are too many where half of them are allowed, and few where twice as many are."""
    pairs = [pair()] * 300
    assert decide(pairs, RULE)[0] == "promote"
    assert decide(pairs, GateRule(0.05, 0.05, 0.5, 10_000))[0] == "roll_back"
    assert decide(pairs, STRICT)[0] == "wait"


def test_a_version_that_is_worse_is_not_promoted_for_being_so_within_the_margin() -> None:
    """Where there is enough evidence for both, it goes."""
    verdict, figures, reason = decide(([pair(False)] * 2 + [pair()] * 98) * 400, RULE)
    assert min(evidence.in_favour for evidence in figures.evidence) > 20
    assert (verdict, reason.startswith("Worse than the active version in correctness (evidence ")) == (
        "roll_back",
        True,
    )


def test_figures() -> None:
    """What is counted, and what is said of it."""
    pairs = [pair(False, tokens=150), pair(None, failed=True), pair(active_failed=True, active_tokens=90)]
    figures = figures_of(pairs, None)
    assert (figures.trials, figures.judged, figures.right, figures.active_right) == (3, 2, 1, 2)
    assert (figures.failed, figures.active_failed, figures.tokens, figures.active_tokens) == (1, 1, 350, 290)
    assert figures.evidence == ()
    _, _, reason = decide(pairs, RULE)
    assert reason.endswith(
        "right in 1 of 2 judged runs (active: 2), failed in 1 of 3 (active: 1), 350 executor tokens (active: 290)."
    )


def test_many_pairs() -> None:
    """100,000 of them are no different, however good or bad: nothing overflows, and nothing is lost."""
    better = figures_of([pair(True, False, tokens=0)] * 100_000, RULE)
    for evidence in better.evidence:
        assert 1e200 < evidence.in_favour < float("inf")
        assert 0 <= evidence.against <= 1
    assert decide([pair(False, tokens=0, active_tokens=0)] * 100_000, RULE)[0] == "roll_back"


def test_nothing_is_known_without_pairs() -> None:
    """Then one waits."""
    verdict, figures, _ = decide([], RULE)
    assert verdict == "wait"
    assert all((evidence.in_favour, evidence.against) == (1.0, 1.0) for evidence in figures.evidence)


@pytest.mark.parametrize(
    ("right", "wanted"),
    [((True, None), "promote"), ((None, False), "promote"), ((False, None), "wait"), ((None, True), "wait")],
)
def test_what_is_not_known_decides_nothing(right: tuple[bool | None, bool | None], wanted: GateVerdict) -> None:
    """Of two different answers one is known: whatever the other one was, a right candidate is not worse, and neither is
    one beside a wrong active version; a wrong candidate may be as good as the other or not, so nothing is decided.
    """
    pairs = [Pair(False, False, 100, 100, Judgement(*right))] * 500
    verdict, figures, _ = decide(pairs, RULE)
    assert (verdict, figures.judged) == (wanted, 500)
