"""The gate errs no more often than stated, no matter how often it looks, and decides where the
difference is clear.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.versions import GateRule
from router.versions.book import EvidenceSource, Judgement, Pair, Source
from router.versions.gate import (
    MAX_OF_ONE,
    STAKES,
    GateVerdict,
    balanced,
    decide,
    figures_of,
    on_held_out,
    within_share,
)

RULE = GateRule(margin=0.1, error=0.05, max_tokens_ratio=2.0, max_trials=10_000)
STRICT = GateRule(margin=0.1, error=0.05, max_tokens_ratio=1.0, max_trials=10_000)
"""A rule under which versions that spend the same are at the edge of the allowed ratio."""
STREAMS = 1000
LENGTH = 500
Array = np.ndarray[Any, np.dtype[np.float64]]


def pair(
    right: bool | None = True,
    active_right: bool = True,
    *,
    failed: bool = False,
    active_failed: bool = False,
    tokens: int = 100,
    active_tokens: int = 100,
    served: bool = False,
    source: Source = "operator",
    tenant: str = "",
    at: float = 0.0,
) -> Pair:
    """Return a pair in which both versions did the same, apart from the arguments. With `right`
    None, it is not judged.
    """
    judgement = None if right is None else Judgement(right, active_right, source, tenant, at)
    return Pair(failed, active_failed, tokens, active_tokens, served, judgement)


def alternating(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs, served by either version in turn."""
    return [
        msgspec.structs.replace(pair, candidate_served=bool(place % 2))
        for place, pair in enumerate(pairs)
    ]


def paths(gains: Array) -> Array:
    """Return the evidence after each pair of each stream (streams, pairs), computed
    independently of the gate.
    """
    wealth = [np.exp(np.cumsum(np.log1p(stake * gains), axis=1)) for stake in STAKES]
    return np.asarray(np.mean(wealth, axis=0))


def drawn(draw: np.random.Generator, better: float, worse: float) -> Array:
    """Draw streams of differences: 1 and -1 with these probabilities, else 0."""
    drawn = draw.random((STREAMS, LENGTH))
    return np.asarray((drawn < better).astype(float) - (drawn > 1 - worse).astype(float))


def saved(draw: np.random.Generator) -> Array:
    """Draw streams of differences in tokens between versions that spend the same."""
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
def test_the_gate_s_evidence_equals_that_of_the_simulations(pairs: list[Pair]) -> None:
    """The simulations below therefore hold for the gate."""
    judged = [
        compared.judgement
        for compared in pairs
        if compared.judgement and not compared.candidate_failed and not compared.active_failed
    ]
    limits_and_tokens = [
        (2.0 * compared.active_tokens, compared.candidate_tokens) for compared in pairs
    ]
    differences: dict[str, tuple[list[float], float]] = {
        "correctness": ([compared.sign for compared in judged if compared.sign], 0.1),
        "failures": (
            [compared.active_failed - compared.candidate_failed for compared in pairs],
            0.05,
        ),
        "tokens": (
            [
                (limit - tokens) / (limit + tokens) if limit + tokens else 0
                for limit, tokens in limits_and_tokens
            ],
            0.0,
        ),
    }
    for evidence in figures_of(pairs, RULE, "shadow").evidence:
        values, margin = differences[evidence.measure]
        ahead = paths(np.array([[0.0, *(value + margin for value in values)]]))
        behind = paths(np.array([[0.0, *(-value for value in values)]]))
        assert evidence.in_favour == pytest.approx(ahead[0, -1])
        assert evidence.against == pytest.approx(behind[0, -1])


@pytest.mark.parametrize("differing", [0.0, 0.02, 0.1, 0.4])
def test_equal_versions_are_not_rolled_back(differing: float) -> None:
    """Holds for 1,000 streams of 500 pairs, reviewed after every pair, over all three measures
    together.
    """
    draw = np.random.default_rng(7)
    against = [paths(-drawn(draw, differing / 2, differing / 2)) for _ in range(2)]
    against.append(paths(-saved(draw)))
    rolled_back = np.any([evidence >= 3 / RULE.error for evidence in against], axis=(0, 2))
    assert rolled_back.mean() <= RULE.error


