"""When a version on trial goes further, and when it goes out of service: tests on paired runs that
stay valid however often one looks, and whoever gives feedback, on whatever they were shown.

Each test bets on differences between the two versions, one a pair, in [-1, 1], positive where the
candidate did better. The product of 1 + λ·gain over all pairs, and so the mean of these over a
fixed grid of stakes λ, is a test martingale while the null hypothesis holds: its expectation is 1
at most, and the probability that it ever reaches 1/α is α at most (Ville's inequality). See
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (2024). The null
hypotheses, of the mean difference given all pairs before:

    in favour   the mean is -margin or less: the candidate is worse by the margin or more
    against     the mean is 0 or more: the candidate is not worse

Correctness is compared over decisive pairs, in which exactly one version is right: 1 or -1.
`docs/training.md` has the assumptions.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from router.versions.book import EvidenceSource, GateEvidence, Judgement, Pair, Stage, TrialFigures

STAKES = (0.1, 0.3, 0.6, 0.99)
"""Small ones win where the versions differ often and either way, large ones where they hardly
differ. Below 1, so that no pair loses everything.
"""
MOST_OF_ONE = 0.25
"""The largest share of what is learnt from that may rest on the word of one client's tenant."""
_MORE_FAILURES = 0.05
"""How much more often the candidate may fail, as a share of runs."""
_MEASURES = 3
_MOST_NAMED = 10
"""Tenants in a reason; figures have all."""
_MOST_LOG = 500.0
"""Evidence is cut at e to this, which every format can hold."""
Item = TypeVar("Item")
GateVerdict = Literal["promote", "wait", "stop", "roll_back"]


@dataclass(frozen=True, slots=True)
class GateRule:
    """Conditions that a candidate has to meet."""

    margin: float
    """How much worse it may be than the active version in right answers: losses less wins, as a
    share of decisive pairs.
    """
    error: float
    """In each stage, the probability of promoting a version that is worse by the margin or more in
    any measure is this at most; and so is that of rolling back one that is worse in none.
    """
    most_tokens: float
    """Its tokens as a multiple of the active version's, at most; more is worse."""
    most_trials: int
    """Of a stage; where there is no decision by then, the trial is over, as trials cost tokens."""
    least_right: float = 0.0
    """The share of answers that have to be right: of judged ones of a canary, and of the
    held-out questions.
    """

    @property
    def enough(self) -> float:
        """The evidence in favour that promotes, where all measures have it."""
        return 1 / self.error

    @property
    def too_much(self) -> float:
        """The evidence against that rolls back, where any measure has it."""
        return _MEASURES / self.error


def decide(
    pairs: Sequence[Pair], rule: GateRule, stage: Stage
) -> tuple[GateVerdict, TrialFigures, str]:
    """Decide on a candidate with these pairs: the decision, the figures, and why, in words.

    It is promoted when the evidence in favour has reached 1/error on all three measures: all must
    be in error for it to be a wrong one. It is rolled back when the evidence against it has reached
    3/error on any of them: the share of each in the error is a third (Bonferroni). Where both hold,
    it is worse, if within the margin, and rolled back. A shadow of which nobody knows whether it is
    right goes on by failures and tokens. Where nothing is decided after `most_trials`, its trial is
    over.
    """
    figures = figures_of(pairs, rule, stage)
    enough = rule.enough
    too_much = rule.too_much
    summary = _summary(figures, len(pairs), stage)
    if worse := [each for each in figures.evidence if each.against >= too_much]:
        said = ", ".join(
            f"{each.measure} (evidence {each.against:.3g} of {too_much:.3g})" for each in worse
        )
        return "roll_back", figures, f"Worse than the active version in {said}: {summary}."
    needed = figures.evidence if stage == "canary" or figures.judged else figures.evidence[1:]
    lacking = [each for each in needed if each.in_favour < enough]
    open_ = [f"{each.measure} (evidence {each.in_favour:.3g} of {enough:.3g})" for each in lacking]
    if stage == "canary" and figures.right < rule.least_right * figures.judged:
        open_.append(f"whether it is right in {rule.least_right:.0%} at least")
    if open_ and len(pairs) >= rule.most_trials:
        return (
            "stop",
            figures,
            f"Not decided in {rule.most_trials:,} trials on {', '.join(open_)}: {summary}.",
        )
    if open_:
        return "wait", figures, f"Not decided yet on {', '.join(open_)}: {summary}."
    how = (
        f"by more than {rule.margin:g}" if needed is figures.evidence else "in failures and tokens"
    )
    return "promote", figures, f"Not worse than the active version {how}: {summary}."


