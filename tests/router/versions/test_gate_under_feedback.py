"""The gate errs no more often than it says, whoever gives feedback on what, and however late; nor
under attack.

Few repetitions of the simulation; seeds are fixed.
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
MOST = 5
"""Of 21 cases, by mistake: more of them has a probability of 0.0003 at an error of 0.05."""


@pytest.mark.parametrize("kind", KINDS)
def test_feedback_as_it_comes(kind: str) -> None:
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
    assert ends.count(("worse", "promote")) <= MOST
    assert ends.count(("equal", "roll_back")) <= MOST


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("one tenant")])
def test_a_better_version_is_never_far_from_passing(kind: str) -> None:
    """Without which the above would say nothing: one of 25 points more passes where much is
    told.
    """
    draw = np.random.default_rng(6)
    ends = [simulate(draw, (0.75, 0.5), KINDS[kind], trials=TRIALS)[0] for _ in range(5)]
    assert ends.count("roll_back") == 0
    assert ends.count("promote") >= (1 if "tenth" in kind else 4)


@pytest.mark.parametrize("kind", ATTACKS)
def test_attacks(kind: str) -> None:
    """Of a version at the margin, hardly any comes into service, whatever a twentieth of the
    traffic does.
    """
    draw = np.random.default_rng(7)
    accuracies = at_the_margin(0.5, RULE.margin), 0.5
    honest = KINDS["a tenth, at random"]
    ends = [
        simulate(draw, accuracies, honest, trials=TRIALS, hostile=ATTACKS[kind])[1]
        for _ in range(20)
    ]
    assert ends.count("promote") <= MOST


@pytest.mark.parametrize(("accuracy", "points"), [(0.3, 4.0), (0.5, 5.0), (0.8, 3.4)])
def test_the_margin_in_points(accuracy: float, points: float) -> None:
    """Of versions whose errors are independent, as the manual says; and of those of the
    simulation.
    """
    draw = np.random.default_rng(8)
    count = 400_000
    margin = RULE.margin
    for spread in (0.0, 0.2):
        odds = (1 - margin) / (1 + margin) * accuracy / (1 - accuracy)
        candidate = odds / (1 + odds) if spread == 0 else at_the_margin(accuracy, margin)
        harder = np.where(draw.random(count) < 0.5, spread, -spread)
        one = draw.random(count) < candidate - harder
        other = draw.random(count) < accuracy - harder
        wins = (one & ~other).sum()
        losses = (other & ~one).sum()
        assert (losses - wins) / (losses + wins) == pytest.approx(margin, abs=0.01)
        if spread == 0:
            assert 100 * (accuracy - candidate) == pytest.approx(points, abs=0.05)


def test_bounds() -> None:
    """Those of Clopper and Pearson, one-sided."""
    assert upper_bound(0, 1000) == pytest.approx(1 - 0.05 ** (1 / 1000), abs=1e-5)
    assert upper_bound(37, 1000) == pytest.approx(0.0485, abs=5e-4)
    assert upper_bound(3, 3) == 1.0
