"""Logged runs as questions to roll out again: which of them can be used, and why others cannot."""

from collections.abc import AsyncIterator, Collection, Sequence

import msgspec

from executor_sft.questions import normal_question
from executor_sft.rollouts import Question
from router.errors import NotFound, StoreFailed
from router.models.model import Usage
from router.runs.archive import Archive, RunFilter
from router.trace.call import Call
from router.trace.run import Feedback, Run
from router.trace.values import NOT_FOUND, Trajectory

_PAGE = 100
SOURCE = "logged"


class Counts(msgspec.Struct):
    """What was read, and what became of it."""

    read: int = 0
    """Runs that have ended, of kind answer, of tenants that let their runs train."""
    redacted: int = 0
    """Their texts were not kept."""
    unreadable: int = 0
    """Their traces are damaged, or written by another release."""
    evaluation: int = 0
    """Questions that must not be trained on."""
    right_answer_unknown: int = 0
    """No feedback tells the right answer, and there is no judge."""
    same_question: int = 0
    same_sub_queries: int = 0
    over_limit: int = 0
    selected: int = 0


class Selection(msgspec.Struct, frozen=True):
    """What `mine` rolls out; kept in its folder, as the store goes on changing."""

    questions: list[Question]
    """Each with the id of its run."""
    counts: Counts


async def select(
    log: Archive, wanted: RunFilter, evaluation: Collection[str], *, judge: bool, limit: int | None = None
) -> tuple[Selection, list[Call], list[Usage]]:
    """The logged questions that can be rolled out again, newest first (of those that are the same, the newest), the
    calls of their runs, and what other runs spent on reports that these used.

    `wanted` leaves out tenants that have opted out. `evaluation`: normalised questions to leave out. `judge`: whether
    somebody can tell right answers that no feedback tells. Raises `StoreFailed`.
    """
    counts, chosen, calls, shared = Counts(), list[Question](), list[Call](), list[Usage]()
    asked: set[str] = set()
    worked_on: set[frozenset[str]] = set()
    async for run in _ended(log, wanted, counts):
        normal, sub_queries = normal_question(run.request), _sub_queries(run)
        if run.redacted:
            counts.redacted += 1
        elif normal in evaluation:
            counts.evaluation += 1
        elif not (question := question_of(run, await log.feedback(run.id))).golds and not judge:
            counts.right_answer_unknown += 1
        elif normal in asked:
            counts.same_question += 1
        elif sub_queries and sub_queries in worked_on:
            counts.same_sub_queries += 1
        else:
            asked.add(normal)
            worked_on.add(sub_queries)
            if limit is not None and len(chosen) >= limit:
                counts.over_limit += 1
            else:
                chosen.append(question)
                calls += run.calls
                shared += _shared(run)
    counts.selected = len(chosen)
    return Selection(chosen, counts), calls, shared


def question_of(run: Run, feedback: Sequence[Feedback]) -> Question:
    """The run's question with what clients said: their right answers, and the run's own if the last of them who told
    liked it; otherwise that one is known to be wrong. Who likes an honest refusal has not told what would be right.
    """
    result = run.result
    answer = result.answer if isinstance(result, Trajectory) and result.outcome != "out_of_scope" else ""
    if answer == NOT_FOUND:
        answer = ""
    golds = [said.gold_answer for said in feedback if said.gold_answer.strip()]
    verdicts = [said.good for said in feedback if said.good is not None]
    liked = verdicts[-1] if verdicts and answer else None
    if liked:
        golds.append(answer)
    rejected = (answer,) if liked is False else ()
    return Question(run.id, run.request, tuple(dict.fromkeys(golds)), SOURCE, rejected)


async def _ended(log: Archive, wanted: RunFilter, counts: Counts) -> AsyncIterator[Run]:
    """The runs that have ended and can be read."""
    page = ""
    while True:
        listed = await log.list(wanted, _PAGE, page)
        for summary in listed.runs:
            if summary.status == "running":
                continue
            try:
                run = await log.load(summary.id)
            except NotFound:
                continue  # deleted meanwhile
            except StoreFailed as error:
                if not isinstance(error.__cause__, msgspec.DecodeError):
                    raise
                counts.read, counts.unreadable = counts.read + 1, counts.unreadable + 1
                continue
            counts.read += 1
            yield run
        if not (page := listed.next_page):
            return


def _shared(run: Run) -> list[Usage]:
    """What its executors' turns took where they were another run's; where only the first ones were, all of them."""
    executions = run.result.executions if isinstance(run.result, Trajectory) else ()
    outputs = [output for execution in executions if execution.shared_from for output in execution.conversation.outputs]
    return [output.usage for output in outputs if output.usage is not None]


def _sub_queries(run: Run) -> frozenset[str]:
    executions = run.result.executions if isinstance(run.result, Trajectory) else ()
    return frozenset(normal_question(execution.sub_query) for execution in executions)
