"""The gate: decides whether a version on trial is promoted, rolled back, or tried further.

The idea: every run on trial is worked on by both versions, which gives a *pair*. Each pair is a bet
on the difference of the two, in [-1, 1], positive where the candidate did better. Capital starts at
1, and each pair multiplies it by 1 + λ·gain. While the null hypothesis holds, the bets are
unfavourable, so the capital hardly ever grows: it reaches 1/α with a probability of at most α,
however often one looks (Ville's inequality; the capital is a test martingale). So the capital is
the evidence against the null hypothesis, and a decision is due once it is large enough. The stake λ
is not known in advance: the mean over a fixed grid of stakes is a martingale, too. See Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting" (2024).

The null hypotheses, about the mean difference given all earlier pairs:

    in favour   the mean is -margin or less: the candidate is worse by the margin or more
    against     the mean is 0 or more: the candidate is not worse

There are three measures: correctness, failures and tokens. Correctness uses decisive pairs only, in
which exactly one version is right: 1 or -1. No client's tenant may contribute more than
`MAX_OF_ONE` of them. `docs/gate.md` has the assumptions.
"""

import math
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from router.versions.book import (
    EvidenceSource,
    GateEvidence,
    Judgement,
    Pair,
    Stage,
    TrialFigures,
)

STAKES = (0.1, 0.3, 0.6, 0.99)
"""Small stakes win where the versions differ often and in both directions, large ones where they
hardly differ. Below 1, so that no single pair loses all capital.
"""
MAX_OF_ONE = 0.25
"""Max share of the decisive pairs that may come from one client's tenant."""
_MORE_FAILURES = 0.05
"""How much more often the candidate may fail, as a share of runs."""
_MEASURES = 3
_MAX_NAMED = 10
"""Max tenants in a reason; the figures have all."""
_MAX_LOG = 500.0
"""Evidence is capped at e to this power, which every number format can hold."""
Item = TypeVar("Item")
GateVerdict = Literal["promote", "wait", "stop", "roll_back"]


@dataclass(frozen=True, slots=True)
class GateRule:
    """The conditions that a candidate has to meet."""

    margin: float
    """How much worse than the active version the candidate may be in right answers: losses minus
    wins, as a share of decisive pairs.
    """
    error: float
    """Max probability, per stage, of promoting a version that is worse by the margin or more in any
    measure, and of rolling back a version that is worse in none.
    """
    max_tokens_ratio: float
    """Max tokens, as a multiple of the active version's."""
    max_trials: int
    """Max trials of a stage; after that the trial ends undecided, as trials cost tokens."""
    min_right: float = 0.0
    """Min share of right answers, among a canary's judged answers and among the held-out
    questions.
    """

    @property
    def enough(self) -> float:
        """The evidence in favour that promotes, if all measures have it."""
        return 1 / self.error

    @property
    def too_much(self) -> float:
        """The evidence against that rolls back, if any measure has it."""
        return _MEASURES / self.error


def decide(
    pairs: Sequence[Pair], rule: GateRule, stage: Stage
) -> tuple[GateVerdict, TrialFigures, str]:
    """Return the decision on a candidate with these pairs, the figures, and the reason in words.

    Promote when the evidence in favour has reached 1/error on all three measures: a wrong promotion
    needs an error on each. Roll back when the evidence against has reached 3/error on any: each
    measure gets a third of the error (Bonferroni). If both hold, the candidate is worse, if within
    the margin, and is rolled back. A shadow without any judged run is decided by failures and
    tokens alone. A trial without a decision ends after `max_trials`.
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
        undecided.append(f"whether it is right in {rule.min_right:.0%} at least")
    if not undecided:
        return "promote", figures, f"Not worse than the active version {how}: {summary}."
    on = ", ".join(undecided)
    if len(pairs) >= rule.max_trials:
        reason = f"Not decided in {rule.max_trials:,} trials on {on}: {summary}."
        return "stop", figures, reason
    return "wait", figures, f"Not decided yet on {on}: {summary}."


def on_held_out(right: Sequence[tuple[bool, bool]], rule: GateRule) -> tuple[GateVerdict, str]:
    """Return the decision on a canary that has passed its trial, by held-out questions, and the
    reason. `right`: for each question, whether the candidate and whether the active version was
    right.

    An exact binomial test at the level `error`: with w wins among n decisive questions, the
    probability of w or more wins if each is won with probability (1 - margin) / 2.
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
        f"Of {len(right)} held-out questions it has {candidate_right} right (active: "
        f"{active_right}), {wins} that the other has wrong and {losses} the other way "
        f"(p = {chance:.2g})"
    )
    if chance <= rule.error and candidate_right >= rule.min_right * len(right):
        return "promote", f"{result}."
    return "stop", f"{result}, which does not suffice."


