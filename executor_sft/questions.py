"""Questions with their right answers, and the files of them that data sets and the mini world write."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from executor_sft.jsonl import read_jsonl
from router.errors import BadConfig
from router.protocol import normal_answer

_ANSWERS = ("answers", "golden_answers", "golds", "answer")


class Question(msgspec.Struct, frozen=True):
    """A question with its right answers."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Any of them is right; none where that is left to the judge."""
    source: str = ""
    """The data set that it is from, for the composition table; empty where that was not said."""
    rejected: tuple[str, ...] = ()
    """Answers that somebody has called wrong."""


class _Line(msgspec.Struct, frozen=True):
    """A line of a file; other keys are ignored."""

    id: str | int | None = None
    text: str = ""
    question: str = ""
    answer: str | list[str] = ""
    answers: list[str] = []
    golden_answers: list[str] = []
    golds: list[str] = []
    source: str = ""
    dataset: str = ""


def read_questions(path: Path) -> tuple[list[Question], int]:
    """The questions of a file, and how many others are the same once normalised; the first one stays.

    A line has `text` or `question`, and `answer`, `answers`, `golden_answers` or `golds`; `id` and `source` (or
    `dataset`) may be missing. Of an id that comes twice, the later ones get a number. Raises `BadConfig`, naming file
    and line.
    """
    found: dict[str, Question] = {}
    ids: dict[str, int] = {}
    duplicates = 0
    for number, line, text in _lines(path):
        given = next(filter(None, (getattr(line, name) for name in _ANSWERS)), ())
        golds = tuple(gold for gold in ([given] if isinstance(given, str) else given) if gold.strip())
        if not golds:
            raise BadConfig(f"{path}:{number}: no right answer; give one of {', '.join(_ANSWERS)}.")
        if question_key(text) in found:
            duplicates += 1
            continue
        name = str(number if line.id is None else line.id)
        ids[name] = ids.get(name, 0) + 1
        unique = name if ids[name] == 1 else f"{name}#{ids[name]}"
        found[question_key(text)] = Question(unique, text, golds, line.source or line.dataset)
    if not found:
        raise BadConfig(f"{path}: holds no question; write one JSON object a line.")
    return list(found.values()), duplicates


def read_texts(paths: Sequence[Path]) -> set[str]:
    """The normalised questions of several files; they need no answers. Raises `BadConfig`, naming file and line."""
    return {question_key(text) for path in paths for _, _, text in _lines(path)}


def question_key(text: str) -> str:
    """The same for questions that count as one in training: case, punctuation, articles, space make no difference."""
    return normal_answer(text) or text


def _lines(path: Path) -> Iterator[tuple[int, _Line, str]]:
    """The lines with their numbers and questions."""
    for number, line in read_jsonl(path, _Line, "name a file with one JSON object a line"):
        text = (line.text or line.question).strip()
        if not text:
            raise BadConfig(f"{path}:{number}: no question; give it as text or question.")
        yield number, line, text
