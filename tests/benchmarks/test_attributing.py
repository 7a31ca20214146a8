"""Who lost a wrong answer, worked out by an executor and an answerer that go by rule."""

from collections.abc import Callable, Sequence

import pytest

from benchmarks.datasets.question import BenchmarkQuestion, SubQuestion
from benchmarks.study.attributing import Attributor
from router.errors import UpstreamUnavailable
from router.models.model import Answer, Prompt, ScriptedModel
from router.protocol.evidence import Passage
from router.protocol.scoring import exact_match
from router.search.answerer import Answerer
from router.search.executor import Executor, ExecutorLimits
from tests.executor_sft.scripted_roles import answers, searches_once, searches_twice
from tests.router.deployment import lasting, role

STEPS = (SubQuestion("Who directed F1?", "MannF1"), SubQuestion("Where was #1 born?", "home of MannF1"))
QUESTION = BenchmarkQuestion("1", "Where?", ("home of MannF1",), "films", "test", decomposition=STEPS)


class Page:
    """Finds the same text for every query."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        return [[Passage("p", "A page", self._text)] for _ in queries]


def attributor(executes: Callable[[Prompt], Answer], page: str, answerer: Callable[[Prompt], Answer]) -> Attributor:
    async def right(question: BenchmarkQuestion, answer: str) -> bool:
        return exact_match(answer, question.answers)

    executor = Executor(role("execution", ScriptedModel(executes)), Page(page), ExecutorLimits())
    return Attributor(executor, Answerer(role("answer", ScriptedModel(answerer))), right)


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
    executes: Callable[[Prompt], Answer], page: str, answerer: Callable[[Prompt], Answer], lost_by: str
) -> None:
    """Each step is asked with what was found before it, so a wrong first report is not hidden by the gold one."""
    found = await attributor(executes, page, answerer).attribute(QUESTION, lasting())
    assert found.lost_by == lost_by
    if answerer is answers:
        right = lost_by == "delegation"
        assert found.with_gold_sub_queries == ("home of MannF1" if right else "home of Pacino")
        assert found.with_gold_reports == "home of MannF1"


async def test_an_endpoint_that_is_gone_loses_nothing() -> None:
    """That is an error, and says nothing of a role."""

    def fails(_prompt: Prompt) -> Answer:
        return UpstreamUnavailable("connection refused", endpoint="http://127.0.0.1:9/v1")

    with pytest.raises(UpstreamUnavailable):
        await attributor(fails, "It says so.", answers).attribute(QUESTION, lasting())
