"""The gate: decides whether a version on trial (the candidate) is promoted, rolled back, or tried
further.

The idea: the candidate and the active version both work on every run of the trial, which gives a
*pair* of results. The difference of the two results is a number in [-1, 1], positive if the
candidate did better. The gate bets on these differences: it starts with a capital of 1, and each
pair multiplies the capital by 1 + λ·gain, where λ is the stake. If the null hypothesis is true, the
bets lose on average, so the capital is unlikely to grow. The probability that it ever reaches 1/α
is at most α, however often it is checked. So a large capital is evidence against the null
hypothesis, and the gate decides as soon as the capital is large enough. The best stake is not known
in advance, so several stakes are used, and their mean capital counts.

In terms of statistics, the capital is a test martingale, and the bound is Ville's inequality. See
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024).

There are two null hypotheses about the mean difference, given all earlier pairs. Evidence in favour
of the candidate speaks against the first one, evidence against the candidate against the second:

    in favour   the mean is -margin or less: the candidate is worse by the margin or more
    against     the mean is 0 or more: the candidate is not worse

There are three measures: correctness, failures and tokens. Correctness uses only decisive pairs, in
which exactly one version is right; their difference is 1 or -1. No client's tenant may contribute
more than the share `MAX_OF_ONE` of them. `docs/gate.md` states the assumptions.
"""

import math
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Literal, TypeVar

from router.frozen import Frozen
from router.versions.book import (
    EvidenceSource,
    GateEvidence,
    Judgement,
    Pair,
    Stage,
    TrialFigures,
)

STAKES = (0.1, 0.3, 0.6, 0.99)
"""Stakes λ of the bets. Small stakes gain most if the versions differ often and in both directions,
large stakes if the versions hardly differ. All are below 1, so that no pair loses all capital.
"""
MAX_OF_ONE = 0.25
"""Max share of the decisive pairs that may come from one client's tenant."""
_MORE_FAILURES = 0.05
"""Margin for failures. A candidate whose share of failed runs exceeds the active version's share by
this much or more should not be promoted.
"""
_MEASURES = 3
_MAX_NAMED = 10
"""Max number of tenants named in the reason for a decision. `TrialFigures` contains all of them."""
_MAX_LOG = 500.0
"""Natural logarithm of the largest evidence; larger evidence is capped, to avoid overflows."""
Item = TypeVar("Item")
GateVerdict = Literal["promote", "wait", "stop", "roll_back"]


class GateRule(Frozen):
    """The conditions that a candidate must meet to be promoted, and the limits of a trial."""

    margin: float
    """A candidate that is worse than the active version by this much or more should not be
    promoted. The difference is measured on decisive pairs, in which exactly one version is right:
    (pairs in which the active version is right - pairs in which the candidate is right) / all
    decisive pairs.
    """
    error: float
    """Max probability of each wrong decision, per stage: to promote a version that is worse by the
    margin or more in some measure, and to roll back a version that is not worse in any measure.
    """
    max_tokens_ratio: float
    """Max executor tokens of the candidate, as a multiple of the active version's executor tokens.
    """
    max_trials: int
    """Max trials of a stage. After that, the stage ends without a decision, because trials cost
    tokens.
    """
    min_right: float = 0.0
    """Min share of right answers that a canary needs, both among its judged answers and among the
    held-out questions.
    """

    @property
    def enough(self) -> float:
        """Threshold of the evidence in favour of the candidate. The candidate is promoted if the
        evidence on every measure reaches this threshold.
        """
        return 1 / self.error

    @property
    def too_much(self) -> float:
        """Threshold of the evidence against the candidate. The candidate is rolled back if the
        evidence on any measure reaches this threshold.
        """
        return _MEASURES / self.error


def decide(
    pairs: Sequence[Pair], rule: GateRule, stage: Stage
) -> tuple[GateVerdict, TrialFigures, str]:
    """Return the decision on a candidate with these pairs, the figures, and the reason in words.

    - The candidate is promoted when the evidence in favour has reached 1/error on all three
      measures. A wrong promotion would need an error on each of them.
    - It is rolled back when the evidence against it has reached 3/error on any measure. Each
      measure gets a third of the error (Bonferroni).
    - If both hold, the candidate is worse, but by less than the margin. It is rolled back.
    - For a shadow without any judged run, only failures and tokens count.
    - A stage without a decision ends after `max_trials` pairs.
    """
    figures = figures_of(pairs, rule, stage)
    enough = rule.enough
    too_much = rule.too_much
    summary = _summary(figures, len(pairs), stage)
    worse = [evidence for evidence in figures.evidence if evidence.against >= too_much]
    if worse:
        measures = ", ".join(
            f"{evidence.measure} (evidence {evidence.against:.3g} of {too_much:.3g})"
            for evidence in worse
        )
        return "roll_back", figures, f"Worse than the active version in {measures}: {summary}."

    needed = figures.evidence
    how = f"by more than {rule.margin:g}"
    if stage == "shadow" and not figures.judged:
        needed = figures.evidence[1:]
        how = "in failures and tokens"
    undecided = [
        f"{evidence.measure} (evidence {evidence.in_favour:.3g} of {enough:.3g})"
        for evidence in needed
        if evidence.in_favour < enough
    ]
    if stage == "canary" and figures.right < rule.min_right * figures.judged:
        undecided.append(f"whether at least {rule.min_right:.0%} of its answers are right")
    if not undecided:
        return "promote", figures, f"Not worse than the active version {how}: {summary}."
    on = ", ".join(undecided)
    if len(pairs) >= rule.max_trials:
        reason = f"Not decided in {rule.max_trials:,} trials on {on}: {summary}."
        return "stop", figures, reason
    return "wait", figures, f"Not decided yet on {on}: {summary}."


