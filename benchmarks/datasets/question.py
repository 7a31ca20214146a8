"""Questions of any data set."""

import re
from collections.abc import Sequence

import msgspec

_EARLIER = re.compile(r"#(\d+)")


class SubQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Step of a gold decomposition."""

    question: str
    """`#1` stands for the answer to the first step."""
    answer: str
    supporting_doc_id: str = ""
    """Passage that answers it; empty if unknown."""

    def filled(self, answers: Sequence[str]) -> str:
        """Return the question with the answers to earlier steps filled in; numbers without a step
        stay, as in "reached #1".
        """

        def answer(mark: re.Match[str]) -> str:
            number = int(mark[1])
            return answers[number - 1] if 0 < number <= len(answers) else mark[0]

        return _EARLIER.sub(answer, self.question)


class BenchmarkQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Question with its right answers; encoded, a line of `questions.jsonl` in the plain format."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Right answers, at least one."""
    dataset: str
    split: str
    supporting: tuple[str, ...] = msgspec.field(default=(), name="supporting_doc_ids")
    """Ids of the passages needed for the answer; empty if unknown."""
    decomposition: tuple[SubQuestion, ...] = ()
    type: str = ""
    """Type in the data set, such as `bridge` or `comparison`."""

    @property
    def sub_questions(self) -> tuple[str, ...]:
        """Return the steps of the decomposition with earlier answers filled in: the sub-queries of
        a perfect delegator.
        """
        answers = [step.answer for step in self.decomposition]
        return tuple(
            step.filled(answers[:number]) for number, step in enumerate(self.decomposition)
        )
