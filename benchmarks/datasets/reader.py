"""Files of questions, read one row at a time."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.datasets.containers import Row, read_rows
from benchmarks.datasets.formats import (
    BamboogleRow,
    FlashRAGRow,
    MiniRow,
    MusiqueRow,
    Origin,
    PaperRow,
    ParagraphsRow,
    PlainRow,
    PopQARow,
    QuestionRow,
    Said,
)
from benchmarks.datasets.question import BenchmarkQuestion
from router.errors import BadCorpus
from router.protocol.evidence import Passage

FORMATS: dict[str, type[QuestionRow]] = {
    "2wikimultihopqa": ParagraphsRow,
    "hotpotqa": ParagraphsRow,
    "musique": MusiqueRow,
    "popqa": PopQARow,
    "bamboogle": BamboogleRow,
    "flashrag": FlashRAGRow,
    "paper": PaperRow,
    "miniworld": MiniRow,
    "plain": PlainRow,
}
_TOLD_BY = {
    "question_decomposition": "musique",
    "evidences": "2wikimultihopqa",
    "_id": "hotpotqa",
    "possible_answers": "popqa",
    "Question": "bamboogle",
    "golden_answers": "flashrag",
    "positive_doc_ids": "paper",
    "rounds": "miniworld",
}
_NAMED_BY_FOLDER = ("flashrag", "plain")
_SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "test": "test"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row that was read."""

    where: str
    """`file:line`, or `file, item 7`."""
    question: BenchmarkQuestion
    passages: tuple[Passage, ...]
    """The paragraphs that the row brings along, as HotpotQA's do; mostly none."""


def read_entries(
    path: Path, form: str | None = None, *, dataset: str | None = None, split: str | None = None
) -> Iterator[Entry]:
    """The rows of a file, or of `questions.jsonl` in a folder; `form`: one of `FORMATS`, None for what it looks like.

    `dataset` and `split`: for rows that do not say them; None for what the form, the file and its folder are called.
    Raises `BadCorpus` with file and line at the first row that cannot be used, and where there is none.
    """
    file = path / "questions.jsonl" if path.is_dir() else path
    number = 0
    for number, (where, row) in enumerate(read_rows(file), 1):
        form = form or _form(row)
        origin = Origin(number, dataset or _dataset(form, file), split or _split(file))
        try:
            question, passages = _said(row, form, origin)
        except msgspec.DecodeError as error:
            raise BadCorpus(f"{where}: {error}; this was read as {form}, --format names another form.") from None
        yield Entry(where, _checked(question, where), passages)
    if not number:
        raise BadCorpus(f"{file}: holds no question; write one JSON object a line.")


def _form(row: Row) -> str:
    return next((form for field, form in _TOLD_BY.items() if field in row), "plain")


def _said(row: Row, form: str, origin: Origin) -> Said:
    return msgspec.convert(row, FORMATS[form]).said(origin)


def _dataset(form: str, file: Path) -> str:
    return file.absolute().parent.name if form in _NAMED_BY_FOLDER else form


def _split(file: Path) -> str:
    named = {_SPLITS[name] for name in re.findall(r"(?<![a-z])(train|dev|valid|test)", file.name.lower())}
    return named.pop() if len(named) == 1 else "test"


def _checked(question: BenchmarkQuestion, where: str) -> BenchmarkQuestion:
    answers = tuple(dict.fromkeys(filter(None, map(str.strip, question.answers))))
    if not answers:
        raise BadCorpus(f"{where}: no answer, so that nothing can be scored; remove the row, or take another split.")
    if not question.question.strip():
        raise BadCorpus(f"{where}: no question; fill it in or remove the row.")
    return msgspec.structs.replace(question, answers=answers, question=question.question.strip())
