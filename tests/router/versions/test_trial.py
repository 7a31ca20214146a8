"""Judgements of a trial's two answers by feedback."""

import pytest

from router.trace.run import Feedback
from router.versions.book import Judgement, Side, Trial, judge


def trial(candidate: str, active: str, *, served: bool = True) -> Trial:
    """Return a canary's trial. With `served`, the client got the candidate's answer."""
    sides = Side(candidate, False, 10), Side(active, False, 10)
    return Trial("run-1", "executor-000002", "executor-000001", "canary", served, *sides, 1.0)


def feedback(**fields: object) -> Feedback:
    """Return feedback on the run."""
    return Feedback("run-1", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answers", "feedback", "right"),
    [
        (("Paris", "Lyon"), feedback(right_answer="Paris"), (True, False)),
        (("Paris", "the Lyon."), feedback(right_answer="Lyon"), (False, True)),
        (("Paris", "Lyon"), feedback(right_answer="Nice"), (False, False)),
        (("The Seine", "a river"), feedback(right_answer="Seine", accepted=True), (True, False)),
        (("Paris", "Lyon"), feedback(accepted=False, right_answer="Lyon"), (False, True)),
        (
            ("Paris", "Lyon"),
            feedback(accepted=False, score=1.0, right_answer="Lyon"),
            (False, True),
        ),
    ],
)
def test_a_right_answer_judges_both_answers(
    answers: tuple[str, str], feedback: Feedback, right: tuple[bool, bool]
) -> None:
    """Holds for either answer that the client got."""
    assert judge(trial(*answers), feedback) == Judgement(*right, "operator")
    swapped = judge(trial(*answers[::-1], served=False), feedback)
    assert swapped == Judgement(*right[::-1], "operator")


@pytest.mark.parametrize(
    "feedback",
    [
        feedback(comment="Thanks."),
        feedback(accepted=True),
        feedback(accepted=False),
        feedback(score=0.9),
        feedback(right_answer=" "),
        feedback(right_answer="Seine", accepted=True),
        feedback(right_answer="Seine", score=0.9),
        feedback(right_answer="river", accepted=False),
    ],
)
def test_feedback_without_a_clear_right_answer_judges_nothing(feedback: Feedback) -> None:
    """A verdict alone concerns a single answer, and a verdict may contradict the right answer."""
    assert judge(trial("the river", "Seine"), feedback) is None


def test_feedback_does_not_judge_a_shadow() -> None:
    """The client saw only the active version's answer."""
    shadow_trial = Trial(
        "run-1", "b", "a", "shadow", False, Side("Paris", False, 1), Side("Lyon", False, 1), 1.0
    )
    assert judge(shadow_trial, feedback(right_answer="Paris")) is None


def test_a_judgement_names_its_tenant() -> None:
    """The operator has none."""
    assert judge(
        trial("Paris", "Lyon"), feedback(right_answer="Paris", tenant="acme")
    ) == Judgement(True, False, "client", "acme")
