"""Questions with their right answers, and the files of questions that data sets and the mini world
write.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from executor_sft.jsonl import read_jsonl
from router.errors import BadConfig, BadRequest
from router.table import TableRequest, table_of
from router.table.assembly import RowClaims, read_report
from router.table.cell_value import canonical, row_key
from router.table.schema import checked_rows, checked_schema
from router.trace import Execution
from router.trace.table import Ask, Column, RowKey
from router.trace.values import TableRun

_ANSWERS = ("answers", "golden_answers", "golds", "answer")
_ARTICLES = frozenset(("a", "an", "the"))
_NEAR = 0.8
"""Min Jaccard index of two questions' letter triples at which they count as one. A misspelt, moved,
added or missing word leaves more in common; different questions in the same words hardly ever have
as much: none of 3,000 for training with one of 4,125 of the paper's test sets, and 0.4 % of five
mini worlds' with one of five others'.
"""
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝѵвнмткгпαεορνυχικτβζημοսօհոսցℓıɑɡ",
    "aeopcyxijshdqwvbhmtkrnaeopvuxiktbzhmouohnugliag",
)
"""Lower-case letters of other alphabets that look like Latin ones, and could disguise held-out
questions.
"""
Likeness = Literal["same", "near"]


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question with its right answers, or a request for a table."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Right answers, any of which will do; empty if the judge decides."""
    source: str = ""
    """Data set of the question; empty if unknown."""
    rejected: tuple[str, ...] = ()
    """Answers that feedback rated as wrong."""
    table: TableRequest | None = None
    """The table; None if an answer is asked for."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Right rows of the table, a value for each column, empty where none can be found. No rows if
    they are unknown.
    """

    @property
    def key(self) -> str:
        """Key of the question; equal keys count as one question in training."""
        table = self.table and msgspec.json.encode((self.table.columns, self.table.rows)).decode()
        return question_key(self.text) + (table or "")


class _QuestionText(msgspec.Struct, frozen=True):
    text: str


class _Line(msgspec.Struct, frozen=True):
    """A line of a file; unknown keys are ignored."""

    id: str | int | None = None
    text: str = ""
    question: str = ""
    query: str = ""
    answer: str | list[str] = ""
    answers: list[str] = []
    golden_answers: list[str] = []
    golds: list[str] = []
    source: str = ""
    dataset: str = ""
    sub_queries: list[str] = []
    rounds: list[list[_QuestionText]] = []
    """Sub-queries as the mini world writes them."""


class _TableLine(_Line, frozen=True):
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def read_questions(path: Path, *, tables: bool = False) -> tuple[list[Question], int]:
    """Return the questions of a file, and the number of duplicates, which are left out.

    A line has `text` or `question`, and `answer`, `answers`, `golden_answers` or `golds`. `id` and
    `source` (or `dataset`) are optional; repeated ids get a number. With `tables`, a line with
    `columns`, which have the fields of `Column`, asks for a table; its right `rows` are optional.
    Raises `BadConfig`, with file and line.
    """
    questions: dict[str, Question] = {}
    ids: Counter[str] = Counter()
    duplicates = 0
    for number, line, text in _lines(path, _TableLine if tables else _Line):
        answers = next(filter(None, (getattr(line, name) for name in _ANSWERS)), ())
        if isinstance(answers, str):
            answers = [answers]
        golds = tuple(answer for answer in answers if answer.strip())
        try:
            table, rows = _table_of(line, text)
        except BadRequest as error:
            raise BadConfig(f"{path}:{number}: {error}") from None
        if not (golds or table):
            raise BadConfig(f"{path}:{number}: no right answer; give one of {', '.join(_ANSWERS)}.")

        name = str(number if line.id is None else line.id)
        question = Question(
            name,
            text,
            golds,
            line.source or line.dataset,
            (),
            table,
            rows,
        )
        if question.key in questions:
            duplicates += 1
            continue
        ids[name] += 1
        if ids[name] > 1:
            question = msgspec.structs.replace(question, id=f"{name}#{ids[name]}")
        questions[question.key] = question
    if not questions:
        raise BadConfig(f"{path}: has no questions; write one JSON object per line.")
    return list(questions.values()), duplicates


def _table_of(line: _Line, text: str) -> tuple[TableRequest | None, tuple[tuple[str, ...], ...]]:
    """Return the table that a line asks for, if any, and its right rows. Raises `BadRequest`."""
    if not (isinstance(line, _TableLine) and line.columns):
        return None, ()
    schema = checked_schema(line.columns)
    return TableRequest(text, schema.columns), checked_rows(schema, line.rows)


