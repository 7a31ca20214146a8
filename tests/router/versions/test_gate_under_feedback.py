"""The gate errs no more often than stated, for any kind of feedback, however late, and under
attack.

The simulation has few repetitions and fixed seeds.
"""

import numpy as np
import pytest

from tests.router.versions.simulation import (
    ATTACKS,
    KINDS,
    RULE,
    at_the_margin,
    simulate,
    upper_bound,
)

TIMES = 7
TRIALS = 500
MAX_ERRORS = 5
"""Max errors in 21 cases; more have a probability of 0.0003 at an error rate of 0.05."""


@pytest.mark.parametrize("kind", KINDS)
def test_realistic_feedback_misleads_the_gate_no_more_than_stated(kind: str) -> None:
    """A version at the margin does not pass, and an equal one is not rolled back."""
    draw = np.random.default_rng(5)
    ends = list[tuple[str, str]]()
    for accuracy in (0.3, 0.5, 0.8):
        for candidate in (at_the_margin(accuracy, RULE.margin), accuracy):
            ends += [
                (
                    "worse" if candidate < accuracy else "equal",
                    simulate(draw, (candidate, accuracy), KINDS[kind], trials=TRIALS)[0],
                )
                for _ in range(TIMES)
            ]
    assert ends.count(("worse", "promote")) <= MAX_ERRORS
    assert ends.count(("equal", "roll_back")) <= MAX_ERRORS


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("one tenant")])
def test_a_clearly_better_version_passes_with_enough_feedback(kind: str) -> None:
    """Otherwise the test above would prove nothing. The version is better by 25 points."""
    draw = np.random.default_rng(6)
    ends = [simulate(draw, (0.75, 0.5), KINDS[kind], trials=TRIALS)[0] for _ in range(5)]
    assert ends.count("roll_back") == 0
    assert ends.count("promote") >= (1 if "tenth" in kind else 4)


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_hardly_ever_promotes_a_version_at_the_margin(kind: str) -> None:
    """A twentieth of the traffic is hostile."""
    draw = np.random.default_rng(7)
    accuracies = at_the_margin(0.5, RULE.margin), 0.5
    honest = KINDS["a tenth, at random"]
    ends = [
        simulate(draw, accuracies, honest, trials=TRIALS, hostile=ATTACKS[kind])[1]
        for _ in range(20)
    ]
    assert ends.count("promote") <= MAX_ERRORS


@pytest.mark.parametrize(("accuracy", "points"), [(0.3, 4.0), (0.5, 5.0), (0.8, 3.4)])
def test_the_margin_in_points_is_as_documented(accuracy: float, points: float) -> None:
    """Holds for versions with independent errors, and for those of the simulation."""
    draw = np.random.default_rng(8)
    count = 400_000
    margin = RULE.margin
    for spread in (0.0, 0.2):
        odds = (1 - margin) / (1 + margin) * accuracy / (1 - accuracy)
        candidate = odds / (1 + odds) if spread == 0 else at_the_margin(accuracy, margin)
        harder = np.where(draw.random(count) < 0.5, spread, -spread)
        right_by_candidate = draw.random(count) < candidate - harder
        right_by_active = draw.random(count) < accuracy - harder
        wins = (right_by_candidate & ~right_by_active).sum()
        losses = (right_by_active & ~right_by_candidate).sum()
        assert (losses - wins) / (losses + wins) == pytest.approx(margin, abs=0.01)
        if spread == 0:
            assert 100 * (accuracy - candidate) == pytest.approx(points, abs=0.05)


def test_upper_bounds_are_those_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000), abs=1e-5)
    assert upper_bound(37, 1000) == pytest.approx(0.0485, abs=5e-4)
    assert upper_bound(3, 3) == 1.0
