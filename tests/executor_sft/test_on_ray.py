"""`rolegate sft rollout` and `mine`, `rolegate bench sweep` and `widesearch`, on a real Ray cluster
of two nodes with a worker each: they write what they write without Ray, also when a worker or a
node dies.
"""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from executor_sft.step import read_manifest
from router.models import Prompt
from tests.benchmarks import test_sweep
from tests.benchmarks.baselines.test_written_tables import TABLE
from tests.benchmarks.test_sweep import rows
from tests.benchmarks.widesearch import made_tasks
from tests.benchmarks.widesearch.made_tasks import TEXT
from tests.conftest import Ended
from tests.executor_sft import test_rollout
from tests.executor_sft.test_rollout import QUESTIONS, SAMPLED, Endpoint, logged, sampled
from tests.ray_cluster import RayCluster, ray_cluster, run, start
from tests.serving.test_topologies import SEARCH

pytestmark = pytest.mark.slow
endpoint = test_rollout.endpoint
config = rollout_config = test_rollout.config
listed = test_rollout.listed
sweep = test_sweep.sweep


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as running:
        yield running


@pytest.fixture
def rollout(config: Path, listed: Path) -> tuple[object, ...]:
    """A command without its last argument, which is the folder of the results."""
    return ("sft", "rollout", "--questions", listed, "--config", config, "--json", "--out")


def at_call(endpoint: Endpoint, number: int, act: Callable[[], None], model: str) -> list[int]:
    """Call `act` before the call to a model with this number is answered. Return a list that gets
    the numbers of the calls.
    """
    play = endpoint.models[model]
    calls: list[int] = []

    def acting(prompt: Prompt) -> str:
        calls.append(len(calls) + 1)
        if len(calls) == number:
            act()
        return play(prompt)

    endpoint.models[model] = acting
    return calls


async def both(cluster: RayCluster, command: tuple[object, ...], folder: Path) -> list[Ended]:
    """Run a command without Ray, and on the cluster."""
    without = await run(*command, folder / "without", environment=cluster.environment)
    return [without, await on_ray(cluster, command, folder)]


async def on_ray(cluster: RayCluster, command: tuple[object, ...], folder: Path) -> Ended:
    arguments = (*command, folder / "on_ray", "--ray", cluster.address)
    return await run(*arguments, environment=cluster.environment)


def written(folder: Path) -> tuple[bytes, list[bytes], object]:
    """Return rollouts, completed calls and figures."""
    calls = sorted((folder / "calls.jsonl").read_bytes().splitlines())
    return (folder / "rollouts.jsonl").read_bytes(), calls, read_manifest(folder).figures


async def test_rollouts_are_the_same_although_a_worker_was_killed(
    cluster: RayCluster, rollout: tuple[object, ...], endpoint: Endpoint, tmp_path: Path
) -> None:
    """So are the calls that are kept, and the figures on standard output."""
    without = await run(*rollout, tmp_path / "without", environment=cluster.environment)
    assert without.status == 0, without.err
    calls = at_call(endpoint, 3, cluster.kill_worker, "teacher")

    ended = await on_ray(cluster, rollout, tmp_path)

    assert ended.status == 0, ended.err
    assert len(calls) > 3, "a worker was killed"
    assert written(tmp_path / "on_ray") == written(tmp_path / "without")
    assert json.loads(ended.out) == json.loads(without.out)


