"""Files of questions, in the forms in which data sets are handed out: a JSON array or JSON lines,
or `.gz` of these. Fields that are not read are ignored.
"""

import codecs
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion, SubQuestion
from executor_sft.miniworld.questions import SubQuery
from router.errors import BadCorpus
from router.protocol import Passage
from serving.documents.document import open_content

_FETCH = "it was cut off or damaged, so fetch it again"
_SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "test": "test"}


Format = Literal[
    "2wikimultihopqa",
    "hotpotqa",
    "musique",
    "popqa",
    "bamboogle",
    "flashrag",
    "paper",
    "miniworld",
    "plain",
]


class Entry(msgspec.Struct, frozen=True):
    """A row that was read."""

    where: str
    """`file:line`, or `file, item 7`."""
    question: BenchmarkQuestion
    passages: tuple[Passage, ...]
    """The paragraphs that the row brings along, as HotpotQA's do; mostly none."""


def read_entries(
    path: Path, form: Format | None = None, *, dataset: str | None = None, split: str | None = None
) -> Iterator[Entry]:
    """Read the rows of a file, or of `questions.jsonl` in a folder, one at a time. `form`: one of
    `FORMATS`, None for what a row looks like. `dataset`, `split`: for rows that do not say them,
    instead of what form, file and folder say.

    Raises `BadCorpus` with file and line at the first row that cannot be used, and where there is
    none.
    """
    file = path / "questions.jsonl" if path.is_dir() else path
    named = {
        _SPLITS[name] for name in re.findall(r"(?<![a-z])(train|dev|valid|test)", file.name.lower())
    }
    split = split or (named.pop() if len(named) == 1 else "test")
    number = 0
    for number, (where, row) in enumerate(_rows(file), 1):
        known = form or _form_of(row)
        try:
            plain, passages = FORMATS[known][1](row)
        except msgspec.DecodeError as error:
            raise BadCorpus(
                f"{where}: {error}; this was read as {known}; name its form with --format."
            ) from None
        name = dataset or (file.absolute().parent.name if known in ("flashrag", "plain") else known)
        question = BenchmarkQuestion(
            f"{plain.dataset or name}-{number}" if plain.id is None else str(plain.id),
            plain.question.strip(),
            tuple(dict.fromkeys(filter(None, map(str.strip, (*plain.answers, plain.answer))))),
            plain.dataset or name,
            plain.split or split,
            plain.supporting_doc_ids,
            plain.decomposition,
            plain.type,
        )
        if not question.answers:
            raise BadCorpus(
                f"{where}: no answer, so that nothing can be scored; remove it, or take "
                "another split."
            )
        if not question.question:
            raise BadCorpus(f"{where}: no question; fill it in or remove the row.")
        yield Entry(where, question, passages)
    if not number:
        raise BadCorpus(f"{file}: holds no question; write one JSON object a line.")


class _Row(msgspec.Struct, frozen=True):
    """The common fields of all forms; an answer may stand alone, and what a file does not say
    may be left out.
    """

    question: str
    id: str | int | None = None
    answers: tuple[str, ...] = ()
    answer: str = ""
    dataset: str = ""
    split: str = ""
    supporting_doc_ids: tuple[str, ...] = ()
    decomposition: tuple[SubQuestion, ...] = ()
    type: str = ""


class _Paragraphs(msgspec.Struct, frozen=True):
    context: tuple[tuple[str, tuple[str, ...]], ...]
    supporting_facts: tuple[tuple[str, int], ...] = ()


class _MusiqueParagraph(msgspec.Struct, frozen=True):
    idx: int
    title: str
    paragraph_text: str
    is_supporting: bool = False


class _MusiqueStep(msgspec.Struct, frozen=True):
    question: str
    answer: str
    support: int | None = msgspec.field(default=None, name="paragraph_support_idx")


class _Musique(msgspec.Struct, frozen=True):
    answer: str = ""
    answer_aliases: tuple[str, ...] = ()
    answerable: bool = True
    paragraphs: tuple[_MusiqueParagraph, ...] = ()
    question_decomposition: tuple[_MusiqueStep, ...] = ()


class _MiniWorld(msgspec.Struct, frozen=True):
    text: str
    rounds: tuple[tuple[SubQuery, ...], ...]


_Read = tuple[_Row, tuple[Passage, ...]]


def _flat(row: Mapping[str, Any], **renamed: str) -> _Read:
    """A row without paragraphs; `renamed`: fields of the plain form by the form's own names of
    them.
    """
    return msgspec.convert(
        {renamed.get(name, name): value for name, value in row.items()}, _Row
    ), ()


def _by_row(field: Any) -> Any:
    """Return the rows of a field that hubs hand out by column, as `{"title": […], "sentences":
    […]}`; any other field as it is.
    """
    if not isinstance(field, dict):
        return field
    columns = [column if isinstance(column, list) else [] for column in field.values()]
    return [dict(zip(field, values, strict=False)) for values in zip(*columns, strict=False)]


def _pairs(field: Any) -> Any:
    return [(*row.values(),) for row in _by_row(field)] if isinstance(field, dict) else field


