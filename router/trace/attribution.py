"""The role that lost a wrong answer, by the places of a run in which the right one stands."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from router.protocol import Passage, normal_answer
from router.protocol.scoring import holds
from router.trace.citation import Citation, citation, cite_answer
from router.trace.run import Run
from router.trace.values import Execution, SearchRecord, Trajectory

Loss = Literal["delegation", "retrieval", "execution", "reading", "answering"]
"""`execution`: an executor came to no report; `reading`: one was shown the answer, and did not report it."""
_CLOSED = ("yes", "no", "noanswer")
"""Answers that stand in any text."""


class Sighting(msgspec.Struct, frozen=True):
    """A place in which the right answer stands."""

    where: Literal["shown", "dropped", "report", "documents"]
    """`shown` to an executor; `dropped`: found, but its context had no room; `documents`: found by a search for it."""
    sub_query: int | None
    """The number of the executor; None for a main agent that searches by itself."""
    query: str = ""
    """Of the search that found it."""
    at: Citation | None = None
    """None for a report."""


class Attribution(msgspec.Struct, frozen=True):
    """A wrong answer, traced."""

    lost_by: Loss | None
    """None where the answer holds the right one, or where nobody has looked whether the documents do."""
    right: bool
    sightings: tuple[Sighting, ...]
    """The nearest to the answer first: reports, then passages that were shown, then others."""
    failed: tuple[int, ...] = ()
    """Executors that came to no report."""


def attribute(run: Run, golds: Sequence[str], known: Sequence[Passage] | None = None) -> Attribution | None:
    """Tell who lost an answer by where one of `golds` stands. `known`: passages of the documents that a search for the
    right answer finds; None where nobody has searched. None for a run that is no answer, or whose texts are not kept.

    A look at what there is: other than in a study, nothing is asked anew.
    """
    found = run.result
    if not isinstance(found, Trajectory) or run.redacted or not golds:
        return None
    plain = [gold for gold in golds if normal_answer(gold) not in _CLOSED]
    reports = [
        Sighting("report", number)
        for number, one in enumerate(found.executions)
        if any(holds([one.report.answer, *one.report.evidence], gold) for gold in golds)
    ]
    searched = [(None, found.searches), *((number, one.searches) for number, one in enumerate(found.executions))]
    seen = [each for number, searches in searched for each in _seen(number, searches, plain)]
    seen.sort(key=lambda each: each.where == "dropped")
    failed = tuple(number for number, one in enumerate(found.executions) if one.failed)
    right = any(holds([found.answer], gold) for gold in golds)
    beyond = tuple(Sighting("documents", None, at=at) for at in _cited(known or (), plain))
    lost_by: Loss | None = None
    if right:
        return Attribution(None, True, (*reports, *seen), failed)
    if reports:
        lost_by = "answering"
    elif seen:
        lost_by = "reading"
    elif failed:
        lost_by = "retrieval" if _all_of(found.executions, failed, "retrieval_failed") else "execution"
    elif known is not None:
        lost_by = "delegation" if beyond else "retrieval"
    return Attribution(lost_by, False, (*reports, *seen, *(() if reports or seen else beyond)), failed)


def _all_of(executions: Sequence[Execution], failed: Iterable[int], outcome: str) -> bool:
    return all(executions[number].outcome == outcome for number in failed)


def _seen(number: int | None, searches: Iterable[SearchRecord], golds: Sequence[str]) -> Iterable[Sighting]:
    for search in searches:
        for passages, where in ((search.shown, "shown"), (search.passages[len(search.shown) :], "dropped")):
            for at in _cited(passages, golds):
                yield Sighting("shown" if where == "shown" else "dropped", number, search.query, at)


def _cited(passages: Iterable[Passage], golds: Sequence[str]) -> Iterable[Citation]:
    """The passages that hold one of `golds`, each once, by the sentence that does, or else by their title."""
    for passage in passages:
        for gold in golds:
            if holds([f"{passage.title} {passage.text}"], gold):
                yield next(iter(cite_answer(gold, [passage])), citation(passage, passage.title))
                break
