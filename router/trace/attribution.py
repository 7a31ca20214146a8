"""Attribution of a wrong answer to the role that lost the right answer. To find the role, the run's
reports and passages are searched for the right answer.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from router.folding import fold, sought
from router.frozen import Frozen
from router.protocol import Passage, normal_answer
from router.protocol.scoring import CLOSED, holds
from router.trace.citation import Citation, citation, read
from router.trace.run import Run
from router.trace.turns import AgentId, work_of
from router.trace.values import SearchRecord, Trajectory

Loss = Literal[
    "documents", "delegation", "retrieval", "execution", "reading", "management", "answering"
]
"""Where the right answer was lost.

- `documents`: the documents do not contain it, as far as a search for it shows.
- `delegation`: the documents contain it, but no sub-query led to it.
- `retrieval`: no search found it, and all executors that failed did so because retrieval failed.
- `execution`: an executor ended without a report.
- `reading`: an executor's search found the right answer, but the executor did not report it.
- `management`: a worker reported it, but its manager did not.
- `answering`: a report contains it, but the answer does not.
"""


class Sighting(Frozen):
    """An occurrence of the right answer in the run or in the documents."""

    where: Literal["shown", "dropped", "report", "documents"]
    """`shown`: in a passage that an executor was shown. `dropped`: in a passage that a search
    found, but that the executor's context had no room for. `report`: in a report. `documents`: in a
    passage that only a separate search for the right answer found.
    """
    agent: AgentId | None
    """The agent that made the search or wrote the report; None for `documents`."""
    query: str = ""
    """The query that found the passage; empty for a report and for `documents`."""
    at: Citation | None = None
    """Citation of the sentence that contains the right answer; None for a report."""


class Attribution(Frozen):
    """The result of tracing a wrong answer to its cause."""

    lost_by: Loss | None
    """The part of the run in which the right answer was lost. None if the answer is right, or if
    the cause is unknown because the documents were not searched.
    """
    right: bool
    """True if the answer contains the right answer."""
    sightings: tuple[Sighting, ...]
    """Occurrences of the right answer, those closest to the answer first: in reports, then in
    passages that were shown, then in dropped passages.
    """
    failed: tuple[AgentId, ...] = ()
    """Executors that ended without a report."""


def attribute(
    run: Run,
    golds: Sequence[str],
    known: Sequence[Passage] | None = None,
) -> Attribution | None:
    """Find the role that lost the right answer. For that, look for the right answers `golds` in the
    answer, the reports and the passages of the run. Return None if `golds` is empty, if the run's
    result is not an answer, or if the run's texts are not stored. Calls no model.

    `known`: passages from a separate search of the documents for the right answer; None if there
    was no such search.
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
    retrieval_failed = set(failed.values()) == {"retrieval_failed"}
    right = _any_holds([result.answer], golds)
    if not (right or sightings or retrieval_failed):
        cited = _cited(known or (), folded)
        sightings = [Sighting("documents", None, at=citation) for citation in cited]

    lost_by: Loss | None = None
    if right:
        lost_by = None
    elif any(execution in result.executions for execution in reported):
        lost_by = "answering"
    elif reported:
        lost_by = "management"
    elif sightings and sightings[0].where != "documents":
        lost_by = "reading"
    elif retrieval_failed:
        lost_by = "retrieval"
    elif known is not None and folded and not sightings:
        lost_by = "documents"
    elif failed:
        lost_by = "execution"
    elif sightings:
        lost_by = "delegation"
    return Attribution(lost_by, right, tuple(sightings), tuple(failed))


def _any_holds(texts: Sequence[str], golds: Iterable[str]) -> bool:
    return any(holds(texts, gold) for gold in golds)


def _seen(
    agent: AgentId,
    searches: Iterable[SearchRecord],
    golds: Sequence[str],
) -> list[Sighting]:
    """Return the occurrences of the right answers `golds` in the passages of an agent's searches.
    `golds` must be folded (normalised, see `router.folding`).
    """
    sightings = list[Sighting]()
    for search in searches:
        shown = search.shown
        dropped = search.passages[len(shown) :]
        sightings += [
            *(Sighting("shown", agent, search.query, cited) for cited in _cited(shown, golds)),
            *(Sighting("dropped", agent, search.query, cited) for cited in _cited(dropped, golds)),
        ]
    return sightings


def _cited(passages: Iterable[Passage], golds: Sequence[str]) -> Iterable[Citation]:
    """Yield one citation for each passage that contains one of the folded `golds`. The citation
    quotes the sentence with the right answer, or the passage's title if no single sentence contains
    it.
    """
    for passage in passages:
        reading = read(passage.text)
        place = next((place for wanted in golds for place in reading.places(wanted)), None)
        text = "".join((fold(passage.title), *reading.folded)).replace("  ", " ")
        if place is not None:
            yield citation(passage, reading.sentences[place])
        elif any(wanted in text for wanted in golds):
            yield citation(passage, passage.title)
