"""Which role lost a wrong answer, found by where in the run the right one occurs."""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from router.folding import fold, sought
from router.protocol import Passage, normal_answer
from router.protocol.scoring import CLOSED, holds
from router.trace.citation import Citation, citation, read
from router.trace.run import Run
from router.trace.turns import AgentId, work_of
from router.trace.values import SearchRecord, Trajectory

Loss = Literal[
    "documents", "delegation", "retrieval", "execution", "reading", "management", "answering"
]
"""`documents`: a search for the right answer finds none that contains it; `execution`: an executor
had no report; `reading`: an executor was shown the answer and did not report it; `management`: a
worker reported it, and its manager did not.
"""


class Sighting(msgspec.Struct, frozen=True):
    """An occurrence of the right answer."""

    where: Literal["shown", "dropped", "report", "documents"]
    """`shown` to an executor; `dropped`: found, but its context had no room; `documents`: found by
    a separate search for it.
    """
    agent: AgentId | None
    """None for the documents."""
    query: str = ""
    """The search that found it."""
    at: Citation | None = None
    """None for a report."""


class Attribution(msgspec.Struct, frozen=True):
    """The result of tracing a wrong answer."""

    lost_by: Loss | None
    """None if the answer contains the right one, or if the documents were not searched for it."""
    right: bool
    sightings: tuple[Sighting, ...]
    """Nearest to the answer first: reports, then passages that were shown, then dropped ones."""
    failed: tuple[AgentId, ...] = ()
    """Executors without a report."""


def attribute(
    run: Run,
    golds: Sequence[str],
    known: Sequence[Passage] | None = None,
) -> Attribution | None:
    """Return which role lost an answer, by where one of `golds` occurs; None for a run that is no
    answer, or whose texts are not stored.

    `known`: passages of the documents that a search for the right answer finds; None if nobody has
    searched. No model is called.
    """
    result = run.result
    if not isinstance(result, Trajectory) or run.redacted or not golds:
        return None
    folded = [sought(gold) for gold in golds if normal_answer(gold) not in CLOSED]
    folded = [gold for gold in folded if gold]

    works = [(agent, execution) for agent, execution, _ in work_of(run) if execution]
    reports = [
        (agent, execution)
        for agent, execution in works
        if _any_holds([execution.report.answer, *execution.report.evidence], golds)
    ]
    reported = [execution for _, execution in reports]
    seen = list[Sighting]()
    for agent, execution in works:
        seen += _seen(agent, execution.searches, folded)
    seen.sort(key=lambda sighting: sighting.where == "dropped")
    sightings = [*(Sighting("report", agent) for agent, _ in reversed(reports)), *seen]
    failed = {
        agent: execution.outcome
        for agent, execution in works
        if execution.failed and execution.outcome != "escalated"
    }
    if _any_holds([result.answer], golds):
        return Attribution(
            None,
            True,
            tuple(sightings),
            tuple(failed),
        )
    if not sightings and set(failed.values()) != {"retrieval_failed"}:
        cited = _cited(known or (), folded)
        sightings = [Sighting("documents", None, at=citation) for citation in cited]

    lost_by: Loss | None = None
    if any(execution in result.executions for execution in reported):
        lost_by = "answering"
    elif reported:
        lost_by = "management"
    elif sightings and sightings[0].where != "documents":
        lost_by = "reading"
    elif failed and set(failed.values()) == {"retrieval_failed"}:
        lost_by = "retrieval"
    elif known is not None and folded and not sightings:
        lost_by = "documents"
    elif failed:
        lost_by = "execution"
    elif sightings:
        lost_by = "delegation"
    return Attribution(
        lost_by,
        False,
        tuple(sightings),
        tuple(failed),
    )


def _any_holds(texts: Sequence[str], golds: Iterable[str]) -> bool:
    return any(holds(texts, gold) for gold in golds)


def _seen(
    agent: AgentId,
    searches: Iterable[SearchRecord],
    golds: Sequence[str],
) -> list[Sighting]:
    """Return the passages of an agent's searches that contain one of the folded `golds`."""
    sightings = list[Sighting]()
    for search in searches:
        for cited in _cited(search.shown, golds):
            sightings.append(
                Sighting(
                    "shown",
                    agent,
                    search.query,
                    cited,
                )
            )
        for cited in _cited(search.passages[len(search.shown) :], golds):
            sightings.append(
                Sighting(
                    "dropped",
                    agent,
                    search.query,
                    cited,
                )
            )
    return sightings


def _cited(passages: Iterable[Passage], golds: Sequence[str]) -> Iterable[Citation]:
    """Yield each passage that contains one of the folded `golds`, once: cited by the sentence that
    contains it, or else by the title.
    """
    for passage in passages:
        reading = read(passage.text)
        place = next((place for wanted in golds for place in reading.places(wanted)), None)
        text = "".join((fold(passage.title), *reading.folded)).replace("  ", " ")
        if place is not None:
            yield citation(passage, reading.sentences[place])
        elif any(wanted in text for wanted in golds):
            yield citation(passage, passage.title)
