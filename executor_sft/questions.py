"""Questions with their right answers, and the files of them that data sets and the mini world
write.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from executor_sft.jsonl import read_jsonl
from router.errors import BadConfig, BadRequest
from router.table import TableRequest, table_of
from router.table.assembly import Found, read_report
from router.table.cell_value import canonical, row_key
from router.table.schema import checked_rows, checked_schema
from router.trace import Execution
from router.trace.table import Ask, Column, RowKey, Schema
from router.trace.values import TableRun

_ANSWERS = ("answers", "golden_answers", "golds", "answer")
_ARTICLES = frozenset(("a", "an", "the"))
_NEAR = 0.8
"""The Jaccard index of two questions' letter triples from which on they count as one. A misspelt,
moved, added or missing word leaves more in common; other questions in the same words hardly ever
have as much: none of 3,000 for training with one of 4,125 of the paper's test sets, and 0.4 % of
five mini worlds' with one of five others'.
"""
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝѵвнмткгпαεορνυχικτβζημοսօհոսցℓıɑɡ",
    "aeopcyxijshdqwvbhmtkrnaeopvuxiktbzhmouohnugliag",
)
"""Letters of other alphabets, in lower case, that look like Latin ones: they disguise held-out
questions.
"""
Likeness = Literal["same", "near"]


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """A question with its right answers, or a table that is asked for."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Any of them is right; none where that is left to the judge."""
    source: str = ""
    """The data set that it is from, for the composition table; empty where that was not said."""
    rejected: tuple[str, ...] = ()
    """Answers that somebody has called wrong."""
    table: TableRequest | None = None
    """None where an answer is asked for."""
    rows: tuple[tuple[str, ...], ...] = ()
    """The right ones of the table, a value for each column, empty where there is none to be found;
    none where they are not known.
    """

    @property
    def key(self) -> str:
        """The same for those that count as one in training."""
        table = self.table and msgspec.json.encode((self.table.columns, self.table.rows)).decode()
        return question_key(self.text) + (table or "")


class _Asked(msgspec.Struct, frozen=True):
    text: str


class _Line(msgspec.Struct, frozen=True):
    """A line of a file; other keys are ignored."""

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
    rounds: list[list[_Asked]] = []
    """The sub-queries as the mini world writes them."""


class _TableLine(_Line, frozen=True):
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def read_questions(path: Path, *, tables: bool = False) -> tuple[list[Question], int]:
    """The questions of a file, and how many others are the same once normalised; the first one
    stays.

    A line has `text` or `question`, and `answer`, `answers`, `golden_answers` or `golds`; `id` and
    `source` (or `dataset`) may be missing. Of an id that comes twice, the later ones get a number.
    With `tables`, a line with `columns`, each with the fields of `Column`, asks for a table; its
    right `rows` may be missing. Raises `BadConfig`, naming file and line.
    """
    found: dict[str, Question] = {}
    ids: dict[str, int] = {}
    duplicates = 0
    for number, line, text in _lines(path, _TableLine if tables else _Line):
        given = next(filter(None, (getattr(line, name) for name in _ANSWERS)), ())
        golds = tuple(
            gold for gold in ([given] if isinstance(given, str) else given) if gold.strip()
        )
        try:
            columns, given_rows = (
                (line.columns, line.rows) if isinstance(line, _TableLine) else ((), ())
            )
            table = TableRequest(text, checked_schema(columns).columns) if columns else None
            rows = checked_rows(Schema(table.columns), given_rows) if table else ()
        except BadRequest as error:
            raise BadConfig(f"{path}:{number}: {error}") from None
        if not (golds or table):
            raise BadConfig(f"{path}:{number}: no right answer; give one of {', '.join(_ANSWERS)}.")
        name = str(number if line.id is None else line.id)
        one = Question(name, text, golds, line.source or line.dataset, (), table, rows)
        if one.key in found:
            duplicates += 1
            continue
        ids[name] = ids.get(name, 0) + 1
        unique = name if ids[name] == 1 else f"{name}#{ids[name]}"
        found[one.key] = msgspec.structs.replace(one, id=unique)
    if not found:
        raise BadConfig(f"{path}: holds no question; write one JSON object a line.")
    return list(found.values()), duplicates


