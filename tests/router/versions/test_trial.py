"""What feedback says of the two answers of a trial."""

import pytest

from router.trace.run import Feedback
from router.versions.book import Judgement, Side, Stage, Trial, judge


def trial(served: str, other: str, stage: Stage = "shadow") -> Trial:
    """A trial whose client got `served`."""
    sides = Side(served, False, 10), Side(other, False, 10)
    by_active, by_candidate = sides if stage == "shadow" else reversed(sides)
    return Trial("run-1", "executor-000002", "executor-000001", stage, by_candidate, by_active, 1.0)


def said(**words: object) -> Feedback:
    """Feedback on the run."""
    return Feedback("run-1", **words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "feedback", "right"),
    [
        (("Paris", "Lyon"), said(gold_answer="Paris"), (True, False)),
        (("Paris", "the Lyon."), said(gold_answer="Lyon"), (False, True)),
        (("Paris", "Lyon"), said(gold_answer="Nice"), (False, False)),
        (("The Seine", "a river"), said(gold_answer="Seine", accepted=True), (True, False)),
        (("the river Seine", "Seine"), said(gold_answer="Seine", accepted=True), (True, True)),
        (("the river Seine", "River Seine"), said(gold_answer="Seine", accepted=True), (True, True)),
        (("the river Seine", "the water Seine"), said(gold_answer="Seine", score=0.9), (True, None)),
        (("the river Seine", "the river Seine"), said(gold_answer="Seine", accepted=False), (False, False)),
        (("Paris", "paris"), said(accepted=True), (True, True)),
        (("Paris", "Lyon"), said(accepted=True), (True, None)),
        (("Paris", "Lyon"), said(accepted=False), (False, None)),
        (("Paris", "Lyon"), said(score=0.5), (True, None)),
        (("Paris", "Lyon"), said(score=0.4), (False, None)),
        (("Paris", "Paris"), said(score=0.4), (False, False)),
        (("Paris", "Paris"), said(accepted=False), (False, False)),
        (("Paris", "Lyon"), said(accepted=False, gold_answer="Lyon"), (False, True)),
        (("Paris", "Lyon"), said(accepted=False, score=1.0, gold_answer="Lyon"), (False, True)),
    ],
)
@pytest.mark.parametrize("stage", ["shadow", "canary"])
def test_feedback_that_tells(
    answers: tuple[str, str], feedback: Feedback, right: tuple[bool, bool | None], stage: Stage
) -> None:
    """A gold answer tells of both; a verdict of what the client got, and of the other one where it is the same."""
    by_active, by_candidate = right if stage == "shadow" else reversed(right)
    assert judge(trial(*answers, stage), feedback) == Judgement(by_candidate, by_active)


def test_feedback_that_does_not_tell() -> None:
    """Without a verdict, a score or a gold answer, nothing is known."""
    assert judge(trial("Paris", "Lyon"), said(comment="Thanks.")) is None
