"""What feedback says of the two answers of a trial."""

import pytest

from router.trace.run import Feedback
from router.versions.book import Judgement, Side, Trial, judge


def trial(candidate: str, active: str, *, served: bool = True) -> Trial:
    """A canary's trial. `served`: the client got the candidate's answer."""
    sides = Side(candidate, False, 10), Side(active, False, 10)
    return Trial("run-1", "executor-000002", "executor-000001", "canary", served, *sides, 1.0)


def said(**words: object) -> Feedback:
    """Feedback on the run."""
    return Feedback("run-1", **words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "feedback", "right"),
    [
        (("Paris", "Lyon"), said(right_answer="Paris"), (True, False)),
        (("Paris", "the Lyon."), said(right_answer="Lyon"), (False, True)),
        (("Paris", "Lyon"), said(right_answer="Nice"), (False, False)),
        (("The Seine", "a river"), said(right_answer="Seine", accepted=True), (True, False)),
        (("Paris", "Lyon"), said(accepted=False, right_answer="Lyon"), (False, True)),
        (("Paris", "Lyon"), said(accepted=False, score=1.0, right_answer="Lyon"), (False, True)),
    ],
)
def test_a_right_answer_tells_of_both(
    answers: tuple[str, str], feedback: Feedback, right: tuple[bool, bool]
) -> None:
    """Whichever the client got."""
    assert judge(trial(*answers), feedback) == Judgement(*right, "operator")
    other = judge(trial(*answers[::-1], served=False), feedback)
    assert other == Judgement(*right[::-1], "operator")


@pytest.mark.parametrize(
    "feedback",
    [
        said(comment="Thanks."),
        said(accepted=True),
        said(accepted=False),
        said(score=0.9),
        said(right_answer=" "),
        said(right_answer="Seine", accepted=True),
        said(right_answer="Seine", score=0.9),
        said(right_answer="river", accepted=False),
    ],
)
def test_feedback_that_does_not_tell(feedback: Feedback) -> None:
    """A verdict alone is of one answer only; and one that contradicts the right answer tells
    nothing.
    """
    assert judge(trial("the river", "Seine"), feedback) is None


def test_a_shadow_is_judged_by_no_feedback() -> None:
    """Whoever gives it has seen the active version's answer only."""
    seen = Trial(
        "run-1", "b", "a", "shadow", False, Side("Paris", False, 1), Side("Lyon", False, 1), 1.0
    )
    assert judge(seen, said(right_answer="Paris")) is None


def test_whose_word_it_is() -> None:
    """A tenant's, or the operator's, who has none."""
    assert judge(trial("Paris", "Lyon"), said(right_answer="Paris", tenant="acme")) == Judgement(
        True, False, "client", "acme"
    )
