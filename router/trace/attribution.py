"""The role that lost a wrong answer, by the places of a run in which the right one stands."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from router.protocol import Passage, normal_answer
from router.protocol.scoring import holds
from router.trace.citation import Citation, citation, cite_answer
from router.trace.run import Run
from router.trace.values import SearchRecord, Trajectory

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
    executions = tuple(enumerate(found.executions))
    reported = [number for number, one in executions if _any_holds([one.report.answer, *one.report.evidence], golds)]
    sightings = [Sighting("report", number) for number in reported]
    for number, searches in ((None, found.searches), *((number, one.searches) for number, one in executions)):
        sightings += [each for search in searches for each in _seen(number, search, plain)]
    sightings.sort(key=lambda each: each.where == "dropped")
    failed = tuple(number for number, one in executions if one.failed)
    if _any_holds([found.answer], golds):
        return Attribution(None, True, tuple(sightings), failed)
    lost_by: Loss | None = None
    if sightings:
        lost_by = "answering" if reported else "reading"
    elif failed:
        unfound = all(found.executions[number].outcome == "retrieval_failed" for number in failed)
        lost_by = "retrieval" if unfound else "execution"
    elif known is not None:
        sightings = [Sighting("documents", None, at=at) for at in _cited(known, plain)]
        lost_by = "delegation" if sightings else "retrieval"
    return Attribution(lost_by, False, tuple(sightings), failed)


def _any_holds(texts: Sequence[str], golds: Iterable[str]) -> bool:
    return any(holds(texts, gold) for gold in golds)


def _seen(number: int | None, search: SearchRecord, golds: Sequence[str]) -> Iterable[Sighting]:
    for at in _cited(search.shown, golds):
        yield Sighting("shown", number, search.query, at)
    for at in _cited(search.passages[len(search.shown) :], golds):
        yield Sighting("dropped", number, search.query, at)


def _cited(passages: Iterable[Passage], golds: Sequence[str]) -> Iterable[Citation]:
    """The passages that hold one of `golds`, each once, by the sentence that does, or else by their title."""
    for passage in passages:
        gold = next((gold for gold in golds if holds([f"{passage.title} {passage.text}"], gold)), None)
        if gold is not None:
            yield next(iter(cite_answer(gold, [passage])), citation(passage, passage.title))