@pytest.mark.parametrize("differing", [0.05, 0.1, 0.4])
@pytest.mark.parametrize("measure", ["correctness", "failures", "tokens"])
def test_a_worse_version_is_not_promoted(measure: str, differing: float) -> None:
    """One measure is worse by just the margin, and the version is the better one in both others."""
    draw = np.random.default_rng(8)
    margin = {"correctness": 0.1, "failures": 0.05, "tokens": 0.0}[measure]
    if measure == "correctness":  # of decisive pairs alone
        gains = np.where(draw.random((STREAMS, LENGTH)) < 0.5 - margin / 2, 1, -1) + margin
    else:
        gains = (
            saved(draw)
            if measure == "tokens"
            else drawn(draw, (differing - 0.05) / 2, (differing + 0.05) / 2) + 0.05
        )
    promoted = np.any(paths(gains) >= 1 / RULE.error, axis=1)
    assert promoted.mean() <= RULE.error


def test_clearly_different_streams_are_decided() -> None:
    """Otherwise the two tests above would prove nothing."""
    draw = np.random.default_rng(9)
    assert np.any(paths(-drawn(draw, 0.05, 0.25)) >= 3 / RULE.error, axis=1).mean() > 0.9
    assert np.any(paths(drawn(draw, 0.03, 0.03) + 0.05) >= 1 / RULE.error, axis=1).mean() > 0.9


def pairs_until_decided(pairs: list[Pair], rule: GateRule = RULE) -> tuple[GateVerdict, int]:
    """Return the gate's first verdict other than `wait`, and the number of pairs before it."""
    for count in itertools.count(1):
        verdict, _, _ = decide(pairs[:count], rule, "shadow")
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
        ([pair(None, active_failed=True, tokens=50)], "promote"),
    ],
)
def test_a_clear_difference_is_decided_within_some_tens_of_pairs(
    pairs: list[Pair], verdict: GateVerdict
) -> None:
    """A version without any failure takes the most pairs."""
    first_verdict, count = pairs_until_decided(pairs * 100)
    assert first_verdict == verdict
    assert count < (40 if verdict == "roll_back" else 100)


def test_a_canary_without_judgements_is_not_promoted() -> None:
    """Without feedback the correctness of answers is unknown."""
    verdict, figures, reason = decide(alternating([pair(None, tokens=10)] * 1000), RULE, "canary")
    assert (verdict, figures.judged) == ("wait", 0)
    assert "correctness (evidence 1 of 20): no run has been judged" in reason
    assert decide(alternating([pair(None, tokens=10)] * 10_000), RULE, "canary")[0] == "stop"


def test_a_shadow_without_judgements_is_promoted_by_other_measures() -> None:
    """The reason says so. With a judge, correctness decides."""
    verdict, _, reason = decide([pair(None, tokens=10)] * 200, RULE, "shadow")
    assert (verdict, "only distillation.judge can judge a shadow's answers" in reason) == (
        "promote",
        True,
    )
    assert reason.startswith(
        "Not worse than the active version in failures and tokens: no answer has been judged"
    )
    judged = [pair(False, source="judge"), pair(True, False, source="judge")] * 100
    assert decide(judged, RULE, "shadow")[0] == "wait"


def test_the_margin_allows_for_some_loss() -> None:
    """A version that is a little worse is promoted with a wide margin only."""
    pairs = ([pair(False)] * 7 + [pair(True, False)] * 5 + [pair()] * 5) * 20
    assert pairs_until_decided(pairs, GateRule(0.5, 0.05, 2.0, 10_000))[0] == "promote"
    assert decide(pairs, GateRule(0.01, 0.05, 2.0, 10_000), "shadow")[0] == "wait"