def figures_of(pairs: Sequence[Pair], rule: GateRule | None, stage: Stage) -> TrialFigures:
    """Return the sums over the pairs that count, with the evidence on each measure; without
    evidence if there is no rule.

    Of a canary's pairs, equally many that each version served count, the first ones. So what the
    client was shown, and whether it led to feedback, does not favour either version. Correctness is
    compared over decisive pairs in which neither version failed; failures over all pairs, as active
    failed minus candidate failed. Tokens are compared over all pairs, without a margin: with k the
    max multiple, (k·active - candidate) / (k·active + candidate), and 0 if both spent nothing.
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
    """Return equal numbers of pairs served by the candidate and by the active version, the first of
    each.
    """
    served = sum(pair.candidate_served for pair in pairs)
    count = min(served, len(pairs) - served)
    return _first(pairs, lambda pair: pair.candidate_served, {True: count, False: count})


def within_share(items: Sequence[Item], tenant_of: Callable[[Item], str]) -> list[Item]:
    """Return the items that count so that no client's tenant has more than `MAX_OF_ONE` of them:
    the first of each tenant. `tenant_of`: empty for the operator and the judge, who have no limit.
    """
    given = Counter(map(tenant_of, items))
    own = given.pop("", 0)
    limit = max(given.values(), default=0)
    # A lower limit also shrinks the total that it is a share of, so repeat until it is stable.
    while True:
        total = own + sum(min(count, limit) for count in given.values())
        if limit <= MAX_OF_ONE * total:
            break
        limit = int(MAX_OF_ONE * total)
    return _first(items, tenant_of, {**dict.fromkeys(given, limit), "": own})


def _first(
    items: Sequence[Item], key: Callable[[Item], Any], limits: Mapping[Any, int]
) -> list[Item]:
    """Return the first items of each key, at most as many as its limit."""
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
    """Return the evidence from all decisive judgements, or without any one tenant's, whichever is
    least.
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
    """Return the evidence on a measure. `differences`: the count of each difference."""
    return GateEvidence(measure, _won(differences, 1, margin), _won(differences, -1, 0.0))


def _won(differences: Counter[float], sign: int, margin: float) -> float:
    """Return the mean of the final capital over all stakes. The order of the pairs does not matter,
    so equal differences are multiplied together.
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
        right = "no answer has been judged, as a shadow's are by a judge alone (distillation.judge)"
    elif not judged:
        right = "no run has been judged by feedback or a judge"
    failed = f"failed in {figures.failed} of {runs} (active: {figures.active_failed})"
    tokens = f"{figures.tokens:,} executor tokens (active: {figures.active_tokens:,})"
    parts = [f"{right}, {failed}, {tokens}"]
    if runs < trials:
        waiting = f"{trials - runs} more trials wait for as many of runs"
        parts.append(f"{waiting} that the other version served")
    shares = list[str]()
    for source in sorted(figures.sources, key=lambda source: -source.counted)[:_MAX_NAMED]:
        share = f"{source.source} {source.tenant}".strip() + f" {source.counted}"
        if source.counted < source.decisive:
            share += f" of {source.decisive}"
        shares.append(share)
    if len(figures.sources) > _MAX_NAMED:
        shares.append(f"{len(figures.sources) - _MAX_NAMED} more tenants")
    if shares:
        parts.append(f"pairs in which one alone is right: {', '.join(shares)}")
    return "; ".join(parts)
