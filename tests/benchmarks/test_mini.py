"""Figures of the benchmark on a mini world."""

import random
from pathlib import Path

import msgspec
import pytest
from rolegate.v1.answer_service_pb2 import AnswerResponse
from rolegate.v1.evidence_pb2 import SubQueryResult
from rolegate.v1.execution_service_pb2 import ExecuteResponse
from rolegate.v1.usage_pb2 import ROLE_DELEGATION, ROLE_EXECUTION, RoleUsage

from benchmarks.mini import QuestionRun, figures_of
from executor_sft.miniworld.export import export
from executor_sft.miniworld.questions import MiniQuestion
from executor_sft.miniworld.world import World


def asked(question: MiniQuestion, chance: random.Random) -> QuestionRun:
    """Return results of a question, some of them wrong."""

    def answer(right: str) -> str:
        return right if chance.random() < 0.7 else "wrong"

    results = [
        SubQueryResult(
            answer=answer(sub_query.report.answer),
            search_queries=["query"] * chance.randint(1, 3),
        )
        for sub_query in question.sub_queries
    ]
    usage = [
        RoleUsage(role=role, attempts=2, prompt_tokens=chance.randint(1, 99), completion_tokens=7)
        for role in (ROLE_DELEGATION, ROLE_EXECUTION)
    ]
    rounds = tuple(tuple(sub_query.text for sub_query in block) for block in question.rounds)
    if chance.random() < 0.3:
        rounds = rounds[:-1]
    return QuestionRun(
        question,
        AnswerResponse(answer=answer(question.answer), results=results, usage=usage),
        rounds,
        answer(question.answer),
        answer(question.answer),
        tuple(ExecuteResponse(result=result) for result in results),
    )


def test_figures_equal_the_recorded_ones(tmp_path: Path) -> None:
    """Results are fixed."""
    chance = random.Random(7)
    questions = export(World(3, "test"), tmp_path, 60)
    figures = msgspec.to_builtins(figures_of([asked(question, chance) for question in questions]))
    rows = {row.pop("group"): list(row.values()) for row in figures.pop("rows")}
    tokens = {row.pop("role"): list(row.values()) for row in figures.pop("tokens")}
    assert rows["all"] == pytest.approx([60, 41 / 60, 45 / 60, 37 / 60])
    assert rows["2-hop"] == pytest.approx([25, 0.64, 0.76, 0.52])
    assert rows["comparison"] == pytest.approx([21, 14 / 21, 14 / 21, 16 / 21])
    assert rows["needs a second search"] == pytest.approx([33, 22 / 33, 23 / 33, 19 / 33])
    assert tokens["delegation"] == pytest.approx([2.0, 2948 / 60, 7.0])
    assert tokens["execution"] == pytest.approx([2.0, 50.8, 7.0])
    assert figures == pytest.approx(
        {
            "delegation_turns": 142,
            "delegation_turns_right": 113 / 142,
            "executor_runs": 134,
            "searches_per_executor_run": 250 / 134,
            "two_search_share": 78 / 134,
            "single_search_reports_right": 65 / 88,
        }
    )
