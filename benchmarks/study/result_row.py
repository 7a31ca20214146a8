"""One rollout of one question by one cell of a sweep: a line of `results.jsonl`."""

from typing import Literal

import msgspec

from benchmarks.study.provenance import Provenance
from router.trace.call import RoleTotal

Loss = Literal["delegation", "retrieval", "reading", "answering"]


class Attribution(msgspec.Struct, frozen=True):
    """Which role lost a wrong answer: the first one whose right work would have saved it.

    With gold sub-queries, the answer is right: delegation. With gold reports, it is: the executor's work on the gold
    sub-queries; retrieval where no passage that it was shown holds the first answer that it missed, or else reading. If
    not even that helps: answering.
    """

    lost_by: Loss
    with_gold_sub_queries: str
    """The answer then."""
    with_gold_reports: str


class Scored(msgspec.Struct, frozen=True):
    """What a report needs of a row."""

    cell: str
    topology: str
    backbone: str
    executor: str | None
    max_turns: int
    """Its executor's limit (K in TBSS 4.1)."""
    dataset: str
    question_id: str
    rollout: int
    """From 0."""
    answer: str
    outcome: str
    exact_match: bool
    f1: float
    folded_exact_match: bool
    """Punctuation of all scripts and accents apart; never in the place of the official score."""
    folded_f1: float
    judged: bool
    accepted: bool | None
    """What the judge says; None where it was not asked, or its reply could not be read."""
    rounds: int
    """In which sub-queries were dispatched."""
    searches: tuple[int, ...]
    """Of each executor run."""
    failed: int
    """Executor runs without a report."""
    spent: tuple[RoleTotal, ...]
    """On the answer, by role and model."""
    checking: tuple[RoleTotal, ...]
    """On judging and attributing it; what is remembered from elsewhere was paid for there."""
    latency_s: float | None
    """Of the whole run, with as many others beside it as the sweep allows; None where calls of it had been made before,
    by a sweep that was killed or for the same sub-query, so that they took no time again."""
    attribution: Attribution | None
    """None where it was right, where nobody asked, and where no gold decomposition is known."""

    @property
    def wrong(self) -> bool:
        """By the judge, where its reply could be read, or else by exact match."""
        return not (self.exact_match if self.accepted is None else self.accepted)

    @property
    def executor_tokens(self) -> int:
        """Prompt and completion tokens of its executor calls."""
        return sum(one.prompt_tokens + one.completion_tokens for one in self.spent if one.role == "execution")


class Sourced(msgspec.Struct, frozen=True):
    """What made a row."""

    cell: str
    provenance: Provenance


class ResultRow(Scored, frozen=True, kw_only=True):
    """Everything."""

    question: str
    golds: tuple[str, ...]
    checked: tuple[str, ...]
    """Keys of the calls in `checking`, each of which stands in one row only."""
    provenance: Provenance
