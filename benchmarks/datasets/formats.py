"""The forms in which data sets are handed out, and what they say, in one form.

Original files may hold more than is read of them; the plain form, which is ours, may not.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from benchmarks.datasets.question import BenchmarkQuestion, SubQuestion
from executor_sft.miniworld.questions import SubQuery
from router.protocol.evidence import Passage


@dataclass(frozen=True, slots=True)
class Origin:
    """What a file's name and place say of its rows."""

    number: int
    """Of the row, from 1."""
    dataset: str
    split: str


Said = tuple[BenchmarkQuestion, tuple[Passage, ...]]
"""A question, its answers not yet looked at, and the paragraphs that its row brings along."""


class QuestionRow(Protocol):
    """A row of some form."""

    def said(self, origin: Origin) -> Said:
        """What it says."""
        ...


class ParagraphsRow(msgspec.Struct, frozen=True, rename={"id": "_id"}):
    """HotpotQA (Yang et al., 2018), and 2WikiMultihopQA (Ho et al., 2020) without the aliases of its version 1.1."""

    id: str
    question: str
    answer: str = ""
    type: str = ""
    supporting_facts: tuple[tuple[str, int], ...] = ()
    context: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def said(self, origin: Origin) -> Said:
        """What it says; the paragraphs are made of their sentences."""
        titles = {title for title, _ in self.supporting_facts}
        passages = tuple(_paragraph(title, " ".join(map(str.strip, text))) for title, text in self.context)
        supporting = _distinct(passage.id for passage in passages if passage.title in titles)
        question = BenchmarkQuestion(
            self.id, self.question, (self.answer,), origin.dataset, origin.split, supporting, type=self.type
        )
        return question, passages


class _MusiqueParagraph(msgspec.Struct, frozen=True):
    idx: int
    title: str
    paragraph_text: str
    is_supporting: bool = False


class _MusiqueStep(msgspec.Struct, frozen=True):
    question: str
    answer: str
    support: int | None = msgspec.field(default=None, name="paragraph_support_idx")


class MusiqueRow(msgspec.Struct, frozen=True):
    """MuSiQue (Trivedi et al., 2022). Of MuSiQue-Full, rows that have no answer say so."""

    id: str
    question: str
    answer: str = ""
    answer_aliases: tuple[str, ...] = ()
    answerable: bool = True
    paragraphs: tuple[_MusiqueParagraph, ...] = ()
    question_decomposition: tuple[_MusiqueStep, ...] = ()

    def said(self, origin: Origin) -> Said:
        """What it says; the steps of the decomposition in their order."""
        passages: dict[int | None, Passage] = {
            each.idx: _paragraph(each.title, each.paragraph_text) for each in self.paragraphs
        }
        question = BenchmarkQuestion(
            self.id,
            self.question,
            (self.answer, *self.answer_aliases) if self.answerable else (),
            origin.dataset,
            origin.split,
            _distinct(passages[each.idx].id for each in self.paragraphs if each.is_supporting),
            tuple(
                SubQuestion(step.question, step.answer, found.id if (found := passages.get(step.support)) else "")
                for step in self.question_decomposition
            ),
        )
        return question, tuple(passages.values())


class PopQARow(msgspec.Struct, frozen=True):
    """PopQA (Mallen et al., 2023): a table whose answers stand in one cell, as JSON."""

    id: str
    question: str
    possible_answers: str

    def said(self, origin: Origin) -> Said:
        """What it says."""
        answers = msgspec.json.decode(self.possible_answers, type=tuple[str, ...])
        return BenchmarkQuestion(self.id, self.question, answers, origin.dataset, origin.split), ()


class BamboogleRow(msgspec.Struct, frozen=True, rename="pascal"):
    """Bamboogle (Press et al., 2023), as CSV or JSON; its questions have no identifiers."""

    question: str
    answer: str

    def said(self, origin: Origin) -> Said:
        """What it says."""
        name = f"{origin.dataset}-{origin.number}"
        return BenchmarkQuestion(name, self.question, (self.answer,), origin.dataset, origin.split), ()


class FlashRAGRow(msgspec.Struct, frozen=True):
    """FlashRAG's JSON lines."""

    id: str
    question: str
    golden_answers: tuple[str, ...] = ()

    def said(self, origin: Origin) -> Said:
        """What it says."""
        return BenchmarkQuestion(self.id, self.question, self.golden_answers, origin.dataset, origin.split), ()


class PaperRow(msgspec.Struct, frozen=True):
    """The splits that were released with TBSS: one answer a question, and no passages."""

    id: str
    question: str
    dataset: str
    split: str
    answer: str = ""
    positive_doc_ids: tuple[str, ...] = ()

    def said(self, origin: Origin) -> Said:
        """What it says."""
        answers, supporting = (self.answer,), self.positive_doc_ids
        return BenchmarkQuestion(self.id, self.question, answers, self.dataset, self.split, supporting), ()


@dataclass(frozen=True, slots=True)
class MiniRow:
    """A question of the mini world, as it is exported."""

    id: str
    text: str
    type: str
    answer: str
    rounds: tuple[tuple[SubQuery, ...], ...]

    def said(self, origin: Origin) -> Said:
        """What it says; of a sub-query's passages, the last one answers it."""
        gold = [sub_query for block in self.rounds for sub_query in block]
        question = BenchmarkQuestion(
            self.id,
            self.text,
            (self.answer,),
            origin.dataset,
            origin.split,
            _distinct(passage for each in gold for passage in each.gold_passages),
            tuple(self._steps()),
            self.type,
        )
        return question, ()

    def _steps(self) -> Iterator[SubQuestion]:
        """Each round asks about what the last step before it found."""
        number, found = 0, ""
        for block in self.rounds:
            for each in block:
                text = each.text.replace(found, f"#{number}") if found else each.text
                yield SubQuestion(text, each.report.answer, each.gold_passages[-1])
            number, found = number + len(block), block[-1].report.answer


class PlainRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Our own form; `answer` will do for one of `answers`, and what a file does not say may be left out."""

    question: str
    id: str | int | None = None
    answers: tuple[str, ...] = ()
    answer: str = ""
    dataset: str = ""
    split: str = ""
    supporting_doc_ids: tuple[str, ...] = ()
    decomposition: tuple[SubQuestion, ...] = ()
    type: str = ""
    level: str = ""
    hops: int = 0
    supporting_titles: tuple[str, ...] = ()

    def said(self, origin: Origin) -> Said:
        """What it says."""
        dataset, split = self.dataset or origin.dataset, self.split or origin.split
        name = f"{dataset}-{origin.number}" if self.id is None else str(self.id)
        question = BenchmarkQuestion(
            name,
            self.question,
            (*self.answers, self.answer),
            dataset,
            split,
            self.supporting_doc_ids,
            self.decomposition,
            self.type,
        )
        return question, ()


def _paragraph(title: str, text: str) -> Passage:
    """Paragraphs have no identifiers, so that equal ones are told by what they say."""
    name = hashlib.sha1(f"{title}\n{text}".encode(), usedforsecurity=False).hexdigest()[:16]
    return Passage(name, title, text, document=name)


def _distinct(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))
