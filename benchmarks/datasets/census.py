"""What is wrong with a list of questions, as far as that can be counted."""

from collections.abc import Iterable, Sequence

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from router.protocol.scoring import normal_answer
from router.protocol.sub_queries import normal_question


class RepeatedId(msgspec.Struct, frozen=True):
    """An identifier that a data set uses more than once."""

    dataset: str
    id: str
    times: int


class RepeatedQuestion(msgspec.Struct, frozen=True):
    """A question that stands there more than once, but for case, surplus space and closing punctuation."""

    dataset: str
    """Of the first one."""
    question: str
    ids: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """Of each."""
    conflicting: bool
    """Whether some two of them have no answer in common."""


class Census(msgspec.Struct, frozen=True):
    """Findings, in the order of the list."""

    repeated_ids: tuple[RepeatedId, ...]
    repeated_questions: tuple[RepeatedQuestion, ...]

    @property
    def conflicts(self) -> tuple[RepeatedQuestion, ...]:
        """The repeated questions whose answers conflict."""
        return tuple(each for each in self.repeated_questions if each.conflicting)


def take_census(questions: Iterable[BenchmarkQuestion]) -> Census:
    """Look for repeated identifiers within a data set, and for repeated questions in all of them."""
    by_id: dict[tuple[str, str], int] = {}
    by_text: dict[str, list[BenchmarkQuestion]] = {}
    for question in questions:
        name = question.dataset, question.id
        by_id[name] = by_id.get(name, 0) + 1
        by_text.setdefault(normal_question(question.question), []).append(question)
    return Census(
        tuple(RepeatedId(dataset, name, times) for (dataset, name), times in by_id.items() if times > 1),
        tuple(_repeated(same) for same in by_text.values() if len(same) > 1),
    )


def first_ones(questions: Sequence[BenchmarkQuestion]) -> set[int]:
    """The positions of questions that no earlier one is the same as."""
    first: dict[str, int] = {}
    for position, question in enumerate(questions):
        first.setdefault(normal_question(question.question), position)
    return set(first.values())


def _repeated(same: Sequence[BenchmarkQuestion]) -> RepeatedQuestion:
    normal = [{normal_answer(answer) for answer in question.answers} for question in same]
    conflicting = any(one.isdisjoint(other) for at, one in enumerate(normal) for other in normal[:at])
    first, answers = same[0], tuple(question.answers for question in same)
    return RepeatedQuestion(first.dataset, first.question, tuple(each.id for each in same), answers, conflicting)
