from executor_sft.evaluate import Answered, Executed, evaluation_of
from serving.config.config import SearchConfig


def answered(question: str, *, right: bool, tokens: int, searches: tuple[int, ...] = (1,)) -> Answered:
    runs = tuple(Executed(f"{question}?", count, failed=False) for count in searches)
    return Answered(question, "x" if right else "y", right, float(right), None, tokens, runs)


def test_figures_are_means_over_rollouts_and_runs() -> None:
    """EM and tokens are by rollout, searches by executor run, tokens per right answer over all tokens."""
    found = [
        answered("a", right=True, tokens=100, searches=(1, 2)),
        answered("a", right=False, tokens=300, searches=(3,)),
    ]
    (row,) = evaluation_of({"base": found}, SearchConfig(), 2, None).rows
    assert (row.exact_match, row.executor_tokens, row.tokens_per_right_answer) == (0.5, 200, 400)
    assert (row.searches, row.multi_search, row.judge) == (2.0, 2 / 3, None)


def test_executors_are_compared_question_by_question() -> None:
    """A question's rollouts are averaged before it is paired; the order of the questions means nothing."""
    old = [answered(name, right=False, tokens=100) for name in "abcd"]
    new = [answered(name, right=name in "ab", tokens=150) for name in "dcba"]
    evaluation = evaluation_of({"base": old, "new": new}, SearchConfig(max_turns=4), 1, 0.5)
    (comparison,) = evaluation.comparisons
    assert (comparison.executor, comparison.beside) == ("new", "base")
    assert comparison.exact_match.mean == 0.5
    assert comparison.executor_tokens.low == comparison.executor_tokens.high == 50
    assert (evaluation.questions, evaluation.max_turns) == (4, 4)


def test_nobody_right_has_no_price_for_a_right_answer() -> None:
    """Tokens per right answer are unknown where no answer was right, not zero."""
    (row,) = evaluation_of({"base": [answered("a", right=False, tokens=9)]}, SearchConfig(), 1, None).rows
    assert row.tokens_per_right_answer is None


def test_a_judge_that_is_never_read_counts_as_a_no() -> None:
    """Replies that cannot be read stay in the denominator."""
    found = [answered("a", right=True, tokens=1), answered("b", right=True, tokens=1)]
    one = Answered("c", "x", True, 1.0, True, 1, ())
    (row,) = evaluation_of({"base": [*found, one]}, SearchConfig(), 1, None).rows
    assert row.judge == 1 / 3
