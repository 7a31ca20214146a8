"""The figures of the mini benchmark."""

from collections.abc import Callable, Sequence

import msgspec
from rolegate.v1 import usage_pb2

from benchmarks.mini_client import Asked
from router.protocol.scoring import exact_match


class Row(msgspec.Struct, frozen=True):
    """Exact match of one group of questions, shares of 1."""

    group: str
    questions: int
    exact_match: float
    with_gold_decomposition: float
    with_gold_reports: float


class RoleTokens(msgspec.Struct, frozen=True):
    """Tokens of one role for each question, means; the whole runs only."""

    role: str
    calls: float
    prompt_tokens: float
    completion_tokens: float


class MiniReport(msgspec.Struct, frozen=True):
    """Everything that was measured."""

    seed: int
    rows: list[Row]
    delegation_turns: int
    delegation_turns_right: float
    executor_runs: int
    searches_per_executor_run: float
    two_search_share: float
    single_search_reports_right: float
    """Executor reports with the gold answer, over gold sub-queries that one search answers."""
    tokens: list[RoleTokens]
    outside_confident: list[str] | None
    """Questions from outside that got an answer; None where none were asked."""


def report(seed: int, asked: Sequence[Asked], outside_confident: list[str] | None) -> MiniReport:
    """Count everything."""
    groups: dict[str, Callable[[Asked], bool]] = {
        "all": lambda _: True,
        "2-hop": lambda one: one.question.type == "2-hop",
        "3-hop": lambda one: one.question.type == "3-hop",
        "comparison": lambda one: one.question.type == "comparison",
        "one search suffices": lambda one: not one.question.needs_second_search,
        "needs a second search": lambda one: one.question.needs_second_search,
    }
    turns = [one.delegation_turns() for one in asked]
    searches = [len(result.search_queries) for one in asked for result in one.run.results]
    single = [
        exact_match(result.result.answer, [sub_query.report.answer])
        for one in asked
        for sub_query, result in zip(one.question.sub_queries, one.gold_results, strict=True)
        if len(sub_query.searches) == 1
    ]
    return MiniReport(
        seed=seed,
        rows=[_row(name, [one for one in asked if belongs(one)]) for name, belongs in groups.items()],
        delegation_turns=sum(of for _, of in turns),
        delegation_turns_right=_share(sum(right for right, _ in turns), sum(of for _, of in turns)),
        executor_runs=len(searches),
        searches_per_executor_run=_share(sum(searches), len(searches)),
        two_search_share=_share(sum(count >= 2 for count in searches), len(searches)),
        single_search_reports_right=_share(sum(single), len(single)),
        tokens=_tokens(asked),
        outside_confident=outside_confident,
    )


def _row(name: str, asked: Sequence[Asked]) -> Row:
    def share(answer: Callable[[Asked], str]) -> float:
        return _share(sum(exact_match(answer(one), [one.question.answer]) for one in asked), len(asked))

    return Row(
        name,
        len(asked),
        share(lambda one: one.run.answer),
        share(lambda one: one.gold_decomposition_answer),
        share(lambda one: one.gold_reports_answer),
    )


def _tokens(asked: Sequence[Asked]) -> list[RoleTokens]:
    totals: dict[str, list[int]] = {}
    for one in asked:
        for usage in one.run.usage:
            name = usage_pb2.Role.Name(usage.role).removeprefix("ROLE_").lower()
            row = totals.setdefault(name, [0, 0, 0])
            for place, count in enumerate((usage.attempts, usage.prompt_tokens, usage.completion_tokens)):
                row[place] += count
    return [RoleTokens(name, *(count / len(asked) for count in counts)) for name, counts in totals.items()]


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
