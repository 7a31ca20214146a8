"""When a version on trial goes further, and when it goes out of service: tests on paired runs that stay valid however
often one looks.

Each test bets on differences between the two versions, one a pair, in [-1, 1], positive where the candidate did better.
The product of 1 + λ·gain over all pairs, and so the mean of these over a fixed grid of stakes λ, is a test martingale
while the null hypothesis holds: its expectation is 1 at most, and the probability that it ever reaches 1/α is α at most
(Ville's inequality). See Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024). The
null hypotheses, of the mean difference given all pairs before:

    in favour   the mean is -margin or less: the candidate is worse by the margin or more
    against     the mean is 0 or more: the candidate is not worse
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from router.versions.book import GateEvidence, Judgement, Pair, TrialFigures

STAKES = (0.1, 0.3, 0.6, 0.99)
"""Small ones win where the versions differ often and either way, large ones where they hardly differ. Below 1, so that
no pair loses everything.
"""
_MEASURES = 3
_MOST_LOG = 500.0
"""Evidence is cut at e to this, which every format can hold."""
GateVerdict = Literal["promote", "wait", "stop", "roll_back"]


@dataclass(frozen=True, slots=True)
class GateRule:
    """Conditions that a candidate has to meet."""

    margin: float
    """How much worse it may be than the active version, as a share of runs: in right answers, and in failures."""
    error: float
    """In each stage, the probability of promoting a version that is worse by the margin or more in any measure is this
    at most; and so is that of rolling back one that is worse in none.
    """
    most_tokens: float
    """Its tokens as a multiple of the active version's, at most; more is worse."""
    most_trials: int
    """Of a stage; where there is no decision by then, the trial is over, as trials cost tokens."""


def decide(pairs: Sequence[Pair], rule: GateRule) -> tuple[GateVerdict, TrialFigures, str]:
    """Decide on a candidate with these pairs: the decision, the figures, and why, in words.

    It is promoted when the evidence in favour has reached 1/error on all three measures: all must be in error for it to
    be a wrong one. It is rolled back when the evidence against it has reached 3/error on any of them: the share of each
    in the error is a third (Bonferroni). Where both hold, it is worse, if within the margin, and rolled back.
    Where neither does after `most_trials`, its trial is over.
    """
    figures, enough, too_much = figures_of(pairs, rule), 1 / rule.error, _MEASURES / rule.error
    if worse := [each for each in figures.evidence if each.against >= too_much]:
        said = ", ".join(f"{each.measure} (evidence {each.against:.3g} of {too_much:.3g})" for each in worse)
        return "roll_back", figures, f"Worse than the active version in {said}: {_summary(figures)}."
    if open_ := [each for each in figures.evidence if each.in_favour < enough]:
        said = ", ".join(f"{each.measure} (evidence {each.in_favour:.3g} of {enough:.3g})" for each in open_)
        if len(pairs) >= rule.most_trials:
            return "stop", figures, f"Not decided in {rule.most_trials:,} trials on {said}: {_summary(figures)}."
        return "wait", figures, f"Not decided yet on {said}: {_summary(figures)}."
    return "promote", figures, f"Not worse than the active version by more than {rule.margin:g}: {_summary(figures)}."


def figures_of(pairs: Sequence[Pair], rule: GateRule | None) -> TrialFigures:
    """Sums over pairs, with the evidence on each measure; without evidence where there is no rule.

    Correctness is compared over judged pairs: candidate right less active right. Where nobody knows of one of the two
    answers, it is the least that this can be, as evidence in favour, and the most, as evidence against. Failures over
    all: active failed less candidate failed. Tokens over all: with k the most that is allowed,
    (k·active - candidate) / (k·active + candidate), 0 where both spent nothing, and without a margin.
    """
    judged = [pair.judgement for pair in pairs if pair.judgement is not None]
    evidence: tuple[GateEvidence, ...] = ()
    if rule is not None:
        evidence = (
            _correctness(judged, rule.margin),
            _evidence("failures", [pair.active_failed - pair.candidate_failed for pair in pairs], rule.margin),
            _evidence("tokens", [_saved(pair, rule.most_tokens) for pair in pairs], 0.0),
        )
    return TrialFigures(
        trials=len(pairs),
        judged=len(judged),
        right=sum(each.candidate_right is True for each in judged),
        active_right=sum(each.active_right is True for each in judged),
        failed=sum(pair.candidate_failed for pair in pairs),
        active_failed=sum(pair.active_failed for pair in pairs),
        tokens=sum(pair.candidate_tokens for pair in pairs),
        active_tokens=sum(pair.active_tokens for pair in pairs),
        evidence=evidence,
    )


def _saved(pair: Pair, most_tokens: float) -> float:
    allowed = most_tokens * pair.active_tokens
    total = allowed + pair.candidate_tokens
    return (allowed - pair.candidate_tokens) / total if total else 0.0


def _correctness(judged: Sequence[Judgement], margin: float) -> GateEvidence:
    least = [(each.candidate_right is True) - (each.active_right is not False) for each in judged]
    most = [(each.candidate_right is not False) - (each.active_right is True) for each in judged]
    return _evidence("correctness", least, margin, most)


def _evidence(
    measure: str, differences: Sequence[float], margin: float, at_most: Sequence[float] | None = None
) -> GateEvidence:
    """`at_most`: what the differences may be; then `differences` are what they are at least."""
    against = differences if at_most is None else at_most
    return GateEvidence(measure, _won(each + margin for each in differences), _won(-each for each in against))


def _won(differences: Iterable[float]) -> float:
    """The mean over all stakes of what each has become by these gains."""
    gains = Counter(differences)  # the order of the pairs makes no difference to a product
    logs = [math.fsum(times * math.log1p(stake * gain) for gain, times in gains.items()) for stake in STAKES]
    most = max(logs)
    mean = most + math.log(sum(math.exp(log - most) for log in logs) / len(STAKES))
    return math.exp(min(mean, _MOST_LOG))


def _summary(figures: TrialFigures) -> str:
    runs, judged = figures.trials, figures.judged
    right = f"right in {figures.right} of {judged} judged runs (active: {figures.active_right})"
    if not judged:
        right = "no run has been judged by feedback"
    failed = f"failed in {figures.failed} of {runs} (active: {figures.active_failed})"
    return f"{right}, {failed}, {figures.tokens:,} executor tokens (active: {figures.active_tokens:,})"