def on_held_out(right: Sequence[tuple[bool, bool]], rule: GateRule) -> tuple[GateVerdict, str]:
    """Decide by held-out questions on a candidate that its canary speaks for: a decision, and why.
    `right`: of each question, whether the candidate was right, and whether the active version was.

    Exact binomial test at the level `error`: with w wins among n decisive questions, the
    probability of w or more where each is a win with probability (1 - margin) / 2.
    """
    wins, losses = (sum(sign == one - other for one, other in right) for sign in (1, -1))
    count = wins + losses
    win = (1 - rule.margin) / 2
    ways = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        for k in range(count + 1)
    ]
    chance = math.fsum(
        math.exp(ways[k] + k * math.log(win) + (count - k) * math.log1p(-win))
        for k in range(wins, count + 1)
    )
    candidate, active = (sum(each[which] for each in right) for which in (0, 1))
    said = (
        f"Of {len(right)} held-out questions it has {candidate} right (active: {active}),"
        f" {wins} that the other has "
        f"wrong and {losses} the other way (p = {chance:.2g})"
    )
    passed = chance <= rule.error and candidate >= rule.least_right * len(right)
    return ("promote", f"{said}.") if passed else ("stop", f"{said}, which does not suffice.")


def figures_of(pairs: Sequence[Pair], rule: GateRule | None, stage: Stage) -> TrialFigures:
    """Sums over the pairs that count, with the evidence on each measure; without evidence where
    there is no rule.

    Of a canary's pairs the first n that the candidate served and the first n that the active
    version served count, n as large as possible: so what a client was shown, and whether feedback
    came of it, says nothing of the two versions. Correctness is compared over decisive pairs in
    which neither failed; failures over all: active failed less candidate failed. Tokens over all:
    with k the most that is allowed, (k·active - candidate) / (k·active + candidate), 0 where both
    spent nothing, and without a margin.
    """
    if stage == "canary":
        pairs = balanced(pairs)
    judged = [pair.judgement for pair in pairs if pair.judgement is not None]
    decisive = [
        pair.judgement
        for pair in pairs
        if pair.judgement
        and pair.judgement.sign
        and not pair.candidate_failed
        and not pair.active_failed
    ]
    counted = within_share(
        sorted(decisive, key=lambda each: each.judged_at), lambda each: each.tenant
    )
    evidence: tuple[GateEvidence, ...] = ()
    if rule is not None:
        failures = [pair.active_failed - pair.candidate_failed for pair in pairs]
        evidence = (
            _correctness(counted, rule.margin),
            _evidence("failures", Counter(failures), _MORE_FAILURES),
            _evidence("tokens", Counter(_saved(pair, rule.most_tokens) for pair in pairs), 0.0),
        )
    given, used = (
        Counter((each.source, each.tenant) for each in some) for some in (decisive, counted)
    )
    return TrialFigures(
        trials=len(pairs),
        judged=len(judged),
        right=sum(each.candidate_right for each in judged),
        active_right=sum(each.active_right for each in judged),
        failed=sum(pair.candidate_failed for pair in pairs),
        active_failed=sum(pair.active_failed for pair in pairs),
        tokens=sum(pair.candidate_tokens for pair in pairs),
        active_tokens=sum(pair.active_tokens for pair in pairs),
        evidence=evidence,
        sources=tuple(
            EvidenceSource(*who, count, used[who]) for who, count in sorted(given.items())
        ),
    )


def evidence_curve(
    pairs: Sequence[Pair], rule: GateRule, stage: Stage, points: int
) -> list[tuple[int, tuple[GateEvidence, ...]]]:
    """The evidence as it was after so many of the pairs, at `points` of their numbers or fewer;
    the last has all.
    """
    ends = sorted({round(len(pairs) * number / points) for number in range(points + 1)})
    return [(end, figures_of(pairs[:end], rule, stage).evidence) for end in ends]