def _hotpotqa(row: Mapping[str, Any]) -> _Read:
    """HotpotQA (Yang et al., 2018), and 2WikiMultihopQA (Ho et al., 2020) without the aliases of
    its version 1.1, as published or in the form of hubs; a paragraph is its sentences.
    """
    fields = {name: _pairs(row[name]) for name in ("supporting_facts", "context") if name in row}
    said = msgspec.convert(fields, _Paragraphs)
    gold = {title for title, _ in said.supporting_facts}
    passages = tuple(
        _paragraph(title, " ".join(map(str.strip, text))) for title, text in said.context
    )
    supporting = dict.fromkeys(passage.id for passage in passages if passage.title in gold)
    plain, _ = _flat(row, _id="id")
    return msgspec.structs.replace(plain, supporting_doc_ids=(*supporting,)), passages


def _musique(row: Mapping[str, Any]) -> _Read:
    """MuSiQue (Trivedi et al., 2022). Of MuSiQue-Full, rows that have no answer say so."""
    said = msgspec.convert({name: _by_row(field) for name, field in row.items()}, _Musique)
    passages = {each.idx: _paragraph(each.title, each.paragraph_text) for each in said.paragraphs}
    ids: dict[int | None, str] = {number: passage.id for number, passage in passages.items()}
    plain = msgspec.structs.replace(
        _flat(row)[0],
        answers=(said.answer, *said.answer_aliases) if said.answerable else (),
        answer="",
        supporting_doc_ids=(
            *dict.fromkeys(ids[each.idx] for each in said.paragraphs if each.is_supporting),
        ),
        decomposition=tuple(
            SubQuestion(step.question, step.answer, ids.get(step.support, ""))
            for step in said.question_decomposition
        ),
    )
    return plain, (*passages.values(),)


def _popqa(row: Mapping[str, Any]) -> _Read:
    """PopQA (Mallen et al., 2023), whose answers are JSON in a string."""
    return _flat(
        {**row, "answers": msgspec.json.decode(msgspec.convert(row.get("possible_answers"), str))}
    )


def _mini_world(row: Mapping[str, Any]) -> _Read:
    """A question of the mini world as it is exported; rounds ask about what steps before them
    found, most often the last one, and of a sub-query's passages the last one answers it.
    """
    said = msgspec.convert(row, _MiniWorld)
    steps: list[SubQuestion] = []
    for block in said.rounds:
        found = [*enumerate((step.answer for step in steps), 1)][::-1]
        for each in block:
            text = each.text
            for number, answer in found:
                text = text.replace(answer, f"#{number}")
            steps.append(SubQuestion(text, each.report.answer, each.gold_passages[-1]))
    gold = dict.fromkeys(
        passage for block in said.rounds for each in block for passage in each.gold_passages
    )
    plain, _ = _flat(row, text="question")
    return msgspec.structs.replace(plain, supporting_doc_ids=(*gold,), decomposition=(*steps,)), ()


def _paragraph(title: str, text: str) -> Passage:
    """A passage; paragraphs have no identifiers, so that equal ones are told by their text."""
    name = hashlib.sha1(f"{title}\n{text}".encode(), usedforsecurity=False).hexdigest()[:16]
    return Passage(name, title, text, document=name)


FORMATS: dict[Format, tuple[str, Callable[[Mapping[str, Any]], _Read]]] = {
    "musique": ("question_decomposition", _musique),
    "2wikimultihopqa": ("evidences", _hotpotqa),
    "hotpotqa": ("context", _hotpotqa),
    "popqa": ("possible_answers", _popqa),
    # Press et al., 2023; without ids
    "bamboogle": ("Question", partial(_flat, Question="question", Answer="answer")),
    "flashrag": ("golden_answers", partial(_flat, golden_answers="answers")),
    # Released with TBSS
    "paper": ("positive_doc_ids", partial(_flat, positive_doc_ids="supporting_doc_ids")),
    "miniworld": ("rounds", _mini_world),
    "plain": ("", _flat),
}
"""Each form with a field that no form further down has, which tells it, and its reader."""


def _form_of(row: Mapping[str, Any]) -> Format:
    return next((name for name, (field, _) in FORMATS.items() if field in row), "plain")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row and where it stands, one in memory at a time. Raises `BadCorpus`."""
    try:
        with open_content(path) as file:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            begin = file.tell()
            first = file.read(4096).lstrip()[:1]
            file.seek(begin)
            if first:
                yield from (_array if first == b"[" else _lines)(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise BadCorpus(f"{path}: cannot be read ({error}); name a file with questions.") from error


def _array(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, dict[str, Any]]]:
    import ijson

    number = 0
    try:
        for row in ijson.items(file, "item", use_float=True):
            number += 1
            yield f"{path}, item {number}", _object(row, f"{path}, item {number}")
    except ijson.JSONError as error:
        said = error.args[0] if error.args else ""
        reason = (
            said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        ).partition("\n")[0]
        raise BadCorpus(f"{path}: after item {number}: {reason}; {_FETCH}.") from None


def _lines(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", _object(msgspec.json.decode(line), f"{path}:{number}")
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BadCorpus(
                    f"{path}:{number}: {error}; {_FETCH}, or write one JSON object a line."
                ) from None


def _object(row: Any, where: str) -> dict[str, Any]:
    if isinstance(row, dict):
        return row
    raise BadCorpus(f"{where}: not an object; each question is one.")