def on_held_out(right: Sequence[tuple[bool, bool]], rule: GateRule) -> tuple[GateVerdict, str]:
    """Return the decision on a canary after the held-out questions, and the reason in words.
    `right`: for each question, two bools: True if the candidate was right, and True if the active
    version was right.

    The decision is an exact binomial test at the level `error`. A question is decisive if exactly
    one version is right. If that version is the candidate, the question is a win. With w wins among
    n decisive questions, the p-value is the probability of w or more wins if each decisive question
    is a win with probability (1 - margin) / 2.
    """
    wins = sum(candidate > active for candidate, active in right)
    losses = sum(candidate < active for candidate, active in right)
    count = wins + losses
    win = (1 - rule.margin) / 2
    chance = math.fsum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(win)
            + (count - k) * math.log1p(-win)
        )
        for k in range(wins, count + 1)
    )
    candidate_right = sum(candidate for candidate, _ in right)
    active_right = sum(active for _, active in right)
    result = (
        f"Right in {candidate_right} of {len(right)} held-out questions (active: {active_right}): "
        f"{wins} that only the candidate has right, {losses} that only the active version has "
        f"right (p = {chance:.2g})"
    )
    if chance <= rule.error and candidate_right >= rule.min_right * len(right):
        return "promote", f"{result}."
    return "stop", f"{result}, which is not enough for a promotion."


def figures_of(pairs: Sequence[Pair], rule: GateRule | None, stage: Stage) -> TrialFigures:
    """Return the sums over the pairs that count, and the evidence on each measure. `rule`: the
    gate's rule; None to compute no evidence.

    For a canary, equally many pairs count from runs served by the candidate and from runs served by
    the active version: the first pairs of each kind. So it makes no difference whether clients saw
    or judged more answers of one version than of the other.

    The evidence is computed from these differences:

    - correctness: 1 or -1 for each decisive pair in which neither version failed;
    - failures: for every pair, 1 if only the active version failed, -1 if only the candidate
      failed, and 0 otherwise;
    - tokens: for every pair, (k·active - candidate) / (k·active + candidate), where k is
      `max_tokens_ratio`, and 0 if both versions spent nothing. The margin is 0.
    """
    if stage == "canary":
        pairs = balanced(pairs)
    judged = [pair.judgement for pair in pairs if pair.judgement is not None]
    answered = [pair for pair in pairs if not pair.candidate_failed and not pair.active_failed]
    decisive = [pair.judgement for pair in answered if pair.judgement and pair.judgement.sign]
    decisive.sort(key=lambda judgement: judgement.judged_at)
    counted = within_share(decisive, lambda judgement: judgement.tenant)
    evidence: tuple[GateEvidence, ...] = ()
    if rule is not None:
        failures = [pair.active_failed - pair.candidate_failed for pair in pairs]
        evidence = (
            _correctness(counted, rule.margin),
            _evidence("failures", Counter(failures), _MORE_FAILURES),
            _evidence(
                "tokens", Counter(_saved(pair, rule.max_tokens_ratio) for pair in pairs), 0.0
            ),
        )
    given = Counter((judgement.source, judgement.tenant) for judgement in decisive)
    used = Counter((judgement.source, judgement.tenant) for judgement in counted)
    return TrialFigures(
        trials=len(pairs),
        judged=len(judged),
        right=sum(judgement.candidate_right for judgement in judged),
        active_right=sum(judgement.active_right for judgement in judged),
        failed=sum(pair.candidate_failed for pair in pairs),
        active_failed=sum(pair.active_failed for pair in pairs),
        tokens=sum(pair.candidate_tokens for pair in pairs),
        active_tokens=sum(pair.active_tokens for pair in pairs),
        evidence=evidence,
        sources=tuple(
            EvidenceSource(*source, count, used[source]) for source, count in sorted(given.items())
        ),
    )


