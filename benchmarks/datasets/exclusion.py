"""Leaving out what a reference run answered without any search (TBSS 4.1, appendix E)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion
from executor_sft.jsonl import read_jsonl
from router.errors import BadCorpus
from router.protocol.sub_queries import normal_question


class _Ended(msgspec.Struct, frozen=True):
    """How one run of the reference ended; exported runs and results of a sweep both say it."""

    outcome: str
    question: str | None = None
    request: str | None = None
    """The question, in exported runs."""
    question_id: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Which questions of a list are left out."""

    source: Path
    positions: frozenset[int] = frozenset()
    """From 0, as in the paper's list."""
    names: frozenset[str] = frozenset()
    """Identifiers, or normalised questions."""

    def of(self, questions: Sequence[BenchmarkQuestion]) -> set[int]:
        """The positions that are left out of `questions`. Raises `BadCorpus` where some of them are not there."""
        named = {
            position: names
            for position, question in enumerate(questions)
            if (names := self.names & {question.id, normal_question(question.question)})
        }
        strange = [*map(str, sorted(self.positions - set(range(len(questions)))))]
        strange += sorted(self.names.difference(*named.values()))
        if strange:
            what = f"{len(strange)} of what it leaves out is not among the {len(questions)} questions"
            raise BadCorpus(f"{self.source}: {what} ({strange[0]}, …); it is of another list.")
        return {*self.positions, *named}


def read_exclusion(path: Path) -> Exclusion:
    """What a file leaves out: positions, one a line, or rows of a reference run, where their outcome is `no_search`.

    Of several runs of one question, the first counts. Raises `BadCorpus` or `BadConfig`, with file and line.
    """
    try:
        with path.open("rb") as file:
            jsonl = file.readline().lstrip().startswith(b"{")
    except OSError as error:
        raise BadCorpus(f"{path}: cannot be read ({error.strerror}); name positions, or a run's rows.") from error
    if not jsonl:
        return Exclusion(path, positions=frozenset(_positions(path)))
    outcomes: dict[str, str] = {}
    for number, row in read_jsonl(path, _Ended, "name rows of `rolegate bench sweep`"):
        text = row.request or row.question
        name = normal_question(text) if text else row.question_id or row.id
        if not name:
            raise BadCorpus(f"{path}:{number}: does not say which question; give question, request, or question_id.")
        outcomes.setdefault(name, row.outcome)
    return Exclusion(path, names=frozenset(name for name, outcome in outcomes.items() if outcome == "no_search"))


def _positions(path: Path) -> Iterator[int]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip().isdigit():
            raise BadCorpus(f"{path}:{number}: not a position; give one whole number a line, counted from 0.")
        yield int(line)
