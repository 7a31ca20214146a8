"""The gate's errors under realistic feedback and under attack, by simulation.

Run all of it with `python -m tests.router.versions.simulation`; it takes about an hour.

Every trial is a pair of answers, and clients give feedback on the answer that they got. Candidates
that are just as bad as `margin` excludes must not be promoted, and equal ones not be rolled back,
more often than the stated error, no matter how often the gate looks. Hostile clients, a twentieth
of the traffic, must not bring a worse candidate into service.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import numpy as np

from router.trace.run import Feedback
from router.versions.book import Judgement, Pair, Side, Trial, judge
from router.versions.gate import GateRule, GateVerdict, decide, on_held_out

RULE = GateRule(margin=0.1, error=0.05, max_tokens_ratio=2.0, max_trials=10_000, min_right=0.1)
"""The default rule."""
_ACCURACIES = 0.3, 0.5, 0.8
_TENANTS = 10
_HELD_OUT = 200
_HOSTILE = 0.05
_FIRST_LOOK = 90
_TRIALS = 1000
"""Fewer trials cannot suffice, and more are not simulated."""
_SPREAD = 0.2
"""Difference in accuracy of the easier and of the harder half of all questions from the mean."""


class SeenTrial(msgspec.Struct, frozen=True):
    """A trial, as a client that gives feedback on it may see it."""

    number: int
    shown: str
    other: str
    hard: bool
    """The question is one of the harder half."""
    by_candidate: bool
    """The answer is the candidate's; clients do not know."""
    chance: float
    """A random number from 0 to 1."""
    tenant: int

    @property
    def right(self) -> bool:
        """Return whether the shown answer is right."""
        return self.shown == _GOLD


Array = np.ndarray[Any, Any]
Statement = tuple[str, float] | None
"""A right answer as stated by a client, and the number of trials until then; None for no
feedback.
"""
Hostile = tuple[int, Callable[[SeenTrial], Statement]]
"""The number of hostile tenants, and their feedback."""
_GOLD = "Paris"
_LATER = 300.0


def _if(
    condition: Callable[[SeenTrial], object], after: Callable[[SeenTrial], float] = lambda seen: 0.0
) -> Callable[[SeenTrial], Statement]:
    """Return clients that state the right answer if the condition holds."""
    return lambda seen: (_GOLD, after(seen)) if condition(seen) else None


def _misspell_errors(seen: SeenTrial) -> Statement:
    """State the right answers of errors, misspelt in some cases."""
    if seen.right:
        return None
    return ("Pari" if seen.chance < 0.3 else _GOLD, 0.0)


KINDS: dict[str, Callable[[SeenTrial], Statement]] = {
    "all": _if(lambda seen: True),
    "a third, at random": _if(lambda seen: seen.chance < 0.33),
    "a tenth, at random": _if(lambda seen: seen.chance < 0.1),
    "errors only": _if(lambda seen: not seen.right),
    "errors mostly": _if(lambda seen: seen.chance < (0.1 if seen.right else 0.9)),
    "praise only": _if(lambda seen: seen.right),
    "praise mostly": _if(lambda seen: seen.chance < (0.9 if seen.right else 0.1)),
    "delayed": _if(lambda seen: True, lambda seen: _LATER),
    "delayed at random": _if(lambda seen: True, lambda seen: 2 * _LATER * seen.chance),
    "praise delayed": _if(lambda seen: True, lambda seen: _LATER * seen.right),
    "errors delayed": _if(lambda seen: True, lambda seen: _LATER * (not seen.right)),
    "errors only, delayed": _if(lambda seen: not seen.right, lambda seen: 2 * _LATER * seen.chance),
    "mis-worded golds": lambda seen: ("Paris, France" if seen.chance < 0.3 else _GOLD, 0.0),
    "mis-worded golds of errors": _misspell_errors,
    "garbage": lambda seen: ("?" if seen.chance < 0.5 else _GOLD, 0.0),
    "what was shown, sometimes": lambda seen: (seen.shown if seen.chance < 0.1 else _GOLD, 0.0),
    "one tenant only": _if(lambda seen: seen.tenant == 0),
    "one tenant mostly": _if(lambda seen: seen.tenant == 0 or seen.chance < 0.05),
    "easy questions": _if(lambda seen: not seen.hard),
    "hard questions, errors only": _if(lambda seen: seen.hard and not seen.right),
    "the first hundreds": _if(lambda seen: seen.number < 300),
}
"""Clients of one kind each."""
_HONEST = KINDS["a tenth, at random"]


def _for_candidate(seen: SeenTrial) -> Statement:
    """Return the feedback of a hostile client that knows each version's answer: the candidate's
    is right, always.
    """
    return seen.shown if seen.by_candidate else seen.other, 0.0


ATTACKS: dict[str, Hostile] = {
    "zzz": (1, lambda seen: ("zzz", 0.0)),
    "likes what the candidate gets wrong": (
        1,
        lambda seen: (seen.shown, 0.0) if seen.by_candidate else None,
    ),
    "right answers where it helps": (
        1,
        lambda seen: (_GOLD, 0.0) if seen.by_candidate == seen.right else None,
    ),
    "for the candidate": (1, _for_candidate),
    "two tenants": (2, _for_candidate),
    "two tenants, slowly": (
        2,
        lambda seen: _for_candidate(seen) if seen.number > 300 else _HONEST(seen),
    ),
    "twenty tenants": (20, _for_candidate),
}
"""Attacks by tenants that share a twentieth of the traffic."""


