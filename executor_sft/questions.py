"""Lists of questions with their right answers, as data sets and the mini world write them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from executor_sft.rollouts import Question
from router.errors import BadConfig
from router.protocol.scoring import normal_answer

_GOLDS = ("answers", "golden_answers", "golds", "answer")


class _Row(msgspec.Struct, frozen=True):
    """A line; what else it holds is left alone."""

    id: str | int | None = None
    text: str | None = None
    question: str | None = None
    answer: str | list[str] | None = None
    answers: list[str] | None = None
    golden_answers: list[str] | None = None
    golds: list[str] | None = None
    source: str | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionList:
    """What a file holds."""

    questions: list[Question]
    """No two of them are the same once normalised; the first one stays."""
    duplicates: int


def read_questions(path: Path) -> list[Question]:
    """The questions of `read_question_list`."""
    return read_question_list(path).questions


def read_question_list(path: Path) -> QuestionList:
    """Read JSON lines, each with `text` or `question`, and `answer`, `answers`, `golden_answers` or `golds`; `id` and
    `source` (or `dataset`) may be missing. Raises `BadConfig`, naming file and line.
    """
    found: dict[str, Question] = {}
    rows = 0
    for number, row in _rows(path):
        rows += 1
        golds = next((_listed(given) for name in _GOLDS if (given := getattr(row, name))), ())
        if not golds:
            raise BadConfig(f"{path}:{number}: no right answer; give one of {', '.join(_GOLDS)}.")
        text = _text(row, path, number)
        name = str(number) if row.id is None else str(row.id)
        found.setdefault(normal_question(text), Question(name, text, golds, row.source or row.dataset or ""))
    if not found:
        raise BadConfig(f"{path}: holds no question; write one JSON object a line.")
    return QuestionList(_named_apart(found.values()), rows - len(found))


def read_texts(paths: Sequence[Path]) -> set[str]:
    """The normalised questions of several files; they need no answers. Raises `BadConfig`, naming file and line."""
    return {normal_question(_text(row, path, number)) for path in paths for number, row in _rows(path)}


def normal_question(text: str) -> str:
    """Two questions are the same where this is: case, punctuation, articles and surplus space make no difference."""
    return normal_answer(text) or text


def _rows(path: Path) -> Iterator[tuple[int, _Row]]:
    """The lines with their numbers, empty ones left out."""
    decoder = msgspec.json.Decoder(_Row)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line := line.removeprefix(b"\xef\xbb\xbf").strip():
                    try:
                        yield number, decoder.decode(line)
                    except (msgspec.DecodeError, UnicodeDecodeError) as error:
                        raise BadConfig(f"{path}:{number}: {error}; write one JSON object a line.") from None
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a file of JSON lines.") from None


def _text(row: _Row, path: Path, number: int) -> str:
    text = (row.text or row.question or "").strip()
    if not text:
        raise BadConfig(f"{path}:{number}: no question; give it as text or question.")
    return text


def _listed(given: str | list[str]) -> tuple[str, ...]:
    """Without empty ones."""
    return tuple(gold for gold in ([given] if isinstance(given, str) else given) if gold.strip())


def _named_apart(questions: Iterable[Question]) -> list[Question]:
    """Public data sets use some identifiers twice; the later ones get a number."""
    seen: dict[str, int] = {}
    named: list[Question] = []
    for question in questions:
        count = seen[question.id] = seen.get(question.id, 0) + 1
        named.append(question if count == 1 else msgspec.structs.replace(question, id=f"{question.id}#{count}"))
    return named
