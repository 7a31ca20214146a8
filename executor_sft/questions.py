"""Questions with right answers: read them from files, recognize held-out questions, and judge
reports on tables.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from executor_sft.jsonl import numbered_jsonl
from router.errors import BadConfig, BadRequest
from router.frozen import Frozen
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
"""Two questions count as near-duplicates if the Jaccard index of their letter triples is at least
this number.

Questions that differ only in a misspelt, moved, added or missing word have a higher index.
Different questions in similar words hardly ever have it. Of 3,000 training questions, none had it
with any of the 4,125 test questions of the TBSS paper. In five mini worlds, 0.4 % of the questions
had it with a question about another five worlds.
"""
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕһԁԛԝѵвнмткгпαεορνυχικτβζημοսօհոսցℓıɑɡ",
    "aeopcyxijshdqwvbhmtkrnaeopvuxiktbzhmouohnugliag",
)
"""Maps lower-case letters of other alphabets to the Latin letters that they look like, because such
letters could disguise held-out questions.
"""
Likeness = Literal["same", "near"]
"""Relation of a text to the held-out texts. `same`: equal to one of them. `near`: near-duplicate of
one of them.
"""


class Question(Frozen, omit_defaults=True):
    """A question with its right answers, or a request for a table with its right rows."""

    id: str
    text: str
    golds: tuple[str, ...]
    """Right answers; an answer must match one of them. Empty if unknown; then the judge decides."""
    source: str = ""
    """Data set of the question; empty if unknown."""
    rejected: tuple[str, ...] = ()
    """Answers that feedback rates as wrong."""
    table: TableRequest | None = None
    """Request for a table; None if the question asks for an answer."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Right rows of the table, with a value for each column. A value is empty if it cannot be found
    anywhere. There are no rows if the right rows are unknown.
    """
    group: str = ""
    """Name of the question's group; empty for no group. Questions of a group, such as those about
    one world, are not independent.
    """

    @property
    def key(self) -> str:
        """Key of the question. Questions with equal keys count as the same question in training."""
        table = self.table and msgspec.json.encode((self.table.columns, self.table.rows)).decode()
        return question_key(self.text) + (table or "")


class _QuestionText(Frozen):
    text: str


class _Line(Frozen):
    """A line of a file of questions, with all keys that are read; several keys have the same
    meaning. Unknown keys are ignored.
    """

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
    group: str = ""
    sub_queries: list[str] = []
    rounds: list[list[_QuestionText]] = []
    """Sub-queries of each round, in the form in which `rolegate sft mini-world` writes them."""


class _TableLine(_Line):
    """A line that may ask for a table."""

    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


class _SeedLine(_TableLine):
    """A line that may be a seed (a text about which a model writes a question)."""

    title: str = ""


def read_questions(
    path: Path,
    *,
    tables: bool = False,
    seeds: bool = False,
    rows_needed: bool = False,
) -> tuple[list[Question], int]:
    """Return the questions of a file of JSON lines, without duplicates, and the number of
    duplicates.

    A line has the question under `text`, `question` or `query`, and the right answers under
    `answer`, `answers`, `golden_answers` or `golds`. `id`, `source` (or `dataset`) and `group` are
    optional. If an id occurs again, a number is added to it.

    With `tables`, a line with `columns` asks for a table. Each column has the fields of `Column`;
    the right `rows` are optional unless `rows_needed`. With `seeds` as well, a line without
    `columns` needs no right answer. It is a seed, such as a document with its `title`.

    Raises `BadConfig`, with file and line, for an invalid line and for a file without questions.
    """
    questions = dict[str, Question]()
    ids: Counter[str] = Counter()
    duplicates = 0
    kind = _SeedLine if seeds else _TableLine
    for number, line, text in _lines(path, kind if tables else _Line):
        answers = next(filter(None, (getattr(line, name) for name in _ANSWERS)), ())
        if isinstance(answers, str):
            answers = [answers]
        golds = tuple(answer for answer in answers if answer.strip())
        try:
            table, rows = _table_of(line, text)
        except BadRequest as error:
            raise BadConfig(f"{path}:{number}: {error}") from None
        if table and rows_needed and not rows:
            raise BadConfig(f"{path}:{number}: no right rows are given; add them under `rows`.")
        if not (golds or table or seeds):
            raise BadConfig(
                f"{path}:{number}: no right answer is given; add one under any of the keys "
                f"{', '.join(_ANSWERS)}."
            )

        name = str(number if line.id is None else line.id)
        question = Question(
            name,
            text,
            golds,
            line.source or line.dataset,
            (),
            table,
            rows,
            line.group,
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
    """Return the table that a line asks for, with its right rows; (None, ()) if the line asks for
    no table. Raises `BadRequest` if columns or rows are invalid.
    """
    if not (isinstance(line, _TableLine) and line.columns):
        return None, ()
    schema = checked_schema(line.columns)
    return TableRequest(text, schema.columns), checked_rows(schema, line.rows)


def select_questions(
    path: Path,
    exclude: Sequence[Path],
    limit: int | None = None,
    *,
    rows_needed: bool = False,
) -> tuple[list[Question], dict[str, int]]:
    """Return the first `limit` questions and tables of the file `path`, without held-out ones. Also
    return counts of lines: under `read` all lines, and under every other key the lines that were
    left out for this reason.

    `exclude`: files of held-out questions. `rows_needed`: True if every table needs right rows.
    Raises the same errors as `read_questions`.
    """
    listed, duplicates = read_questions(path, tables=True, rows_needed=rows_needed)
    held_out = HeldOut.read(exclude)
    likeness = [held_out.likeness(question.text) for question in listed]
    kept = [question for question, like in zip(listed, likeness, strict=True) if like is None]
    selected = kept[:limit]
    counts = {
        "read": len(listed) + duplicates,
        "duplicates": duplicates,
        "excluded": likeness.count("same"),
        "nearly_excluded": likeness.count("near"),
        "over_limit": len(kept) - len(selected),
    }
    return selected, counts


class HeldOut:
    """Questions and sub-queries that must not be trained on. Texts with small changes are
    recognized, too.

    Two texts are near-duplicates if the Jaccard index of their sets of letter triples is at least
    `_NEAR`. To compare a text with all held-out texts in one pass, an index maps each triple to the
    held-out texts that contain it.
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
        """Read held-out questions from files of JSON lines. If a line has sub-queries, they are
        held out, too. No answers are needed. Raises `BadConfig`, with file and line, for an invalid
        line.
        """
        texts = list[str]()
        for path in paths:
            for _, line, text in _lines(path):
                texts += [text, *line.sub_queries]
                texts += [sub_query.text for sub_query in chain.from_iterable(line.rounds)]
        return cls(texts)

    def likeness(self, text: str) -> Likeness | None:
        """Return `same` if a held-out text has the same `question_key`, `near` if `text` is a
        near-duplicate of a held-out text, else None.

        Two texts are not near-duplicates if each of them has a number that the other lacks, however
        similar their words are.
        """
        joined = _joined(text)
        if question_key(text) in self._keys or joined in self._joined:
            return "same"
        words = _words(text)
        if 2 * sum(len(word) == 1 for word in words) > len(words):
            text = joined  # most of its letters are separated by spaces
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
    """Return the key by which questions are compared. Texts that differ only in case, width of
    letters, accents, invisible characters, punctuation, symbols, articles or spaces have the same
    key.
    """
    return "".join(word for word in _words(text) if word not in _ARTICLES) or text