async def test_a_sweep_s_rows_are_the_same_although_a_node_was_killed(
    cluster: RayCluster, sweep: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Latencies differ."""
    command = ("bench", "sweep", "--config", sweep, "--out")
    without = await run(*command, tmp_path / "without", environment=cluster.environment)
    assert without.status == 0, without.err
    calls = at_call(endpoint, 3, lambda: cluster.kill_node(1), "backbone")

    ended = await on_ray(cluster, command, tmp_path)

    cluster.add_node()
    assert ended.status == 0, ended.err
    assert len(calls) > 3, "the node was killed"
    assert rows(tmp_path / "on_ray") == rows(tmp_path / "without")


async def test_groups_are_the_same(
    cluster: RayCluster, config: Path, listed: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Each call has the seed that it has without Ray."""
    endpoint.lucky = True
    command = ("sft", *SAMPLED, "--config", config, "--questions", listed, "--out")
    for ended in await both(cluster, command, tmp_path):
        assert ended.status == 0, ended.err
    assert sampled(tmp_path / "on_ray") == sampled(tmp_path / "without")


async def test_mined_rollouts_are_the_same(
    cluster: RayCluster, config: Path, tmp_path: Path
) -> None:
    await logged(tmp_path)
    command = ("sft", "mine", "--config", config, "--yes", "--out")
    for ended in await both(cluster, command, tmp_path):
        assert ended.status == 0, ended.err
    assert written(tmp_path / "on_ray") == written(tmp_path / "without")


async def test_tables_that_models_write_are_the_same(
    cluster: RayCluster, config: Path, endpoint: Endpoint, tmp_path: Path
) -> None:
    names = [f"t{number}" for number in range(4)]
    gold = "film,director\nHeat,Michael Mann"
    folder = made_tasks.written(
        tmp_path / "tasks",
        [made_tasks.task(gold, TEXT, TEXT, name=name) for name in names],
    )
    endpoint.models["backbone"] = lambda prompt: TABLE if len(prompt.messages) > 2 else SEARCH
    command = (
        *("bench", "widesearch", "--config", config, "--tasks", folder, "--no-judge"),
        *("--topology", "wide_single", "--runs", 2, "--out"),
    )
    for ended in await both(cluster, command, tmp_path):
        assert ended.status == 0, ended.err
    without, on_ray = (
        sorted((tmp_path / name / "responses.wide_single.jsonl").read_bytes().splitlines())
        for name in ("without", "on_ray")
    )
    assert on_ray == without
    assert len(without) == 2 * len(names)
    assert b"| Heat | Michael Mann |" in without[0]


async def test_errors_of_questions_are_the_same(
    cluster: RayCluster, rollout: tuple[object, ...], endpoint: Endpoint, tmp_path: Path
) -> None:
    """One question fails, the others are rolled out."""
    endpoint.unwanted = QUESTIONS[1].text
    without, ended = await both(cluster, rollout, tmp_path)
    assert (ended.status, ended.err) == (without.status, without.err) == (1, ended.err)
    assert json.loads(ended.out) == json.loads(without.out)
    assert list(json.loads(ended.out)["failed"]) == ["q1"]


async def test_an_unavailable_endpoint_ends_the_command(
    cluster: RayCluster, rollout: tuple[object, ...], endpoint: Endpoint, tmp_path: Path
) -> None:
    """The error is that of a command without Ray."""
    endpoint.down.add("teacher")
    without, ended = await both(cluster, rollout, tmp_path)
    assert (ended.status, ended.err) == (without.status, without.err)
    assert "model 'teacher': HTTP 503: overloaded" in ended.err


async def test_a_question_that_kills_each_of_its_workers_ends_the_command(
    cluster: RayCluster, rollout: tuple[object, ...], endpoint: Endpoint, tmp_path: Path
) -> None:
    def kill(_prompt: Prompt) -> str:
        for worker in cluster.workers():
            worker.kill()
        return ""

    endpoint.models["backbone"] = kill
    ended = await on_ray(cluster, (*rollout[:-1], "--limit", 1, "--out"), tmp_path)
    assert ended.status == 1
    assert "a worker process died, and was restarted three times without success" in ended.err


async def test_an_interrupted_command_resumes(
    cluster: RayCluster, rollout: tuple[object, ...], endpoint: Endpoint, tmp_path: Path
) -> None:
    """Its workers end with it, and finished questions are kept."""
    command = (*rollout[:-1], "--concurrency", 2, "--out")
    without = await run(*command, tmp_path / "without", environment=cluster.environment)
    assert without.status == 0, without.err
    endpoint.free = endpoint.answered.total() * 3 // 4
    arguments = (*command, tmp_path / "on_ray", "--ray", cluster.address)
    process = await start(arguments, cluster.environment)
    async with asyncio.timeout(120):
        await endpoint.both_held.wait()
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in errors

    endpoint.free = 10**6
    kept = (tmp_path / "on_ray" / "rollouts.jsonl").read_bytes().splitlines()
    ended = await on_ray(cluster, command, tmp_path)
    assert ended.status == 0, ended.err
    assert written(tmp_path / "on_ray") == written(tmp_path / "without")
    assert 0 < len(kept) < len(QUESTIONS)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:9", "Connection refused"),
        ("cluster", "invalid literal for int() with base 10: 'cluster'"),
    ],
)
async def test_an_unreachable_cluster_is_an_error(
    cluster: RayCluster, rollout: tuple[object, ...], tmp_path: Path, address: str, reason: str
) -> None:
    """The error comes within seconds, and says what to do."""
    command = (*rollout, tmp_path / "out", "--ray", address)
    async with asyncio.timeout(60):
        ended = await run(*command, environment=cluster.environment)
    assert ended.status == 1
    assert f"--ray {address}: the cluster cannot be reached (" in ended.err
    assert reason in ended.err
    assert "give `local`, or HOST:PORT of a head node that `ray start --head`" in ended.err


async def test_engines_of_the_config_are_refused(
    cluster: RayCluster, rollout: tuple[object, ...], config: Path, tmp_path: Path
) -> None:
    """They run on the command's machine only."""
    config.write_text(
        f'{config.read_text("utf-8")}\n[engines.small]\npath = "shipped:models/mini-executor"\n',
        "utf-8",
    )
    ended = await on_ray(cluster, rollout, tmp_path)
    assert ended.status == 1
    assert "workers cannot start engines; serve the models separately, set base_url" in ended.err