def balanced(pairs: Sequence[Pair]) -> list[Pair]:
    """Return equally many pairs from runs served by the candidate and from runs served by the
    active version: the first pairs of each kind.
    """
    served = sum(pair.candidate_served for pair in pairs)
    count = min(served, len(pairs) - served)
    return _first(pairs, lambda pair: pair.candidate_served, {True: count, False: count})


def within_share(items: Sequence[Item], tenant_of: Callable[[Item], str]) -> list[Item]:
    """Return the first items of each tenant: as many as possible, so that no client's tenant has
    more than the share `MAX_OF_ONE` of the returned items. `tenant_of`: returns the tenant of an
    item; empty for the operator and the judge, which have no limit.
    """
    given = Counter(map(tenant_of, items))
    own = given.pop("", 0)
    limit = max(given.values(), default=0)
    # A lower limit also lowers the total, and thus the limit itself, so repeat until it is stable.
    while True:
        total = own + sum(min(count, limit) for count in given.values())
        if limit <= MAX_OF_ONE * total:
            break
        limit = int(MAX_OF_ONE * total)
    return _first(items, tenant_of, {**dict.fromkeys(given, limit), "": own})


def _first(
    items: Sequence[Item], key: Callable[[Item], Any], limits: Mapping[Any, int]
) -> list[Item]:
    """Return the first items of each key, at most `limits[key]` of them."""
    counts = Counter[Any]()
    counted = list[Item]()
    for item in items:
        counts[key(item)] += 1
        if counts[key(item)] <= limits[key(item)]:
            counted.append(item)
    return counted


def _saved(pair: Pair, max_tokens_ratio: float) -> float:
    allowed = max_tokens_ratio * pair.active_tokens
    total = allowed + pair.candidate_tokens
    return (allowed - pair.candidate_tokens) / total if total else 0.0


def _correctness(counted: Iterable[Judgement], margin: float) -> GateEvidence:
    """Return the evidence on correctness. It is computed from all decisive judgements, and again
    without the judgements of each tenant in turn. The smallest value counts, so that no single
    tenant can decide.
    """
    signs = defaultdict[str, Counter[float]](Counter)
    for judgement in counted:
        signs[judgement.tenant][judgement.sign] += 1
    total = sum(signs.values(), Counter[float]())
    subsets = [total, *(total - own for tenant, own in signs.items() if tenant)]
    evidence = [_evidence("correctness", subset, margin) for subset in subsets]
    in_favour = min(part.in_favour for part in evidence)
    return GateEvidence("correctness", in_favour, min(part.against for part in evidence))


def _evidence(measure: str, differences: Counter[float], margin: float) -> GateEvidence:
    """Return the evidence on a measure. `differences`: the number of pairs with each difference."""
    return GateEvidence(measure, _won(differences, 1, margin), _won(differences, -1, 0.0))


def _won(differences: Counter[float], sign: int, margin: float) -> float:
    """Return the final capital of the bets, which is the mean over all stakes. `sign`: 1 to bet on
    the candidate, -1 to bet against it. The order of the pairs does not matter, so pairs with equal
    differences are computed together.
    """
    logs = [
        math.fsum(
            count * math.log1p(stake * (sign * difference + margin))
            for difference, count in differences.items()
        )
        for stake in STAKES
    ]
    largest = max(logs)
    mean = largest + math.log(sum(math.exp(log - largest) for log in logs) / len(STAKES))
    return math.exp(min(mean, _MAX_LOG))


def _summary(figures: TrialFigures, trials: int, stage: Stage) -> str:
    runs = figures.trials
    judged = figures.judged
    right = f"right in {figures.right} of {judged} judged runs (active: {figures.active_right})"
    if not judged and stage == "shadow":
        right = "no answer has been judged: only distillation.judge can judge a shadow's answers"
    elif not judged:
        right = "no run has been judged by feedback or a judge"
    failed = f"failed in {figures.failed} of {runs} (active: {figures.active_failed})"
    tokens = f"{figures.tokens:,} executor tokens (active: {figures.active_tokens:,})"
    parts = [f"{right}, {failed}, {tokens}"]
    if runs < trials:
        waiting = f"{trials - runs} more trials count later"
        parts.append(f"{waiting}, when the other version has served as many compared runs")
    shares = list[str]()
    for source in sorted(figures.sources, key=lambda source: -source.counted)[:_MAX_NAMED]:
        share = f"{source.source} {source.tenant}".strip() + f" {source.counted}"
        if source.counted < source.decisive:
            share += f" of {source.decisive}"
        shares.append(share)
    if len(figures.sources) > _MAX_NAMED:
        shares.append(f"{len(figures.sources) - _MAX_NAMED} more tenants")
    if shares:
        parts.append(f"pairs in which only one version is right: {', '.join(shares)}")
    return "; ".join(parts)
