"""The benchmark of the gateway's own cost, and its plain pipelines."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rolegate.client import AsyncClient
from rolegate.v1.answer_service_pb2 import AnswerResponse

from benchmarks.__main__ import main
from benchmarks.gateway import at_once, canned_config, gateway, played
from benchmarks.harness import Child, child
from benchmarks.pipelines.models import together_s
from benchmarks.pipelines.process import calls, in_process
from benchmarks.pipelines.question import Pipeline, PipelineLog
from benchmarks.rounds import Round, Wanted, cpu, figure, in_turns, p50, p99
from router.errors import RolegateError
from tests.openai_server import fails, writes

QUESTION = "When was the director of <Heat> & “Ali” born?"
VARIANTS = {
    "paced": {"by_address", "in_process", "no_store", "P1", "P2", "store"},
    "cpu": {"by_address", "in_process", "P1", "P2", "SDK"},
    "proxy": {"Complete"},
    "load": {"2 in flight", "8 in flight", "memory", "largest", "smallest"},
}


@pytest.mark.parametrize(
    "part", ["paced", pytest.param("cpu", marks=pytest.mark.slow), "proxy", "load"]
)
def test_each_part_measures_all_its_variants(part: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = "--rounds=2 --questions=5 --token-s=0.001 --in-flight 2 8"
    argv = ["overhead", "--parts", part, f"--folder={tmp_path}", f"--json={out}", *options.split()]
    assert main(argv) == 0
    figures = json.loads(out.read_bytes())
    assert {row["variant"] for row in figures["variants"]} == {
        f"{part}: {name}" for name in VARIANTS[part]
    }
    # Differences may be 0, or noise
    least = {"paced: store": -1e9, "load: memory": 0.0}
    assert all(
        least.get(row["variant"], 1e-9) <= row["p50"] <= row["p99"] for row in figures["variants"]
    )
    assert bool(figures["figures"]) == (part != "proxy")  # which is compared with LiteLLM's alone
    assert all(row["low"] <= row["high"] for row in figures["figures"])


class Seen:
    """Calls that the models received."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.connections: set[int] = set()
        self._write = writes(at_once)

    async def play(self, request: web.Request) -> web.StreamResponse:
        """Answer, and record body and connection."""
        body = await request.json()
        self.bodies.append(
            {name: value for name, value in body.items() if name != "structured_outputs"}
        )
        self.connections.add(id(request.protocol))
        return await self._write(request)


@pytest.fixture
async def seen() -> AsyncIterator[tuple[Seen, str, str]]:
    """Yield the received calls, the models' base URL, and a retrieval address."""
    calls = Seen()
    async with played(calls.play) as (models, address):
        yield calls, models.base_url, address


async def asked_at(opened: AbstractAsyncContextManager[Child]) -> AnswerResponse:
    """Ask a gateway or a pipeline."""
    async with opened as process, AsyncClient(process.words[0]) as client:
        return await client.ask(QUESTION)


@pytest.mark.parametrize("name", ["P1", "P2"])
async def test_pipelines_make_the_gateway_s_calls(
    name: str, seen: tuple[Seen, str, str], tmp_path: Path
) -> None:
    """They make the same eight calls, over one connection, and give the same answer."""
    models, base_url, address = seen
    expected = await asked_at(gateway(canned_config(tmp_path / "config", [base_url], address)))
    bodies = models.bodies
    models.bodies = []
    models.connections.clear()
    answer = await asked_at(
        child("benchmarks.pipelines.process", name, base_url, address, str(tmp_path))
    )
    assert len(bodies) == 8
    assert models.bodies == bodies
    assert len(models.connections) == 1
    assert (answer.answer, len(answer.results)) == (expected.answer, 2)
    assert [
        (use.role, use.attempts, use.prompt_tokens, use.completion_tokens) for use in answer.usage
    ] == [
        (use.role, use.attempts, use.prompt_tokens, use.completion_tokens) for use in expected.usage
    ]
    lines = (tmp_path / f"{name}.log").read_bytes().splitlines()
    assert len(lines) == 2 * 8 + 1
    assert json.loads(lines[-1])[:2] == [answer.run_id, QUESTION]


@pytest.mark.parametrize("name", ["P1", "P2"])
async def test_pipelines_raise_if_a_model_call_fails(name: str, tmp_path: Path) -> None:
    async with played(fails(500, "no")) as (models, _), calls(name, models.base_url) as call:
        with pytest.raises((RolegateError, aiohttp.ClientError)):
            await Pipeline(call, in_process, PipelineLog(tmp_path / "log")).answer(QUESTION)


def test_overlapping_calls_count_once() -> None:
    assert together_s([]) == 0.0
    assert together_s([(1.0, 4.0), (6.0, 8.0), (2.0, 3.0), (3.5, 5.0)]) == 6.0


async def test_records_are_in_the_log_in_order_after_a_sync(tmp_path: Path) -> None:
    log = PipelineLog(tmp_path / "log")
    for number in range(3):
        log.write("run", number)
        await log.sync()
    assert (tmp_path / "log").read_bytes() == b'["run",0]\n["run",1]\n["run",2]\n'


async def test_variants_run_in_alternating_order() -> None:
    """All run in each round, after a warm-up round."""
    order: list[tuple[str, int]] = []

    def variant(name: str) -> Any:
        async def measured(number: int) -> Round:
            order.append((name, number))
            return Round([float(number)])

        return measured

    rounds = await in_turns({"a": variant("a"), "b": variant("b")}, 2)
    assert order == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [round_.values for round_ in rounds["a"]] == [[1.0], [2.0]]


def test_ratios_compare_the_same_rounds() -> None:
    """A slow round cancels out."""
    slow = [Round([4.0 * weather], 2.0 * weather) for weather in (1, 5, 9)]
    rounds = {"slow": slow, "quick": [Round([2.0 * weather], weather) for weather in (1, 5, 9)]}
    ratio = figure(Wanted("half", cpu, "quick", "slow", at_most=0.6), rounds)
    assert (ratio.value, ratio.low, ratio.high, ratio.held) == (0.5, 0.5, 0.5, True)
    alone = figure(Wanted("alone", p50, "slow", at_least=21.0), rounds)
    assert (alone.value, alone.low, alone.high, alone.held) == (20.0, 4.0, 36.0, False)
    assert figure(Wanted("no bound", p99, "slow", "quick"), rounds).held
