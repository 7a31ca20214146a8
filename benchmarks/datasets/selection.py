"""Choosing questions from data sets: findings of a census, samples, and the paper's exclusion
(TBSS 4.1).
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus
from router.protocol import normal_answer
from router.protocol.sub_queries import normal_question


class RepeatedId(msgspec.Struct, frozen=True):
    """An identifier that a data set uses more than once."""

    dataset: str
    id: str
    times: int


class RepeatedQuestion(msgspec.Struct, frozen=True):
    """A question that stands there more than once, but for case, surplus space and closing
    punctuation.
    """

    dataset: str
    """Of the first one."""
    question: str
    ids: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """Of each."""
    conflicting: bool
    """True where some two of them have no answer in common."""


class Census(msgspec.Struct, frozen=True):
    """Findings, in the order of the list."""

    repeated_ids: tuple[RepeatedId, ...]
    repeated_questions: tuple[RepeatedQuestion, ...]


def take_census(questions: Sequence[BenchmarkQuestion]) -> Census:
    """Look for repeated identifiers within a data set, and for repeated questions in all of
    them.
    """
    by_id = Counter((question.dataset, question.id) for question in questions)
    by_text: dict[str, list[BenchmarkQuestion]] = {}
    for question in questions:
        by_text.setdefault(normal_question(question.question), []).append(question)
    return Census(
        tuple(RepeatedId(*name, times) for name, times in by_id.items() if times > 1),
        tuple(_repeated(same) for same in by_text.values() if len(same) > 1),
    )


def _repeated(same: Sequence[BenchmarkQuestion]) -> RepeatedQuestion:
    normal = [{normal_answer(answer) for answer in question.answers} for question in same]
    conflicting = any(
        one.isdisjoint(other) for at, one in enumerate(normal) for other in normal[:at]
    )
    first = same[0]
    answers = tuple(question.answers for question in same)
    return RepeatedQuestion(
        first.dataset, first.question, tuple(each.id for each in same), answers, conflicting
    )


def sample(questions: Sequence[BenchmarkQuestion], most: int, seed: int) -> list[int]:
    """Draw the positions of up to `most` questions of each data set, in order; no data set
    changes another's draw.
    """
    positions: dict[str, list[int]] = {}
    for position, question in enumerate(questions):
        positions.setdefault(question.dataset, []).append(position)
    drawn = (
        random.Random(f"{seed} {name}").sample(each, min(most, len(each)))
        for name, each in positions.items()
    )
    return sorted(position for each in drawn for position in each)


class _Ended(msgspec.Struct, frozen=True):
    """The outcome of one run of the reference; exported runs and results of a sweep both say it."""

    outcome: str
    question: str | None = None
    request: str | None = None
    """The question, in exported runs."""
    question_id: str | None = None
    id: str | None = None


def excluded(path: Path, questions: Sequence[BenchmarkQuestion]) -> set[int]:
    """The positions in `questions` that a file leaves out. It holds positions from 0, one a line,
    as the paper's list does, or the rows of a reference run: those without any search are left out
    (TBSS, appendix E). Of several runs of one question, the first counts.

    Raises `BadCorpus` or `BadConfig`, with file and line, and where something of it is not among
    the questions.
    """
    try:
        with path.open("rb") as file:
            of_a_run = file.readline().lstrip().startswith(b"{")
    except OSError as error:
        raise BadCorpus(
            f"{path}: cannot be read ({error.strerror}); name positions, or a run's rows."
        ) from error
    if of_a_run:
        names = _without_search(path)
        own = [{question.id, normal_question(question.question)} for question in questions]
        found = {position for position, both in enumerate(own) if both & names}
        strange = sorted(names.difference(*own))
    else:
        found = set(_positions(path))
        strange = list(map(str, sorted(found.difference(range(len(questions))))))
    if strange:
        what = f"{len(strange)} of what it leaves out is not among the {len(questions)} questions"
        raise BadCorpus(f"{path}: {what} ({strange[0]}, …); it is of another list.")
    return found


def _without_search(path: Path) -> set[str]:
    """Identifiers, or normalised questions."""
    outcomes: dict[str, str] = {}
    for number, row in read_jsonl(path, _Ended, "name rows of `rolegate bench sweep`"):
        text = row.request or row.question
        name = normal_question(text) if text else row.question_id or row.id
        if not name:
            raise BadCorpus(
                f"{path}:{number}: does not say which question; give question, request, "
                "or question_id."
            )
        outcomes.setdefault(name, row.outcome)
    return {name for name, outcome in outcomes.items() if outcome == "no_search"}


def _positions(path: Path) -> Iterator[int]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip().isdigit():
            raise BadCorpus(
                f"{path}:{number}: not a position; give one whole number a line, counted from 0."
            )
        yield int(line)
