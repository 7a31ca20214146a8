"""Executors answer the same questions as often as requested; bad options are refused."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web

from executor_sft.__main__ import run
from executor_sft.evaluate import Answered, answers, evaluation_of, paired_difference
from executor_sft.runtime import BASE, adapter_name, named_adapters, open_runtime
from router.errors import BadConfig, UpstreamRefused
from router.protocol import Report
from router.trace import Conversation, Execution
from router.trace.values import SearchRecord
from serving.config.config import SearchConfig
from serving.config.file import load_config
from tests.executor_sft.scripted_roles import questions
from tests.executor_sft.test_runtime import ROLE, config
from tests.openai_server import MODEL, OpenAIServer, fails, says, serving
from tests.router.deployment import STOP
from tests.router.vllm_adapters import adapter_server


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[OpenAIServer]:
    """A backbone that stops immediately, with a config for it."""
    async with serving() as server:
        server.plays(says(STOP))
        config(
            tmp_path,
            role=ROLE.replace("http://127.0.0.1:9/v1", server.base_url).replace(
                '"m"', f'"{MODEL}"'
            ),
        )
        yield server


async def test_every_rollout_is_a_new_sample(endpoint: OpenAIServer, tmp_path: Path) -> None:
    """Seeds differ even at the config's temperature; a cached answer does not count as another
    rollout.
    """
    async with open_runtime(
        load_config(tmp_path / "config.toml"), print, cache=tmp_path / "calls"
    ) as bench:
        answered = await answers(bench, [BASE], questions(2), rollouts=3)
    assert len(answered[BASE]) == 6
    assert len({body["seed"] for body in endpoint.bodies}) == 6


async def test_delegators_are_compared_with_each_executor(tmp_path: Path) -> None:
    """An adapter delegates under its name; all calls count in its tokens."""
    called_models: list[str] = []

    async def stops(request: web.Request) -> web.StreamResponse:
        called_models.append((await request.json())["model"])
        return await says(STOP)(request)

    async with serving(recording=False) as server:
        server.plays(stops)
        config(tmp_path, role=ROLE.replace("http://127.0.0.1:9/v1", server.base_url))
        async with open_runtime(load_config(tmp_path / "config.toml"), print) as bench:
            executors = [BASE, "executor-000001"]
            delegators = [BASE, "trained-1"]
            answered = await answers(
                bench, executors, questions(1), delegators=delegators, rollouts=1
            )
    assert list(answered) == [
        BASE,
        f"{BASE}, trained-1",
        "executor-000001",
        "executor-000001, trained-1",
    ]
    assert called_models == ["m", "trained-1"] * 2
    assert [(one.executor_tokens, one.tokens) for (one,) in answered.values()] == [(0, 18)] * 4


async def test_adapters_are_loaded_where_their_role_is_served(tmp_path: Path) -> None:
    """A delegator's adapter is loaded at the delegator's endpoint, an executor's at the executor's;
    the config's own model is no adapter.
    """
    folders = [
        adapter(tmp_path / name / "trained", name.encode()) for name in ("executor", "delegator")
    ]
    for folder in folders:
        (folder / "adapter_config.json").write_text('{"r": 8}')
    async with adapter_server() as execution, adapter_server() as delegation:
        config(tmp_path)
        file = tmp_path / "config.toml"
        for role, server in (("delegation", delegation), ("execution", execution)):
            head, name, rest = file.read_text().partition(f"[roles.{role}]")
            file.write_text(head + name + rest.replace("http://127.0.0.1:9/v1", server.base_url, 1))
        executors, delegators = (named_adapters([BASE, str(folder)]) for folder in folders)
        async with open_runtime(
            load_config(file), print, adapters=executors, delegators=delegators
        ):
            loaded = [dict(server.adapters) for server in (execution, delegation)]
        assert loaded == [{adapter_name(folder): str(folder)} for folder in folders]
        assert execution.adapters == delegation.adapters == {}


async def test_a_refusing_endpoint_s_error_is_shown(endpoint: OpenAIServer, tmp_path: Path) -> None:
    """The number of refused questions does not matter."""
    endpoint.plays(fails(403, "not you"))
    async with open_runtime(load_config(tmp_path / "config.toml"), print) as bench:
        with pytest.raises(UpstreamRefused, match="not you"):
            await answers(bench, [BASE], questions(3), rollouts=1)


def adapter(folder: Path, weights: bytes) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "adapter_model.safetensors").write_bytes(weights)
    return folder / "model"


def test_an_adapter_is_loaded_under_a_unique_name(tmp_path: Path) -> None:
    """A running engine keeps the adapter of a name; a version has its own name."""
    first = adapter(tmp_path / "monday" / "trained", b"one")
    second = adapter(tmp_path / "friday" / "trained", b"other")
    assert adapter_name(first) != adapter_name(second)
    assert all(adapter_name(folder).startswith("trained-") for folder in (first, second))
    version = adapter(tmp_path / "executor-000001", b"one").parent
    (version / "manifest.json").write_text("{}")
    assert adapter_name(version) == "executor-000001"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--concurrency", "0"], "--concurrency: must be at least 1, got '0'"),
        (["--rollouts", "0"], "--rollouts: must be at least 1, got '0'"),
        (["--executors", "base", "base"], "two of them are the same model"),
        (["--executors", "base", "trained"], "adapter_model.safetensors: is missing"),
        (["--delegators", "base", "teacher"], "adapter_model.safetensors: is missing"),
        ([], "has no questions"),
    ],
)
def test_impossible_evaluations_are_refused(tmp_path: Path, options: list[str], why: str) -> None:
    """The reason is given before anything is started."""
    config(tmp_path)
    (tmp_path / "questions.jsonl").write_text(
        json.dumps({"question": "Who?", "answer": "Me"}) if options else "\n"
    )
    given = ["--questions", str(tmp_path / "questions.jsonl"), "--out", str(tmp_path / "out")]
    with pytest.raises(BadConfig, match=why):
        run(["evaluate", *given, "--config", str(tmp_path / "config.toml"), *options])


def test_intervals_cover_the_true_difference_as_often_as_stated() -> None:
    """Over 100 samples of 80 questions with a true difference of 0.2, about 95 % of the intervals
    cover it.
    """
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(100):
        old_right = rng.random(80) < 0.4
        new_right = old_right | (rng.random(80) < 1 / 3)
        interval = paired_difference(list(new_right.astype(float)), list(old_right.astype(float)))
        covered += interval.low <= 0.2 <= interval.high
    assert 88 <= covered <= 100


def test_groups_are_drawn_whole() -> None:
    """Ten equal scores of one group tell as much as one, and a group of all questions tells nothing
    of the spread.
    """
    new_scores = [1.0] * 10 + [0.0] * 2
    old_scores = [0.0] * 12
    alone = paired_difference(new_scores, old_scores)
    grouped = paired_difference(new_scores, old_scores, groups=["a"] * 10 + ["b", "c"])
    assert alone.mean == grouped.mean == pytest.approx(10 / 12)
    assert grouped.low == 0
    assert alone.low > 0.5
    together = paired_difference(new_scores, old_scores, groups=["a"] * 12)
    assert together.low == together.high == together.mean


def test_equal_scores_have_an_interval_of_zero() -> None:
    """If both agree question by question, the difference is 0, no matter how much questions
    differ.
    """
    scores = [0.0, 1.0, 0.5, 0.25]
    assert (
        (interval := paired_difference(scores, scores)).low == interval.mean == interval.high == 0
    )
    new_scores = [1.0, 1.0, 0.0, 1.0, 0.0]
    old_scores = [0.0, 1.0, 0.0, 0.0, 1.0]
    assert paired_difference(new_scores, old_scores) == paired_difference(new_scores, old_scores)


@pytest.mark.parametrize(("new_scores", "old_scores"), [([], []), ([1.0], [1.0, 0.0])])
def test_unpaired_scores_are_refused(new_scores: list[float], old_scores: list[float]) -> None:
    """There must be scores, and equally many on both sides."""
    with pytest.raises(ValueError):
        paired_difference(new_scores, old_scores)


def answered(
    question: str, *, right: bool, tokens: int, searches: tuple[int, ...] = (1,)
) -> Answered:
    runs = tuple(
        Execution(
            f"{question}?",
            Report("x", ()),
            "reported",
            (SearchRecord("?", ()),) * count,
            Conversation(()),
        )
        for count in searches
    )
    return Answered(
        question, "x" if right else "y", right, float(right), None, tokens, runs, 2 * tokens
    )


def test_figures_are_means_over_rollouts_and_runs() -> None:
    """EM and tokens are per rollout, searches per executor run, and tokens per right answer over
    all tokens.
    """
    results = [
        answered("a", right=True, tokens=100, searches=(1, 2)),
        answered("a", right=False, tokens=300, searches=(3,)),
    ]
    (row,) = evaluation_of({"base": results}, SearchConfig(), 2, None).rows
    assert (row.exact_match, row.executor_tokens, row.tokens_per_right_answer, row.tokens) == (
        0.5,
        200,
        400,
        400,
    )
    assert (row.searches, row.multi_search, row.judge) == (2.0, 2 / 3, None)


def test_executors_are_compared_question_by_question() -> None:
    """A question's rollouts are averaged before they are paired; the order of the questions does
    not matter.
    """
    old_answers = [answered(name, right=False, tokens=100) for name in "abcd"]
    new_answers = [answered(name, right=name in "ab", tokens=150) for name in "dcba"]
    evaluation = evaluation_of(
        {"base": old_answers, "new": new_answers}, SearchConfig(max_turns=4), 1, 0.5
    )
    (comparison,) = evaluation.comparisons
    assert (comparison.executor, comparison.baseline) == ("new", "base")
    assert comparison.exact_match.mean == 0.5
    assert comparison.executor_tokens.low == comparison.executor_tokens.high == 50
    assert (evaluation.questions, evaluation.max_turns) == (4, 4)


def test_without_right_answers_their_price_is_unknown() -> None:
    """It is not zero."""
    (row,) = evaluation_of(
        {"base": [answered("a", right=False, tokens=9)]}, SearchConfig(), 1, None
    ).rows
    assert row.tokens_per_right_answer is None


def test_an_unreadable_judgement_counts_as_no() -> None:
    """It stays in the denominator."""
    results = [answered("a", right=True, tokens=1), answered("b", right=True, tokens=1)]
    unreadable = Answered("c", "x", True, 1.0, True, 1, (), 1)
    (row,) = evaluation_of({"base": [*results, unreadable]}, SearchConfig(), 1, None).rows
    assert row.judge == 1 / 3