@cache
def _judgement(
    by_candidate: str, by_active: str, candidate_served: bool, gold: str, tenant: str
) -> Judgement | None:
    sides = Side(by_candidate, False, 0), Side(by_active, False, 0)
    trial = Trial("", "candidate", "active", "canary", candidate_served, *sides, 0.0)
    return judge(trial, Feedback("", right_answer=gold, tenant=tenant))


def simulate(
    draw: np.random.Generator,
    accuracies: tuple[float, float],
    says: Callable[[SeenTrial], Statement],
    *,
    trials: int = _TRIALS,
    hostile: Hostile | None = None,
) -> tuple[GateVerdict, GateVerdict]:
    """Return how a canary ends by its own evidence, and with the held-out questions.

    `accuracies` are the candidate's and the active version's. Their errors are independent given
    the hardness of a question.
    """
    hard = draw.random(trials) < 0.5
    chance = draw.random(trials).tolist()
    side = (draw.random(trials) < 0.5).tolist()
    right_by_candidate, right_by_active = (
        (draw.random(trials) < _accuracies(accuracy, hard)).tolist() for accuracy in accuracies
    )
    alike = draw.random(trials) < 0.3
    tenants = draw.integers(0, _TENANTS, trials).tolist()
    is_hostile = draw.random(trials) < _HOSTILE * bool(hostile)
    judgements: list[tuple[float, int, Judgement]] = []
    pairs = [Pair(False, False, 100, 100, served) for served in side]
    for number in range(trials):
        wrong_by_active = "Lyon" if alike[number] else "Nice"
        answers = (
            _GOLD if right_by_candidate[number] else "Lyon",
            _GOLD if right_by_active[number] else wrong_by_active,
        )
        shown, unseen = answers if side[number] else answers[::-1]
        seen = SeenTrial(
            number, shown, unseen, bool(hard[number]), side[number], chance[number], tenants[number]
        )
        foe = hostile if is_hostile[number] else None
        tenant = f"foe {int(chance[number] * 1e6) % foe[0]}" if foe else f"tenant {seen.tenant}"
        statement = (foe[1] if foe else says)(seen)
        judged = statement and _judgement(*answers, seen.by_candidate, statement[0], tenant)
        if statement and judged:
            judgements.append((number + statement[1], number, judged))
    judgements.sort(key=lambda entry: entry[0])
    statements_heard = 0
    look = _FIRST_LOOK
    while True:
        while statements_heard < len(judgements) and judgements[statements_heard][0] <= look:
            at, number, judged = judgements[statements_heard]
            judged = Judgement(
                judged.candidate_right, judged.active_right, judged.source, judged.tenant, at
            )
            pairs[number] = Pair(False, False, 100, 100, side[number], judged)
            statements_heard += 1
        verdict, _, _ = decide(pairs[:look], RULE, "canary")
        if verdict != "wait" or (look >= trials and statements_heard == len(judgements)):
            break
        look = min(look * 5 // 4, trials) if look < trials else look + 200
    if verdict != "promote":
        return verdict, verdict
    hard = draw.random(_HELD_OUT) < 0.5
    right = [
        (draw.random(_HELD_OUT) < _accuracies(accuracy, hard)).tolist() for accuracy in accuracies
    ]
    return verdict, on_held_out(list(zip(*right, strict=True)), RULE)[0]


def _accuracies(accuracy: float, hard: Array) -> Array:
    return np.where(hard, accuracy - _SPREAD, accuracy + _SPREAD)


def upper_bound(count: int, of: int) -> float:
    """Return the one-sided upper 95 % bound of a probability (Clopper and Pearson), from `count`
    of `of` cases.
    """
    low = count / of
    high = 1.0
    while high - low > 1e-6 and count < of:
        middle = (low + high) / 2
        tail = sum(
            math.comb(of, k) * middle**k * (1 - middle) ** (of - k) for k in range(count + 1)
        )
        if tail > 0.05:
            low = middle
        else:
            high = middle
    return high


def at_the_margin(accuracy: float, margin: float) -> float:
    """Return the accuracy of a candidate that is worse by just the margin, as answers are drawn
    here.
    """
    return (accuracy * (1 - margin) + 2 * margin * _SPREAD**2) / (
        1 + margin - 2 * margin * accuracy
    )


def row(
    draw: np.random.Generator,
    accuracy: float,
    says: Callable[[SeenTrial], Statement],
    times: int,
    hostile: Hostile | None = None,
) -> dict[str, float]:
    """Return shares of canaries that end in some way: candidates worse by the margin, equal, and
    better by ten points.
    """

    def ends(candidate: float) -> list[tuple[GateVerdict, GateVerdict]]:
        return [simulate(draw, (candidate, accuracy), says, hostile=hostile) for _ in range(times)]

    worse = ends(at_the_margin(accuracy, RULE.margin))
    equal = ends(accuracy)
    better = ends(accuracy + 0.1)
    promoted = sum(end == "promote" for _, end in worse)
    return {
        "worse passed": sum(end == "promote" for end, _ in worse) / times,
        "worse promoted": promoted / times,
        "upper 95 % bound": upper_bound(promoted, times),
        "equal rolled back": sum(end == "roll_back" for end, _ in equal) / times,
        "better passed": sum(end == "promote" for end, _ in better) / times,
    }


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    for kind, says in KINDS.items():
        for accuracy in _ACCURACIES:
            print(f"{kind}, {accuracy:g}: {row(draw, accuracy, says, 60)}", flush=True)
    for kind, hostile in ATTACKS.items():
        print(
            f"{kind}, under attack: {row(draw, 0.5, KINDS['a tenth, at random'], 1000, hostile)}",
            flush=True,
        )
