"""One rollout by a cell, and who lost a wrong answer, worked out by roles that go by rule."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks.datasets.question import BenchmarkQuestion, SubQuestion
from benchmarks.study.cells import cells_of
from benchmarks.study.plan import read_plan
from benchmarks.study.results import AnswerLoss
from benchmarks.study.rollout import Asker, attribute, lost_in_execution
from executor_sft.call_cache import CallCache
from executor_sft.runtime import open_runtime
from router.errors import UpstreamUnavailable
from router.models import Prompt, ScriptedModel
from router.models.model import Answer
from router.protocol import Passage, Report, exact_match
from router.protocol.scoring import holds
from router.search import Answerer, Executor
from router.search.agent import ExecutorLimits
from router.trace import Conversation, Execution
from router.trace.values import SearchRecord
from tests.benchmarks import test_sweep
from tests.executor_sft.scripted_roles import answers, searches_once, searches_twice
from tests.router.deployment import lasting, role

endpoint = test_sweep.endpoint
rollout_config = test_sweep.rollout_config
sweep = test_sweep.sweep
STEPS = (
    SubQuestion("Who directed F1?", "MannF1"),
    SubQuestion("Where was #1 born?", "home of MannF1"),
)
QUESTION = BenchmarkQuestion(
    "1", "Where?", ("home of MannF1",), "films", "test", decomposition=STEPS
)


class Page:
    """Finds the same text for every query."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [[Passage("p", "A page", self._text)] for _ in queries]


async def attributed(
    executes: Callable[[Prompt], Answer], page: str, answerer: Callable[[Prompt], Answer]
) -> AnswerLoss:
    async def right(answer: str) -> bool:
        return exact_match(answer, QUESTION.answers)

    executor = Executor(role("execution", ScriptedModel(executes)), Page(page), ExecutorLimits())
    return await attribute(
        QUESTION, executor, Answerer(role("answer", ScriptedModel(answerer))), right, lasting()
    )


@pytest.mark.parametrize(
    ("executes", "page", "answerer", "lost_by"),
    [
        (searches_twice, "It says so.", answers, "delegation"),
        (searches_once, "It says so.", answers, "retrieval"),
        (searches_once, "F1 is by MannF1.", answers, "reading"),
        (searches_twice, "It says so.", lambda _: "<answer>nowhere</answer>", "answering"),
        (searches_once, "It says so.", lambda _: "<answer>nowhere</answer>", "answering"),
    ],
)
async def test_who_lost_it(
    executes: Callable[[Prompt], Answer],
    page: str,
    answerer: Callable[[Prompt], Answer],
    lost_by: str,
) -> None:
    """Each step is asked with what was found before it, so a wrong first report is not hidden
    by the gold one.
    """
    found = await attributed(executes, page, answerer)
    assert found.lost_by == lost_by
    if answerer is answers:
        assert (
            found.with_gold_sub_queries
            == f"home of {'MannF1' if lost_by == 'delegation' else 'Pacino'}"
        )
        assert found.with_gold_reports == "home of MannF1"


async def test_an_endpoint_that_is_gone_loses_nothing() -> None:
    """That is an error, and says nothing of a role."""
    with pytest.raises(UpstreamUnavailable):
        await attributed(
            lambda _: UpstreamUnavailable("refused", endpoint="http://127.0.0.1:9/v1"), "", answers
        )


def executed(text: str, answer: str) -> Execution:
    passage = Passage("p", "A page", text)
    return Execution(
        "?", Report(answer, ("…",)), "reported", (SearchRecord("?", (passage,)),), Conversation(())
    )


@pytest.mark.parametrize(
    ("first", "second", "lost_by"),
    [
        (("Heat is by Mann.", "Pacino"), ("nothing", "nowhere"), "reading"),
        (("Heat is a film.", "Pacino"), ("Mann is from Chicago.", "nowhere"), "retrieval"),
        (("Heat is a film.", "Michael Mann"), ("Mann is from Chicago.", "nowhere"), "reading"),
        (("Heat is by Mann.", "Mann"), ("He is from somewhere.", "nowhere"), "retrieval"),
        (("Heat is by Mann.", "Mann"), ("Mann is from Chicago.", "Chicago"), "reading"),
    ],
)
def test_the_first_report_that_misses_tells(
    first: tuple[str, str], second: tuple[str, str], lost_by: str
) -> None:
    """Retrieval, where no passage that was shown holds the answer that it misses."""
    steps = (SubQuestion("Who made Heat?", "Mann"), SubQuestion("Where is #1 from?", "Chicago"))
    question = msgspec.structs.replace(QUESTION, decomposition=steps)
    assert lost_in_execution(question, [executed(*first), executed(*second)]) == lost_by


def test_the_supporting_passage_counts_as_shown() -> None:
    """The supporting passage counts with any words; in others, whole normalised words count."""
    question = msgspec.structs.replace(QUESTION, decomposition=(SubQuestion("?", "II", "p"),))
    assert lost_in_execution(question, [executed("the second", "I")]) == "reading"
    assert holds(["It is by Michael Mann, of course."], "the Michael Mann")
    assert not holds(["It is by Michaela Mann."], "Michael Mann")
    assert not holds(["anything"], "")


async def test_who_does_not_execute_needs_no_executor(sweep: Path, tmp_path: Path) -> None:
    """Its engine may be of another group of cells, and not be there."""
    cell = next(cell for cell in cells_of(read_plan(sweep)) if cell.topology == "no_retrieval")
    async with open_runtime(cell.config, lambda _step: None) as bench:
        roles = cell.config.roles
        elsewhere = msgspec.structs.replace(roles.execution, engine="elsewhere", base_url=None)
        roles = msgspec.structs.replace(roles, execution=elsewhere)
        cell = msgspec.structs.replace(
            cell, config=msgspec.structs.replace(cell.config, roles=roles)
        )
        with CallCache.open(tmp_path / "judgements.jsonl") as judgements:
            asker = Asker(
                cell, replace(bench, config=cell.config), None, {}, None, True, judgements, ()
            )
            row = await asker.ask(
                msgspec.structs.replace(QUESTION, question="Where was the director of F1 born?"),
                0,
                0,
            )
    assert {one.role for one in row.spent} == {"delegation"}
    assert row.executor is None
