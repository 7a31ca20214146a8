"""Executor runs as in traces, made by the executor with a scripted model."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from executor_sft.dataset import TrainingRow, training_row
from executor_sft.filter import FilteredSample
from executor_sft.questions import Question
from executor_sft.rollout import Rollout, Sample, SubQueryRollout, Verdict
from router.models.model import TokenIds
from router.protocol import Passage
from router.search import Executor
from router.search.agent import ExecutorLimits
from router.trace import Execution, Trajectory
from serving.config.file import load_config, preset
from tests.router.deployment import lasting, role
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import Answer, ScriptedModel

MINI = Path(load_config(preset("mini")).engines["executor"].path)
PAGE = Passage("1", "Heat", "Heat is a film by Michael Mann.")
DIRECTORS = Passage("2", "Directors", "A director makes films.")
REPORT = "<answer>Michael Mann</answer><evidence>Heat is a film by Michael Mann.</evidence>"


def search(query: str) -> str:
    """Return a turn with a search."""
    return f"<search>{query}</search>"


def executed(
    *turns: Answer, sub_query: str = "Who made Heat?", limits: ExecutorLimits | None = None
) -> Execution:
    """Return the executor's work with a model that writes `turns`. All searches find the same page,
    except those for directors.
    """
    retriever = FixedRetriever({"Heat": [PAGE], "Michael Mann": [PAGE], "director": [DIRECTORS]})
    executor = Executor(
        role("execution", ScriptedModel(turns)), Unfiltered(retriever), limits or ExecutorLimits()
    )

    async def run() -> Execution:
        return await executor.run(sub_query, 0, lasting())

    return asyncio.run(run())


ONE = (search("Heat"), REPORT)
TWO = (search("director"), search("Heat"), REPORT)
RIGHT = Verdict(True, True, True)
WRONG = Verdict(False)
DOUBTED = Verdict(True, False, True)


def sample(turns: Sequence[Answer], verdict: Verdict, sub_query: str = "Who made Heat?") -> Sample:
    """Return a worker's execution and the answer that it leads to."""
    return Sample(executed(*turns, sub_query=sub_query), "Michael Mann", verdict)


def filtered(*executions: Execution) -> list[FilteredSample]:
    """Return executions in the filter's output."""
    return [
        FilteredSample("teacher_multi", f"q{number}", "", execution)
        for number, execution in enumerate(executions)
    ]


def row(prompt: tuple[int, ...], turn: tuple[int, ...]) -> TrainingRow:
    """Return a row of these tokens."""
    return training_row(TokenIds(prompt, turn), [], 0, 0, "teacher_single", "q0")


def rollout(
    *sub_queries: SubQueryRollout, question: str = "q1", source: str = "musique"
) -> Rollout:
    """Return a rollout of a question with sub-queries."""
    asked_question = Question(question, "Who made it?", ("Michael Mann",), source)
    return Rollout(asked_question, Trajectory("Michael Mann", "answered"), RIGHT, sub_queries)


def write_lines(path: Path, values: Sequence[object]) -> Path:
    """Write a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(value) + b"\n" for value in values))
    return path