class HeldOut:
    """Questions that nothing may be learnt from, and their sub-queries; recognised in other
    words, too.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._keys = {question_key(text): text for text in texts}
        self._joined = {_joined(text) for text in self._keys.values()}
        held = (*self._keys.values(), *self._joined)
        told = [(_triples(text), _numbers(text)) for text in held]
        self._common = Counter(triple for triples, _ in told for triple in triples)
        self._having: dict[str, list[tuple[frozenset[str], set[str]]]] = {}
        for triples, numbers in told:
            for triple in self._telling(triples):
                self._having.setdefault(triple, []).append((triples, numbers))

    @classmethod
    def read(cls, paths: Sequence[Path]) -> "HeldOut":
        """Those of several files, which need no answers. Raises `BadConfig`, naming file and
        line.
        """
        lines = [(line, text) for path in paths for _, line, text in _lines(path)]
        asked = (
            one
            for line, _ in lines
            for one in (*line.sub_queries, *(each.text for r in line.rounds for each in r))
        )
        return cls([*(text for _, text in lines), *asked])

    def likeness(self, text: str) -> Likeness | None:
        """Tell whether a text is one of them: the same by `question_key`, or nearly by its letter
        triples, unless each has a number that the other lacks: that is another question. Words in
        spaced letters are read without spaces.
        """
        joined = _joined(text)
        if question_key(text) in self._keys or joined in self._joined:
            return "same"
        words = _words(text)
        if 2 * sum(len(word) == 1 for word in words) > len(words):
            text = joined
        triples = _triples(text)
        numbers = _numbers(text)
        alike = (
            held
            for triple in self._telling(triples)
            for held, its in self._having.get(triple, ())
            if _NEAR <= len(held) / len(triples) <= 1 / _NEAR and (numbers <= its or its <= numbers)
        )
        return (
            "near"
            if any(len(triples & held) >= _NEAR * len(triples | held) for held in alike)
            else None
        )

    def _telling(self, triples: frozenset[str]) -> list[str]:
        """The rarest triples, so many that two texts that are nearly the same share one of them."""
        ordered = sorted(triples, key=lambda triple: (self._common[triple], triple))
        return ordered[: len(ordered) - math.ceil(_NEAR * len(ordered)) + 1]


def question_key(text: str) -> str:
    """The same for questions that count as one in training: width, case, accents, characters that
    are not seen, punctuation, symbols, articles and space make no difference.
    """
    return "".join(word for word in _words(text) if word not in _ARTICLES) or text


def _joined(text: str) -> str:
    """A text without spaces, as it is where its letters are spaced."""
    return "".join(_words(text))


def _words(text: str) -> list[str]:
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    plain = unicodedata.normalize(
        "NFKC", "".join(one for one in apart if not "\u0300" <= one <= "\u036f")
    )
    plain = plain.translate(_LOOK_ALIKES)
    kept = "".join(one for one in plain if one.isspace() or unicodedata.category(one)[0] in "LMN")
    return kept.split()


def _numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", " ".join(_words(text))))


def _triples(text: str) -> frozenset[str]:
    """Every three letters in a row of each word, its ends included; the order of words makes no
    difference.
    """
    return frozenset(
        f" {word} "[at : at + 3]
        for word in _words(text)
        if word not in _ARTICLES
        for at in range(len(word))
    )


def _lines(path: Path, kind: type[_Line] = _Line) -> Iterator[tuple[int, _Line, str]]:
    """The lines with their numbers and questions."""
    for number, line in read_jsonl(path, kind, "name a file with one JSON object a line"):
        text = (line.text or line.question or line.query).strip()
        if not text:
            raise BadConfig(f"{path}:{number}: no question; give it as text or question.")
        yield number, line, text


class TableReports:
    """The worth of reports on one table: by its right rows; of other rows, by what the table
    was filled with.
    """

    def __init__(self, question: Question, run: TableRun) -> None:
        table = table_of(run)
        self._schema = run.schema
        self._right = {row_key(run.schema, row): self._forms(row) for row in question.rows}
        filled = {row.key: self._forms([cell.value for cell in row.cells]) for row in table.rows}
        self.right: bool | None = filled == self._right if question.rows else None
        """Whether the table is the right one; None where that is not known."""
        self._settled: dict[RowKey, Sequence[str | None]] = {}
        for row in table.rows:
            keys = (row.key, *row.aliases)
            known = zip(row.cells, filled[row.key], strict=True)
            settled = [
                form if cell.state in ("given", "agreed", "single") else None
                for cell, form in known
            ]
            self._settled.update(dict.fromkeys(keys, settled))
            if right := next((self._right[key] for key in keys if key in self._right), None):
                self._right.update(dict.fromkeys(keys, right))

    def flaw(self, ask: Ask, execution: Execution) -> str | None:
        """The reason why a report is not worth learning from; None where it is: all that it says is
        right and in a passage that the executor was shown, and it says all that was asked for and
        is there. What nobody knows to be right has to be stated of its row, and undisputed.
        """
        found = read_report(self._schema, ask, execution).found
        flaws = (flaw for each in found if (flaw := self._flaw(ask, each)))
        return next(flaws, None) if found else "found nothing"

    def _flaw(self, ask: Ask, found: Found) -> str | None:
        right = self._right.get(found.key)
        if ask.row is None and self._right and not right:
            return "wrong answer"  # a row that does not belong
        values = right or self._settled.get(found.key) or [None] * len(found.claims)
        for column, claim, value in zip(self._schema.columns, found.claims, values, strict=True):
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