def test_pairs_that_both_have_right_or_wrong_are_no_evidence() -> None:
    _, decisive_figures, _ = decide([pair(False), pair(True, False)] * 30, RULE, "shadow")
    _, all_figures, _ = decide(
        [pair(False), pair(True, False), pair(), pair(False, False)] * 30, RULE, "shadow"
    )
    assert decisive_figures.evidence[0] == all_figures.evidence[0]


def test_a_canary_s_pairs_count_in_equal_numbers() -> None:
    """The first pairs of each server count, judged or not."""
    pairs = [pair(None, served=True)] * 3 + [pair(served=True)] * 4 + [pair(False)] * 5
    assert (
        balanced(pairs)
        == [pair(None, served=True)] * 3 + [pair(served=True)] * 2 + [pair(False)] * 5
    )
    _, figures, reason = decide(pairs, RULE, "canary")
    assert (figures.trials, figures.judged) == (10, 7)
    assert "2 more trials count later, when the other version has served as many" in reason
    assert decide([pair(True, False, served=True)] * 500, RULE, "canary")[1].trials == 0


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 200)), st.integers(0, 200))
def test_no_tenant_has_more_than_its_share(counts: dict[str, int], operators_count: int) -> None:
    """Pairs without a tenant are not limited."""
    tenants = [
        tenant for tenant, count in {**counts, "": operators_count}.items() for _ in range(count)
    ]
    counted = Counter(within_share(tenants, str))
    assert counted[""] == operators_count
    assert all(counted[tenant] <= MAX_OF_ONE * counted.total() for tenant in counts)
    if len(set(counts.values())) == 1 and len(counts) >= 1 / MAX_OF_ONE:
        assert counted.total() == len(tenants)


def test_a_single_client_tenant_decides_nothing() -> None:
    """It does not tip undecided evidence either, for or against."""
    of_one_tenant = [
        pair(True, False, source="client", tenant="acme", at=float(at)) for at in range(500)
    ]
    verdict, figures, reason = decide(alternating(of_one_tenant), RULE, "canary")
    assert (verdict, figures.evidence[0].in_favour) == ("wait", 1.0)
    assert figures.sources == (EvidenceSource("client", "acme", 500, 0),)
    assert "client acme 0 of 500" in reason
    undecided = [pair(False), pair(True, False)] * 100
    without_tenant = decide(undecided, RULE, "shadow")[1].evidence[0]
    with_tenant = decide([*undecided, *of_one_tenant], RULE, "shadow")[1].evidence[0]
    assert with_tenant.in_favour <= without_tenant.in_favour
    assert with_tenant.against <= without_tenant.against


def test_several_tenants_that_agree_decide() -> None:
    """The reason names the source of the evidence."""
    pairs = [
        pair(True, False, source="client", tenant=f"t{at % 5}", at=float(at)) for at in range(100)
    ]
    verdict, figures, reason = decide(alternating(pairs), RULE, "canary")
    assert (verdict, len(figures.sources)) == ("promote", 5)
    assert "client t0 20, client t1 20" in reason


def test_a_version_that_is_hardly_ever_right_is_not_promoted() -> None:
    """Holds regardless of the active version's correctness."""
    rule = GateRule(0.1, 0.05, 2.0, 10_000, min_right=0.2)
    pairs = alternating(([pair(False, False)] * 8 + [pair(True, False)]) * 60)
    assert decide(pairs, RULE, "canary")[0] == "promote"
    verdict, _, reason = decide(pairs, rule, "canary")
    assert (verdict, "whether at least 20% of its answers are right" in reason) == ("wait", True)