def _joined(text: str) -> str:
    """Return the words of a text without the spaces between them, to recognize a text whose letters
    are separated by spaces.
    """
    return "".join(_words(text))


def _words(text: str) -> list[str]:
    """Return the words of a text in a normal form, without differences in case, width of letters,
    accents, invisible characters, punctuation and symbols. Articles are kept.
    """
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    unaccented = "".join(letter for letter in apart if not "\u0300" <= letter <= "\u036f")
    plain = unicodedata.normalize("NFKC", unaccented).translate(_LOOK_ALIKES)
    kept = (
        letter for letter in plain if letter.isspace() or unicodedata.category(letter)[0] in "LMN"
    )
    return "".join(kept).split()


def _numbers(text: str) -> set[str]:
    """Return the numbers in a text."""
    return set(re.findall(r"\d+", " ".join(_words(text))))


def _triples(text: str) -> frozenset[str]:
    """Return the letter triples of all words but articles. In a triple, a space marks the beginning
    or the end of a word.
    """
    triples = set[str]()
    for word in _words(text):
        if word not in _ARTICLES:
            triples.update(f" {word} "[at : at + 3] for at in range(len(word)))
    return frozenset(triples)


def _lines(path: Path, kind: type[_Line] = _Line) -> Iterator[tuple[int, _Line, str]]:
    """Yield the line number, the decoded line and the question's text for each line of a file.
    Raises `BadConfig` for an invalid line, and for a line without a question.
    """
    for number, line in numbered_jsonl(path, kind, "each line must be one JSON object"):
        text = (line.text or line.question or line.query).strip()
        if isinstance(line, _SeedLine) and not line.columns:
            text = f"{line.title}\n{text}".strip()
        if not text:
            raise BadConfig(
                f"{path}:{number}: has no question; add it under the key text or question."
            )
        yield number, line, text


class TableReports:
    """Judges the reports of executors on one table. Reported values are compared with the right
    rows. If a row's right values are unknown, the undisputed values of the filled table are used
    instead.
    """

    def __init__(self, question: Question, run: TableRun) -> None:
        """Prepare the comparison. `question`: the request for the table, with its right rows if
        known. `run`: the run that filled the table.
        """
        table = table_of(run)
        self._schema = run.schema
        self._right = {row_key(table.schema, row): self._forms(row) for row in question.rows}
        filled = {row.key: self._forms([cell.value for cell in row.cells]) for row in table.rows}
        self.right: bool | None = filled == self._right if question.rows else None
        """True if the filled table equals the right rows; None if these are unknown."""
        self._settled = dict[RowKey, Sequence[str | None]]()
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
        """Return the reason not to train an executor on its report; None if the report is good.

        A good report has the right value of every requested cell; values that cannot be found
        anywhere may be missing. Each value is in a passage that the executor was shown.

        If the right values are unknown, the values of the filled table are used instead. Then each
        reported value must also be undisputed in the filled table, and a passage must state the
        value about its row.

        `ask`: the rows or cells that the executor had to find. `execution`: the executor's work,
        with its report.
        """
        reading = read_report(self._schema, ask, execution)
        if reading.unsupported:
            return "evidence in no passage"
        if not reading.rows:
            return "found nothing"
        return next(filter(None, (self._flaw(ask, row) for row in reading.rows)), None)

    def _flaw(self, ask: Ask, row: RowClaims) -> str | None:
        right = self._right.get(row.key)
        if ask.row is None and self._right and not right:
            return "wrong answer"  # the row does not belong to the table
        values = right or self._settled.get(row.key) or ()
        padded = chain(values, repeat(None))  # hidden columns are last, and have no right values
        for column, claim, value in zip(self._schema.columns, row.claims, padded, strict=False):
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
        """Return the canonical forms of a row's values. Equal forms are the same value."""
        return tuple(map(canonical, self._schema.columns, row))
