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
from router.testing.openai_server import MODEL, OpenAIServer, fails, says, serving
from router.trace import Conversation, Execution
from router.trace.values import SearchRecord
from serving.config.config import SearchConfig
from serving.config.file import load_config
from tests.executor_sft.scripted_roles import questions
from tests.executor_sft.test_runtime import ROLE, config
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


async def test_every_rollout_is_one(endpoint: OpenAIServer, tmp_path: Path) -> None:
    """Seeds differ at the config's temperature, too; a cached answer does not count as another
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
    asked: list[str] = []

    async def stops(request: web.Request) -> web.StreamResponse:
        asked.append((await request.json())["model"])
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
    assert asked == ["m", "trained-1"] * 2
    assert [(one.executor_tokens, one.tokens) for (one,) in answered.values()] == [(0, 18)] * 4


async def test_adapters_are_loaded_where_their_role_is_served(tmp_path: Path) -> None:
    """A delegator's at the delegator's endpoint, an executor's at the executor's; the config's
    own model is none.
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


async def test_an_endpoint_that_refuses(endpoint: OpenAIServer, tmp_path: Path) -> None:
    """Says so itself, however many questions it has refused."""
    endpoint.plays(fails(403, "not you"))
    async with open_runtime(load_config(tmp_path / "config.toml"), print) as bench:
        with pytest.raises(UpstreamRefused, match="not you"):
            await answers(bench, [BASE], questions(3), rollouts=1)


def adapter(folder: Path, weights: bytes) -> Path:
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "adapter_model.safetensors").write_bytes(weights)
    return folder / "model"


def test_an_adapter_is_loaded_under_a_name_that_no_other_one_has(tmp_path: Path) -> None:
    """An engine that goes on running keeps what it has under a name; a version has its own."""
    first = adapter(tmp_path / "monday" / "trained", b"one")
    second = adapter(tmp_path / "friday" / "trained", b"other")
    assert adapter_name(first) != adapter_name(second)
    assert all(adapter_name(each).startswith("trained-") for each in (first, second))
    version = adapter(tmp_path / "executor-000001", b"one").parent
    (version / "manifest.json").write_text("{}")
    assert adapter_name(version) == "executor-000001"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--concurrency", "0"], "--concurrency: must be at least 1, got '0'"),
        (["--rollouts", "0"], "--rollouts: must be at least 1, got '0'"),
        (["--executors", "base", "base"], "names a model twice"),
        (["--executors", "base", "trained"], "adapter_model.safetensors: is missing"),
        (["--delegators", "base", "teacher"], "adapter_model.safetensors: is missing"),
        ([], "has no questions"),
    ],
)
def test_what_cannot_be_evaluated(tmp_path: Path, options: list[str], why: str) -> None:
    """Is refused with the reason, before anything is started."""
    config(tmp_path)
    (tmp_path / "questions.jsonl").write_text(
        json.dumps({"question": "Who?", "answer": "Me"}) if options else "\n"
    )
    given = ["--questions", str(tmp_path / "questions.jsonl"), "--out", str(tmp_path / "out")]
    with pytest.raises(BadConfig, match=why):
        run(["evaluate", *given, "--config", str(tmp_path / "config.toml"), *options])


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """Over 100 samples of 80 questions with a true difference of 0.2, about 95 % of the
    intervals hold it.
    """
    rng = np.random.default_rng(3)
    held = 0
    for _ in range(100):
        old = rng.random(80) < 0.4
        new = old | (rng.random(80) < 1 / 3)
        found = paired_difference(list(new.astype(float)), list(old.astype(float)))
        held += found.low <= 0.2 <= found.high
    assert 88 <= held <= 100


def test_pairs_that_agree_leave_no_doubt_and_the_same_scores_give_the_same_interval() -> None:
    """Where both are the same question by question, the difference is 0, however much questions
    differ.
    """
    scores = [0.0, 1.0, 0.5, 0.25]
    assert (found := paired_difference(scores, scores)).low == found.mean == found.high == 0
    new = [1.0, 1.0, 0.0, 1.0, 0.0]
    old = [0.0, 1.0, 0.0, 0.0, 1.0]
    assert paired_difference(new, old) == paired_difference(new, old)


@pytest.mark.parametrize(("new", "old"), [([], []), ([1.0], [1.0, 0.0])])
def test_what_cannot_be_paired_is_refused(new: list[float], old: list[float]) -> None:
    """There must be scores, and as many on both sides."""
    with pytest.raises(ValueError):
        paired_difference(new, old)


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
    """EM and tokens are by rollout, searches by executor run, tokens per right answer over all
    tokens.
    """
    found = [
        answered("a", right=True, tokens=100, searches=(1, 2)),
        answered("a", right=False, tokens=300, searches=(3,)),
    ]
    (row,) = evaluation_of({"base": found}, SearchConfig(), 2, None).rows
    assert (row.exact_match, row.executor_tokens, row.tokens_per_right_answer, row.tokens) == (
        0.5,
        200,
        400,
        400,
    )
    assert (row.searches, row.multi_search, row.judge) == (2.0, 2 / 3, None)


def test_executors_are_compared_question_by_question() -> None:
    """A question's rollouts are averaged before it is paired; the order of the questions means
    nothing.
    """
    old = [answered(name, right=False, tokens=100) for name in "abcd"]
    new = [answered(name, right=name in "ab", tokens=150) for name in "dcba"]
    evaluation = evaluation_of({"base": old, "new": new}, SearchConfig(max_turns=4), 1, 0.5)
    (comparison,) = evaluation.comparisons
    assert (comparison.executor, comparison.baseline) == ("new", "base")
    assert comparison.exact_match.mean == 0.5
    assert comparison.executor_tokens.low == comparison.executor_tokens.high == 50
    assert (evaluation.questions, evaluation.max_turns) == (4, 4)


def test_nobody_right_has_no_price_for_a_right_answer() -> None:
    """Tokens per right answer are unknown where no answer was right, not zero."""
    (row,) = evaluation_of(
        {"base": [answered("a", right=False, tokens=9)]}, SearchConfig(), 1, None
    ).rows
    assert row.tokens_per_right_answer is None


def test_a_judge_that_is_never_read_counts_as_a_no() -> None:
    """Replies that cannot be read stay in the denominator."""
    found = [answered("a", right=True, tokens=1), answered("b", right=True, tokens=1)]
    one = Answered("c", "x", True, 1.0, True, 1, (), 1)
    (row,) = evaluation_of({"base": [*found, one]}, SearchConfig(), 1, None).rows
    assert row.judge == 1 / 3
