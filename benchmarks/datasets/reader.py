"""Read question files in the formats of published data sets. A file is a JSON array, JSON lines
(both may be compressed as `.gz`), or a table (`.csv`, `.xlsx`). Unknown fields are ignored.
"""

import base64
import codecs
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BufferedIOBase
from itertools import chain, cycle
from operator import xor
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.datasets.question import BenchmarkQuestion
from executor_sft.miniworld.questions import SubQuery
from router.errors import JSON_ERRORS, BadCorpus, explained
from router.frozen import Frozen
from router.protocol import Passage
from serving.documents.document import open_content
from serving.documents.given_rows import read_cells

_FETCH = "the file is incomplete or damaged; fetch it again"
_SPLITS = {"train": "train", "dev": "dev", "valid": "dev", "test": "test"}
"""For each word that the name of a file can contain: the split that it stands for."""


class Entry(Frozen):
    """One row of a question file."""

    where: str
    """Place of the row, for error messages: `FILE:LINE`, or `FILE, item 7` if the file is an array.
    """
    question: BenchmarkQuestion
    passages: tuple[Passage, ...]
    """Paragraphs that the row contains, as in HotpotQA. Most formats have none."""


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the rows of the file `path`, or of `questions.jsonl` in the folder `path`, one at a
    time.

    The format of each row is recognized by its fields (`FORMATS`). If a row does not name its data
    set, the name of the format or of the folder is used. If a row does not name its split, the
    split is taken from the file's name, or else is `test`.

    Raises `BadCorpus`, with file and line, for the first row that cannot be used, and for a file
    without rows.
    """
    file = path / "questions.jsonl" if path.is_dir() else path
    named = {
        _SPLITS[name] for name in re.findall(r"(?<![a-z])(train|dev|valid|test)", file.name.lower())
    }
    split = named.pop() if len(named) == 1 else "test"
    number = 0
    for number, (where, row) in enumerate(_rows(file), 1):
        if not isinstance(row, dict):
            raise BadCorpus(
                f"{where}: is not a JSON object; write one JSON object for each question."
            )
        known = next(name for name, (field, _) in FORMATS.items() if not field or field in row)
        try:
            plain, passages = FORMATS[known][1](row)
        except msgspec.DecodeError as error:
            raise BadCorpus(
                f"{where}: {explained(error)}; correct or remove it (the row was read as "
                f"{known}, the format that its fields suggest)."
            ) from None
        name = file.absolute().parent.name if known in ("flashrag", "plain") else known
        question = BenchmarkQuestion(
            f"{plain.dataset or name}-{number}" if plain.id is None else str(plain.id),
            plain.question.strip(),
            tuple(dict.fromkeys(filter(None, map(str.strip, (*plain.answers, plain.answer))))),
            plain.dataset or name,
            plain.split or split,
            plain.supporting_doc_ids,
            plain.type,
        )
        if not question.answers:
            raise BadCorpus(
                f"{where}: no answer is given, so the question cannot be scored; remove the row, "
                "or use a split with answers."
            )
        if not question.question:
            raise BadCorpus(f"{where}: no question is given; add it or remove the row.")
        yield Entry(where, question, passages)
    if not number:
        raise BadCorpus(f"{file}: has no questions; write one JSON object per line.")


class _CommonFields(Frozen):
    """Fields of the plain format. A row of another format is read into the same fields."""

    question: str
    id: str | int | None = None
    answers: tuple[str, ...] = ()
    answer: str = ""
    dataset: str = ""
    split: str = ""
    supporting_doc_ids: tuple[str, ...] = ()
    type: str = ""


class _Paragraphs(Frozen):
    context: tuple[tuple[str, tuple[str, ...]], ...]
    supporting_facts: tuple[tuple[str, int], ...] = ()


class _MusiqueParagraph(Frozen):
    title: str
    paragraph_text: str
    is_supporting: bool = False


class _Musique(Frozen):
    answer: str = ""
    answer_aliases: tuple[str, ...] = ()
    answerable: bool = True
    paragraphs: tuple[_MusiqueParagraph, ...] = ()


class _MiniWorld(Frozen):
    text: str
    rounds: tuple[tuple[SubQuery, ...], ...]


_Read = tuple[_CommonFields, tuple[Passage, ...]]
"""A row that was read: its question, and the paragraphs that it contains."""


def _flat(row: Mapping[str, Any], **renamed: str) -> _Read:
    """Read a row of a format without paragraphs. `renamed`: maps names of fields in the row to
    their names in the plain format.
    """
    return msgspec.convert(
        {renamed.get(name, name): value for name, value in row.items()}, _CommonFields
    ), ()


def _by_row(field: Any) -> Any:
    """Return the value of a field as a list of rows. Some sites publish a list of rows by column,
    as in `{"title": […], "sentences": […]}`. Other values are returned unchanged.
    """
    if not isinstance(field, dict):
        return field
    columns = [column if isinstance(column, list) else [] for column in field.values()]
    return [dict(zip(field, values, strict=False)) for values in zip(*columns, strict=False)]


def _pairs(field: Any) -> Any:
    return [(*row.values(),) for row in _by_row(field)] if isinstance(field, dict) else field


def _hotpotqa(row: Mapping[str, Any]) -> _Read:
    """Read a row of HotpotQA (Yang et al., 2018) or 2WikiMultihopQA (Ho et al., 2020; without the
    aliases of version 1.1). Rows may be as originally published, or by column (`_by_row`). Each
    paragraph is a list of sentences.
    """
    fields = {name: _pairs(row[name]) for name in ("supporting_facts", "context") if name in row}
    paragraphs = msgspec.convert(fields, _Paragraphs)
    gold = {title for title, _ in paragraphs.supporting_facts}
    passages = tuple(
        _paragraph(title, " ".join(map(str.strip, text))) for title, text in paragraphs.context
    )
    supporting = dict.fromkeys(passage.id for passage in passages if passage.title in gold)
    plain, _ = _flat(row, _id="id")
    return replace(plain, supporting_doc_ids=(*supporting,)), passages


def _musique(row: Mapping[str, Any]) -> _Read:
    """Read a row of MuSiQue (Trivedi et al., 2022). The unanswerable rows of MuSiQue-Full get no
    answers.
    """
    fields = msgspec.convert({name: _by_row(field) for name, field in row.items()}, _Musique)
    passages = [
        _paragraph(paragraph.title, paragraph.paragraph_text) for paragraph in fields.paragraphs
    ]
    supporting = dict.fromkeys(
        passage.id
        for passage, paragraph in zip(passages, fields.paragraphs, strict=True)
        if paragraph.is_supporting
    )
    plain = replace(
        _flat(row)[0],
        answers=(fields.answer, *fields.answer_aliases) if fields.answerable else (),
        answer="",
        supporting_doc_ids=(*supporting,),
    )
    return plain, (*passages,)


def _popqa(row: Mapping[str, Any]) -> _Read:
    """Read a row of PopQA (Mallen et al., 2023), in which the answers are a list, encoded as JSON
    in a string.
    """
    return _flat(
        {**row, "answers": msgspec.json.decode(msgspec.convert(row.get("possible_answers"), str))}
    )


def _browsecomp(row: Mapping[str, Any]) -> _Read:
    """Read a row of BrowseComp (Wei et al., 2025) or BrowseComp-ZH (Zhou et al., 2025). In a row
    with a `canary`, the texts are encrypted, and the canary is the key.
    """
    names = {"problem": "question", "Question": "question", "Answer": "answer"}
    texts = {names.get(name, name): row[name] for name in (*names, "answer") if name in row}
    if "canary" in row:
        texts = {name: _decrypted(text, str(row["canary"])) for name, text in texts.items()}
    return msgspec.convert(texts, _CommonFields), ()


def _decrypted(text: Any, canary: str) -> str:
    """Decrypt a text that was XORed with the repeated SHA-256 hash of `canary`, and then encoded in
    Base64. Raises `ValidationError` if it cannot be decrypted.
    """
    key = hashlib.sha256(canary.encode()).digest()
    try:
        encrypted = base64.b64decode(text, validate=True)
        return bytes(map(xor, encrypted, cycle(key))).decode()
    except (TypeError, ValueError) as error:
        raise msgspec.ValidationError(
            f"its texts cannot be decrypted with the key in its field `canary` ({error})"
        ) from None


def _mini_world(row: Mapping[str, Any]) -> _Read:
    """Read a question about a mini world, as `rolegate sft mini-world` writes it."""
    sub_queries = chain.from_iterable(msgspec.convert(row, _MiniWorld).rounds)
    gold = dict.fromkeys(chain.from_iterable(sub_query.gold_passages for sub_query in sub_queries))
    plain, _ = _flat(row, text="question")
    return replace(plain, supporting_doc_ids=(*gold,)), ()


def _paragraph(title: str, text: str) -> Passage:
    """Return a paragraph as a passage. Its id is a hash of title and text."""
    name = hashlib.sha1(f"{title}\n{text}".encode(), usedforsecurity=False).hexdigest()[:16]
    return Passage(name, title, text, document=name)


FORMATS: dict[str, tuple[str, Callable[[Mapping[str, Any]], _Read]]] = {
    "musique": ("question_decomposition", _musique),
    "2wikimultihopqa": ("evidences", _hotpotqa),
    "hotpotqa": ("context", _hotpotqa),
    "popqa": ("possible_answers", _popqa),
    "browsecomp": ("problem", _browsecomp),
    "browsecomp-zh": ("canary", _browsecomp),
    # Press et al., 2023; its rows have no ids
    "bamboogle": ("Question", partial(_flat, Question="question", Answer="answer")),
    "flashrag": ("golden_answers", partial(_flat, golden_answers="answers")),
    # Released with TBSS
    "paper": ("positive_doc_ids", partial(_flat, positive_doc_ids="supporting_doc_ids")),
    "miniworld": ("rounds", _mini_world),
    "plain": ("", _flat),
}
"""For each format: (field by which rows are recognized, function that reads a row). Formats are
tried in this order; the first one whose field is in the row is used. The last format fits every
row.
"""


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and the content of each row of a file, one at a time. Raises `BadCorpus` if
    the file cannot be read or is not JSON.
    """
    try:
        if path.suffix.lower() in (".csv", ".xlsx"):
            yield from _table_rows(path)
            return
        with open_content(path) as file:
            if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
                file.seek(0)
            begin = file.tell()
            first = file.read(4096).lstrip()[:1]
            file.seek(begin)
            if first:
                yield from (_array if first == b"[" else _lines)(path, file)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadCorpus(
            f"{path}: cannot be read ({error}); correct the path or the file."
        ) from error


def _table_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a CSV file, or of the first sheet of a workbook. The first row has the
    names of the fields. Raises `ValueError` for a malformed file.
    """
    rows = read_cells(path)
    header = next(rows, (0, list[str]()))[1]
    for number, cells in rows:
        yield f"{path}:{number}", dict(zip(header, cells, strict=False))


def _array(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a JSON array."""
    import ijson

    number = 0
    try:
        for row in ijson.items(file, "item", use_float=True):
            number += 1
            yield f"{path}, item {number}", row
    except ijson.JSONError as error:
        text = error.args[0] if error.args else ""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        reason = str(text).partition("\n")[0]
        raise BadCorpus(f"{path}: after item {number}: {reason}; {_FETCH}.") from None


def _lines(path: Path, file: BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """Yield the rows of JSON lines."""
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield f"{path}:{number}", msgspec.json.decode(line)
            except JSON_ERRORS as error:
                raise BadCorpus(
                    f"{path}:{number}: {explained(error)}; {_FETCH}, or write one JSON object for "
                    "each line."
                ) from None
