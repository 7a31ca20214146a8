"""Questions of a benchmark, whatever data set they are from."""

import re
from collections.abc import Sequence

import msgspec

_EARLIER = re.compile(r"#(\d+)")


class SubQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A step of a gold decomposition."""

    question: str
    """`#1` stands for the answer to the first step."""
    answer: str
    supporting_doc_id: str = ""
    """The passage that answers it; empty where the data set does not say."""

    def filled(self, answers: Sequence[str]) -> str:
        """Return the question with the answers to earlier steps filled in; a number without a step
        stays, as in "reached #1".
        """

        def answer(mark: re.Match[str]) -> str:
            number = int(mark[1])
            return answers[number - 1] if 0 < number <= len(answers) else mark[0]

        return _EARLIER.sub(answer, self.question)


class BenchmarkQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question with its right answers; encoded, a line of the plain form `questions.jsonl`."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Any of them is right; there is at least one."""
    dataset: str
    split: str
    supporting: tuple[str, ...] = msgspec.field(default=(), name="supporting_doc_ids")
    """The ids of the passages that it takes to answer; none where the data set does not say."""
    decomposition: tuple[SubQuestion, ...] = ()
    type: str = ""
    """The data set's name of its kind, such as `bridge` or `comparison`."""

    @property
    def sub_questions(self) -> tuple[str, ...]:
        """The steps of the decomposition, the answers to earlier ones filled in: what a
        faultless delegator asks.
        """
        answers = [step.answer for step in self.decomposition]
        return tuple(
            step.filled(answers[:number]) for number, step in enumerate(self.decomposition)
        )