def balanced(pairs: Sequence[Pair]) -> list[Pair]:
    """Equal numbers of pairs that the candidate served and of the others: of either the first
    ones.
    """
    served = sum(pair.candidate_served for pair in pairs)
    most = min(served, len(pairs) - served)
    return _first(pairs, lambda pair: pair.candidate_served, {True: most, False: most})


def within_share(items: Sequence[Item], tenant_of: Callable[[Item], str]) -> list[Item]:
    """The items that count where no client's tenant may have more than `MOST_OF_ONE` of them: of
    each the first ones. `tenant_of`: empty for the operator's and the judge's.
    """
    given = Counter(map(tenant_of, items))
    own = given.pop("", 0)
    most = max(given.values(), default=0)
    while most > (
        allowed := int(MOST_OF_ONE * (own + sum(min(count, most) for count in given.values())))
    ):
        most = allowed
    return _first(items, tenant_of, {**dict.fromkeys(given, most), "": own})


def _first(
    items: Sequence[Item], key: Callable[[Item], Any], most: Mapping[Any, int]
) -> list[Item]:
    """Of the items of each key the first ones, so many at most."""
    left = Counter(most)
    found = list[Item]()
    for item in items:
        if left[key(item)] > 0:
            left[key(item)] -= 1
            found.append(item)
    return found


def _saved(pair: Pair, most_tokens: float) -> float:
    allowed = most_tokens * pair.active_tokens
    total = allowed + pair.candidate_tokens
    return (allowed - pair.candidate_tokens) / total if total else 0.0


def _correctness(counted: Iterable[Judgement], margin: float) -> GateEvidence:
    """Of all that counts, or without the one tenant whose evidence there is most to."""
    signs = defaultdict[str, Counter[float]](Counter)
    for each in counted:
        signs[each.tenant][each.sign] += 1
    whole = sum(signs.values(), Counter[float]())
    without = [
        _evidence("correctness", whole - its, margin) for tenant, its in signs.items() if tenant
    ]
    found = [_evidence("correctness", whole, margin), *without]
    return GateEvidence(
        "correctness", min(each.in_favour for each in found), min(each.against for each in found)
    )


def _evidence(measure: str, differences: Counter[float], margin: float) -> GateEvidence:
    """`differences`: how often each came."""
    return GateEvidence(measure, _won(differences, 1, margin), _won(differences, -1, 0.0))


def _won(differences: Counter[float], sign: int, margin: float) -> float:
    """The mean over all stakes of what each has become; the order of the pairs makes no
    difference to a product.
    """
    logs = [
        math.fsum(
            times * math.log1p(stake * (sign * each + margin))
            for each, times in differences.items()
        )
        for stake in STAKES
    ]
    most = max(logs)
    mean = most + math.log(sum(math.exp(log - most) for log in logs) / len(STAKES))
    return math.exp(min(mean, _MOST_LOG))


def _summary(figures: TrialFigures, trials: int, stage: Stage) -> str:
    runs = figures.trials
    judged = figures.judged
    right = f"right in {figures.right} of {judged} judged runs (active: {figures.active_right})"
    if not judged and stage == "shadow":
        right = "no answer has been judged, as a shadow's are by a judge alone (distillation.judge)"
    elif not judged:
        right = "no run has been judged by feedback or a judge"
    failed = f"failed in {figures.failed} of {runs} (active: {figures.active_failed})"
    said = (
        f"{right}, {failed}, {figures.tokens:,} executor tokens (active: {figures.active_tokens:,})"
    )
    if runs < trials:
        said += (
            f"; {trials - runs} more trials wait for as many of runs that the other version served"
        )
    shares = [
        f"{each.source}{f' {each.tenant}' if each.tenant else ''} {each.counted}"
        + (f" of {each.decisive}" if each.counted < each.decisive else "")
        for each in sorted(figures.sources, key=lambda each: -each.counted)[:_MOST_NAMED]
    ]
    shares += [f"{more} more tenants"] if (more := len(figures.sources) - _MOST_NAMED) > 0 else []
    return f"{said}; pairs in which one alone is right: {', '.join(shares)}" if shares else said