@pytest.mark.parametrize(
    ("wins", "losses", "both", "verdict"),
    [
        (30, 10, 50, "promote"),
        (50, 50, 100, "stop"),
        (10, 30, 50, "stop"),
        (0, 0, 100, "stop"),
        (12, 0, 0, "promote"),
        (600, 600, 5000, "promote"),
        (30, 10, 0, "promote"),
    ],
)
def test_held_out_questions_are_decided_by_an_exact_test(
    wins: int, losses: int, both: int, verdict: GateVerdict
) -> None:
    """Only questions that one version alone has right count."""
    right = [(True, False)] * wins + [(False, True)] * losses + [(True, True)] * both
    decision, reason = on_held_out(right, RULE)
    assert decision == verdict
    assert f"{wins} that only the candidate has right, {losses} that only the active" in reason


def test_held_out_questions_have_a_floor_and_a_bounded_error() -> None:
    """The floor is a tenth right. Of candidates at the margin, at most the stated share passes."""
    right = [(True, False)] * 15 + [(False, False)] * 185
    assert on_held_out(right, RULE)[0] == "promote"
    assert on_held_out(right, GateRule(0.1, 0.05, 2.0, 10_000, min_right=0.1))[0] == "stop"
    assert on_held_out([], RULE)[0] == "stop"
    wins = np.random.default_rng(1).binomial(100, 0.45, 400)
    passed = [
        on_held_out(
            [(True, False)] * wins_of_candidate + [(False, True)] * (100 - wins_of_candidate), RULE
        )[0]
        for wins_of_candidate in wins
    ]
    assert passed.count("promote") / 400 <= RULE.error


def test_the_ratio_of_tokens_decides_on_their_spending() -> None:
    """Equal spending is too much for a ratio of a half, and little for a ratio of two."""
    pairs = [pair(None)] * 300
    assert decide(pairs, RULE, "shadow")[0] == "promote"
    assert decide(pairs, GateRule(0.1, 0.05, 0.5, 10_000), "shadow")[0] == "roll_back"
    assert decide(pairs, STRICT, "shadow")[0] == "wait"


def test_a_worse_version_within_the_margin_is_rolled_back() -> None:
    """Holds where there is enough evidence for both."""
    verdict, figures, reason = decide(
        ([pair(False)] * 53 + [pair(True, False)] * 47) * 200,
        GateRule(0.5, 0.05, 2.0, 10**5),
        "shadow",
    )
    assert min(evidence.in_favour for evidence in figures.evidence) > 20
    assert (
        verdict,
        reason.startswith("Worse than the active version in correctness (evidence "),
    ) == (
        "roll_back",
        True,
    )


def test_figures_count_pairs_by_outcome() -> None:
    """The reason contains them."""
    pairs = [
        pair(False, tokens=150),
        pair(None, failed=True),
        pair(active_failed=True, active_tokens=90),
    ]
    figures = figures_of(pairs, None, "shadow")
    assert (figures.trials, figures.judged, figures.right, figures.active_right) == (3, 2, 1, 2)
    assert (figures.failed, figures.active_failed, figures.tokens, figures.active_tokens) == (
        1,
        1,
        350,
        290,
    )
    assert figures.evidence == ()
    _, _, reason = decide(pairs, RULE, "shadow")
    assert reason.endswith(
        "right in 1 of 2 judged runs (active: 2), failed in 1 of 3 (active: 1), 350 "
        "executor tokens (active: 290); "
        "pairs in which only one version is right: operator 1."
    )


def test_evidence_of_many_pairs_does_not_overflow() -> None:
    """Holds for 100,000 pairs, good or bad."""
    better = figures_of([pair(True, False, tokens=0)] * 100_000, RULE, "shadow")
    for evidence in better.evidence:
        assert 1e200 < evidence.in_favour < float("inf")
        assert 0 <= evidence.against <= 1
    assert (
        decide([pair(False, tokens=0, active_tokens=0)] * 100_000, RULE, "shadow")[0] == "roll_back"
    )


def test_the_gate_waits_without_pairs() -> None:
    verdict, figures, _ = decide([], RULE, "canary")
    assert verdict == "wait"
    assert all(
        (evidence.in_favour, evidence.against) == (1.0, 1.0) for evidence in figures.evidence
    )