class HeldOut:
    """Questions and sub-queries that must not be trained on. Recognizes them in other words, too.

    Two texts are near-duplicates if their sets of letter triples have a Jaccard index of at least
    `_NEAR`. An index from triples to held-out texts gives the number of shared triples of all texts
    together.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        by_key = {question_key(text): text for text in texts}
        self._keys = set(by_key)
        self._joined = {_joined(text) for text in by_key.values()}
        held = (*by_key.values(), *self._joined)
        self._numbers = [_numbers(text) for text in held]
        triples = [_triples(text) for text in held]
        self._sizes = np.array([len(own) for own in triples])
        places: defaultdict[str, list[int]] = defaultdict(list)
        for place, own in enumerate(triples):
            for triple in own:
                places[triple].append(place)
        self._places = {triple: np.array(own) for triple, own in places.items()}

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "HeldOut":
        """Read files of questions, which need no answers. Raises `BadConfig`, with file and
        line.
        """
        texts: list[str] = []
        for path in paths:
            for _, line, text in _lines(path):
                texts += [text, *line.sub_queries]
                texts += [sub_query.text for sub_query in chain.from_iterable(line.rounds)]
        return cls(texts)

    def likeness(self, text: str) -> Likeness | None:
        """Return `same` for a held-out text, by `question_key`, `near` for a near-duplicate, else
        None. If each of two texts has a number that the other lacks, they are different questions.
        """
        joined = _joined(text)
        if question_key(text) in self._keys or joined in self._joined:
            return "same"
        words = _words(text)
        if 2 * sum(len(word) == 1 for word in words) > len(words):
            text = joined  # most letters are separated by spaces
        triples = _triples(text)
        places = [self._places[triple] for triple in triples if triple in self._places]
        if not places:
            return None
        shared = np.bincount(np.concatenate(places), minlength=len(self._sizes))
        near = shared >= _NEAR * (self._sizes + len(triples) - shared)
        numbers = _numbers(text)
        comparable = (
            numbers <= self._numbers[place] or self._numbers[place] <= numbers
            for place in np.flatnonzero(near)
        )
        return "near" if any(comparable) else None


def question_key(text: str) -> str:
    """Return the key of a question. Width, case, accents, invisible characters, punctuation,
    symbols, articles and space make no difference.
    """
    return "".join(word for word in _words(text) if word not in _ARTICLES) or text


def _joined(text: str) -> str:
    """Return a text without spaces, to compare texts whose letters are separated by spaces."""
    return "".join(_words(text))


def _words(text: str) -> list[str]:
    """Return the words of a text, folded as `question_key` says."""
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    unaccented = "".join(letter for letter in apart if not "\u0300" <= letter <= "\u036f")
    plain = unicodedata.normalize("NFKC", unaccented).translate(_LOOK_ALIKES)
    kept = (
        letter for letter in plain if letter.isspace() or unicodedata.category(letter)[0] in "LMN"
    )
    return "".join(kept).split()


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", " ".join(_words(text))))


def _triples(text: str) -> frozenset[str]:
    """Return all letter triples of each word, with its ends; word order makes no difference."""
    triples: set[str] = set()
    for word in _words(text):
        if word not in _ARTICLES:
            triples.update(f" {word} "[at : at + 3] for at in range(len(word)))
    return frozenset(triples)


def _lines(path: Path, kind: type[_Line] = _Line) -> Iterator[tuple[int, _Line, str]]:
    """Yield the number, content and question of each line."""
    for number, line in read_jsonl(path, kind, "name a file with one JSON object per line"):
        text = (line.text or line.question or line.query).strip()
        if not text:
            raise BadConfig(f"{path}:{number}: no question; give it as text or question.")
        yield number, line, text


class TableReports:
    """Judges reports on one table by its right rows and, for other rows, by what the table was
    filled with.
    """

    def __init__(self, question: Question, run: TableRun) -> None:
        table = table_of(run)
        self._schema = run.schema
        self._right = {row_key(run.schema, row): self._forms(row) for row in question.rows}
        filled = {row.key: self._forms([cell.value for cell in row.cells]) for row in table.rows}
        self.right: bool | None = filled == self._right if question.rows else None
        """Whether the table is the right one; None if that is unknown."""
        self._settled: dict[RowKey, Sequence[str | None]] = {}
        for row in table.rows:
            keys = (row.key, *row.aliases)
            settled = [
                form if cell.state in ("given", "agreed", "single") else None
                for cell, form in zip(row.cells, filled[row.key], strict=True)
            ]
            self._settled.update(dict.fromkeys(keys, settled))
            if right := next((self._right[key] for key in keys if key in self._right), None):
                self._right.update(dict.fromkeys(keys, right))

    def flaw(self, ask: Ask, execution: Execution) -> str | None:
        """Return why a report is not to be learnt; None if it is.

        A good report has everything that was asked for and can be found. All its values are right
        and in a passage that the executor was shown. A value that is not known to be right must be
        stated of its row, and undisputed.
        """
        rows = read_report(self._schema, ask, execution).rows
        if not rows:
            return "found nothing"
        return next(filter(None, (self._flaw(ask, row) for row in rows)), None)

    def _flaw(self, ask: Ask, row: RowClaims) -> str | None:
        right = self._right.get(row.key)
        if ask.row is None and self._right and not right:
            return "wrong answer"  # the row does not belong to the table
        values = right or self._settled.get(row.key) or [None] * len(row.claims)
        for column, claim, value in zip(self._schema.columns, row.claims, values, strict=True):
            if claim is None:
                if column.name in ask.columns and value != "":
                    return "found nothing"
            elif value is None:
                return "right answer not known"
            elif claim.support == "unsupported" or (claim.support != "stated" and not right):
                return "evidence in no passage"
            elif claim.canonical != value and not column.key:
                return "wrong answer"
        return None

    def _forms(self, row: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(canonical, self._schema.columns, row))
