"""The role that lost a wrong answer, by the places of a run in which the right one stands."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from router.folding import fold, sought
from router.protocol import Passage, normal_answer
from router.protocol.scoring import holds
from router.trace.citation import Citation, citation, read
from router.trace.run import Run
from router.trace.turns import DELEGATOR, Agent, work_of
from router.trace.values import SearchRecord, Trajectory

Loss = Literal[
    "documents", "delegation", "retrieval", "execution", "reading", "management", "answering"
]
"""`documents`: a search for the right answer finds none that holds it; `execution`: an executor
came to no report; `reading`: one was shown the answer, and did not report it; `management`: a
worker reported it, and its manager did not.
"""
_CLOSED = ("yes", "no", "noanswer")
"""Answers that stand in any text."""


class Sighting(msgspec.Struct, frozen=True):
    """A place in which the right answer stands."""

    where: Literal["shown", "dropped", "report", "documents"]
    """`shown` to an executor; `dropped`: found, but its context had no room; `documents`: found
    by a search for it.
    """
    agent: Agent | None
    """None for the documents."""
    query: str = ""
    """Of the search that found it."""
    at: Citation | None = None
    """None for a report."""


class Attribution(msgspec.Struct, frozen=True):
    """A wrong answer, traced."""

    lost_by: Loss | None
    """None where the answer holds the right one, or where nobody has looked whether the
    documents do.
    """
    right: bool
    sightings: tuple[Sighting, ...]
    """The nearest to the answer first: reports, then passages that were shown, then others."""
    failed: tuple[Agent, ...] = ()
    """Executors that came to no report."""


def attribute(
    run: Run, golds: Sequence[str], known: Sequence[Passage] | None = None
) -> Attribution | None:
    """Tell who lost an answer by where one of `golds` stands. `known`: passages of the documents
    that a search for the right answer finds; None where nobody has searched. None for a run that is
    no answer, or whose texts are not kept.

    A look at what there is: other than in a study, nothing is asked anew.
    """
    found = run.result
    if not isinstance(found, Trajectory) or run.redacted or not golds:
        return None
    folded = [
        wanted for gold in golds if normal_answer(gold) not in _CLOSED and (wanted := sought(gold))
    ]
    works = [(agent, execution) for agent, execution, _ in work_of(run) if execution]
    reported = [
        (agent, one)
        for agent, one in works
        if _any_holds([one.report.answer, *one.report.evidence], golds)
    ]
    sightings = [Sighting("report", agent) for agent, _ in reversed(reported)]
    for agent, searches in (
        (DELEGATOR, found.searches),
        *((agent, one.searches) for agent, one in works),
    ):
        sightings += [each for search in searches for each in _seen(agent, search, folded)]
    sightings.sort(key=lambda each: each.where == "dropped")
    failed = {
        agent: one.outcome for agent, one in works if one.failed and one.outcome != "escalated"
    }
    if _any_holds([found.answer], golds):
        return Attribution(None, True, tuple(sightings), tuple(failed))
    lost_by: Loss | None = None
    if reported:
        told = any(one is each for _, one in reported for each in found.executions)
        lost_by = "answering" if told else "management"
    elif sightings:
        lost_by = "reading"
    elif failed and {*failed.values()} == {"retrieval_failed"}:
        lost_by = "retrieval"
    else:
        sightings = [Sighting("documents", None, at=at) for at in _cited(known or (), folded)]
        if known is not None and folded and not sightings:
            lost_by = "documents"
        elif failed:
            lost_by = "execution"
        elif sightings:
            lost_by = "delegation"
    return Attribution(lost_by, False, tuple(sightings), tuple(failed))


def _any_holds(texts: Sequence[str], golds: Iterable[str]) -> bool:
    return any(holds(texts, gold) for gold in golds)


def _seen(agent: Agent, search: SearchRecord, golds: Sequence[str]) -> Iterable[Sighting]:
    for at in _cited(search.shown, golds):
        yield Sighting("shown", agent, search.query, at)
    for at in _cited(search.passages[len(search.shown) :], golds):
        yield Sighting("dropped", agent, search.query, at)


def _cited(passages: Iterable[Passage], golds: Sequence[str]) -> Iterable[Citation]:
    """The passages that hold one of `golds`, folded, each once, by the sentence that does, or
    else by their title.
    """
    for passage in passages:
        reading = read(passage.text)
        at = next((at for wanted in golds for at in reading.places(wanted)), None)
        whole = "".join((fold(passage.title), *reading.folded)).replace("  ", " ")
        if at is not None:
            yield citation(passage, reading.sentences[at])
        elif any(wanted in whole for wanted in golds):
            yield citation(passage, passage.title)
