"""Selection of questions: census, samples, and the paper's exclusion (TBSS 4.1)."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus
from router.protocol import normal_answer
from router.protocol.sub_queries import normal_question


class RepeatedId(msgspec.Struct, frozen=True):
    """Id that a data set uses more than once."""

    dataset: str
    id: str
    times: int


class RepeatedQuestion(msgspec.Struct, frozen=True):
    """Question that occurs more than once, ignoring case, extra spaces and closing punctuation."""

    dataset: str
    """Data set of its first occurrence."""
    question: str
    ids: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """Answers of each occurrence."""
    conflicting: bool
    """True if two occurrences have no answer in common."""


class Census(msgspec.Struct, frozen=True):
    """Findings, in the order of the questions."""

    repeated_ids: tuple[RepeatedId, ...]
    repeated_questions: tuple[RepeatedQuestion, ...]


def take_census(questions: Sequence[BenchmarkQuestion]) -> Census:
    """Find ids that are repeated within a data set, and questions that are repeated in any."""
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
    conflicting = any(first.isdisjoint(second) for first, second in combinations(normal, 2))
    return RepeatedQuestion(
        same[0].dataset,
        same[0].question,
        tuple(question.id for question in same),
        tuple(question.answers for question in same),
        conflicting,
    )


def sample(questions: Sequence[BenchmarkQuestion], limit: int, seed: int) -> list[int]:
    """Draw up to `limit` questions of each data set, independently of other data sets. Return their
    positions in order.
    """
    positions: dict[str, list[int]] = {}
    for position, question in enumerate(questions):
        positions.setdefault(question.dataset, []).append(position)
    drawn: list[int] = []
    for name, own in positions.items():
        drawn += random.Random(f"{seed} {name}").sample(own, min(limit, len(own)))
    return sorted(drawn)


class _ReferenceRow(msgspec.Struct, frozen=True):
    """Row of a reference run: an exported run, or a result of a sweep."""

    outcome: str
    question: str | None = None
    request: str | None = None
    """Question of an exported run."""
    question_id: str | None = None
    id: str | None = None


def excluded(path: Path, questions: Sequence[BenchmarkQuestion]) -> set[int]:
    """Return the positions in `questions` that a file excludes. It has one position per line, from
    0, as the paper's list, or the rows of a reference run, of which those without a search are
    excluded (TBSS, appendix E). Of several runs of one question, the first counts.

    Raises `BadCorpus` or `BadConfig` with file and line, and for entries that are not in
    `questions`.
    """
    try:
        with path.open("rb") as file:
            of_a_run = file.readline().lstrip().startswith(b"{")
    except OSError as error:
        raise BadCorpus(
            f"{path}: cannot be read ({error.strerror}); name a file of positions or rows."
        ) from error
    if of_a_run:
        names = _without_search(path)
        own = [{question.id, normal_question(question.question)} for question in questions]
        positions = {position for position, known in enumerate(own) if known & names}
        unknown = sorted(names.difference(*own))
    else:
        positions = set(_positions(path))
        unknown = list(map(str, sorted(positions.difference(range(len(questions))))))
    if unknown:
        raise BadCorpus(
            f"{path}: {len(unknown)} of its entries ({unknown[0]}, …) are not among the "
            f"{len(questions)} questions; use the file of these questions."
        )
    return positions


def _without_search(path: Path) -> set[str]:
    """Return the ids or normalised questions of runs without a search."""
    outcomes: dict[str, str] = {}
    for number, row in read_jsonl(path, _ReferenceRow, "name rows of `rolegate bench sweep`"):
        text = row.request or row.question
        name = normal_question(text) if text else row.question_id or row.id
        if not name:
            raise BadCorpus(
                f"{path}:{number}: names no question; add question, request, or question_id."
            )
        outcomes.setdefault(name, row.outcome)
    return {name for name, outcome in outcomes.items() if outcome == "no_search"}


def _positions(path: Path) -> Iterator[int]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip().isdigit():
            raise BadCorpus(
                f"{path}:{number}: not a position; write one whole number per line, counted from 0."
            )
        yield int(line)
