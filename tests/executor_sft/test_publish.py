"""A trained adapter becomes one version if it fits the engine; a running gateway loads it."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog
from rolegate.client import AsyncClient, GatewayError

from executor_sft.__main__ import run
from executor_sft.publish import publish, try_version
from executor_sft.step import Step
from executor_sft.train import Recipe, read_recipe
from router.administration import Auditor
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer
from router.errors import BadConfig, BadVersion, RolegateError
from router.store import Database, SQLAccounts, SQLVersionBook
from router.versions import GateRule, Versions
from serving.cli.options import ConnectionOptions, with_client
from serving.config.file import load_config
from serving.engines.versions import base_sha256, verified
from serving.logs import errors_only

ROLE = (
    'model = "backbone"\nprompt = "shipped:prompts/mini/answer.txt"\nbase_url = '
    '"http://127.0.0.1:9/v1"\n'
)
CONFIG = f"""
[engines.executor]
path = "base"
adapter_rank = 32
[roles.delegation]
{ROLE}
[roles.execution]
engine = "executor"
model = "mini-executor"
prompt = "shipped:prompts/mini/execution.txt"
[roles.answer]
{ROLE}
[retrieval]
address = "127.0.0.1:9"
[versions]
folder = "versions"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config whose engine serves the model in `base`."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("{}")
    (tmp_path / "base" / "model.safetensors").write_bytes(b"the base")
    (tmp_path / "rolegate.toml").write_text(CONFIG)
    return tmp_path / "rolegate.toml"


@pytest.fixture
def trained(config: Path) -> Path:
    """Return a folder as `rolegate sft train` leaves it."""
    folder = config.with_name("trained")
    recipe = msgspec.to_builtins(read_recipe("mini", Recipe))
    data = config.with_name("data")
    Step.begin(data, "dataset", {}, {}).finish({"rows": 12}, [])
    step = Step.begin(folder, "train", {"dataset": data}, recipe)
    (folder / "model").mkdir()
    (folder / "model" / "adapter_config.json").write_text("{}")
    (folder / "model" / "adapter_model.safetensors").write_bytes(b"an adapter")
    (folder / "loss.jsonl").write_text("")
    figures = {
        "kind": "adapter",
        "base": "base",
        "base_sha256": base_sha256(config.with_name("base")),
    }
    step.finish(
        figures, ["model/adapter_config.json", "model/adapter_model.safetensors", "loss.jsonl"]
    )
    return folder


@pytest.fixture
def reinforced(config: Path) -> Path:
    """Return a folder as `rolegate sft reinforce` leaves it after two steps."""
    folder = config.with_name("reinforced")
    step = Step.begin(folder, "reinforce", {}, {"rank": 8, "learning_rate": 1e-3})
    files: list[str] = []
    for number in (1, 2):
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            path = folder / "steps" / f"{number:04}" / "executor" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} of {number}")
            files.append(str(path.relative_to(folder)))
    figures = {
        "kind": "adapter",
        "steps": 2,
        "executor": "executor",
        "base_sha256": base_sha256(config.with_name("base")),
        "rank": 16,
    }
    step.finish(figures, files)
    return folder


def test_other_trainings_have_no_steps(config: Path, trained: Path) -> None:
    with pytest.raises(BadConfig, match="--step: applies only to results of"):
        run(["publish", str(trained), "--config", str(config), "--step", "1"])
    assert not list(config.parent.glob("**/executor-000001"))


def test_a_step_of_a_reinforcement_becomes_a_version(config: Path, reinforced: Path) -> None:
    """By default the last one. Its manifest has the training's, and the rank of its start."""
    run(["publish", str(reinforced), "--config", str(config)])
    run(["publish", str(reinforced), "--config", str(config), "--step", "1"])
    for number, step in ((1, 2), (2, 1)):
        folder = config.with_name("versions") / f"executor-{number:06}"
        version = verified(folder)
        content = (folder / "adapter_model.safetensors").read_text()
        assert content == f"adapter_model.safetensors of {step}"
        assert (version.kind, version.rank, version.data["figures"]["steps"]) == ("adapter", 16, 2)
    with pytest.raises(BadVersion, match="has no executor in steps/0003/executor; pass an earlier"):
        run(["publish", str(reinforced), "--config", str(config), "--step", "3"])


def test_a_version_has_its_origin(
    config: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has recipe, data, base and evaluation; its files are the model's alone.

    The output has the next step.
    """
    (tmp_path / "evaluation.json").write_text('{"rows": []}')
    status = run(
        [
            "publish",
            str(trained),
            "--config",
            str(config),
            "--evaluation",
            str(tmp_path / "evaluation.json"),
        ]
    )
    version = verified(tmp_path / "versions" / "executor-000001")
    assert status == 0 and version.files.keys() == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert (version.kind, version.rank, version.base_model) == ("adapter", 32, "mini-executor")
    assert version.data["figures"] == {"rows": 12}
    assert version.recipe["learning_rate"] == read_recipe("mini", Recipe).learning_rate
    assert version.evaluation == {"rows": []}
    assert "rolegate versions register executor-000001" in capsys.readouterr().out


def test_a_training_is_published_once(config: Path, trained: Path, tmp_path: Path) -> None:
    """The command can be repeated; a version that was damaged since is left alone, and does not
    count.
    """
    for _ in range(2):
        run(["publish", str(trained), "--config", str(config)])
    assert [path.name for path in (tmp_path / "versions").iterdir()] == ["executor-000001"]
    (tmp_path / "versions" / "executor-000001" / "adapter_config.json").write_text("[]")
    run(["publish", str(trained), "--config", str(config)])
    assert verified(tmp_path / "versions" / "executor-000002").version == "executor-000002"


@pytest.mark.parametrize(
    ("file", "content", "why"),
    [
        (
            "base/model.safetensors",
            "another",
            r"differs from the model that engines\.executor serves",
        ),
        (
            "rolegate.toml",
            CONFIG.replace("adapter_rank = 32", ""),
            r"set engines\.executor\.adapter_rank to 32",
        ),
        (
            "rolegate.toml",
            CONFIG.replace("= 32", "= 16"),
            r"set engines\.executor\.adapter_rank to 32",
        ),
        (
            "trained/model/adapter_model.safetensors",
            "another",
            r"safetensors: changed after training",
        ),
        ("trained/manifest.json", None, r"has no manifest\.json"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    config: Path, trained: Path, file: str, content: str | None, why: str
) -> None:
    """It has another base, the engine has no such adapters, weights have changed, or the training
    is unfinished; nothing is published.
    """
    if content is None:
        (config.parent / file).unlink()
    else:
        (config.parent / file).write_text(content)
    with pytest.raises(RolegateError, match=why):
        run(["publish", str(trained), "--config", str(config)])
    assert not config.with_name("versions").exists()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    """Address of a gateway that loads the versions published in `versions`."""

    async def load(name: str) -> str:
        return msgspec.json.encode(verified(tmp_path / "versions" / name)).decode()

    errors_only()  # its log is not part of the command's output
    database = await Database.open(f"sqlite:///{tmp_path / 'runs.db'}")
    versions = Versions(SQLVersionBook(database), load, GateRule(0.05, 0.05, 2.0, 10_000))
    await versions.ensure_base("mini-executor")
    server = Server(
        None, None, ExecutorVersionServicer(versions, Auditor(SQLAccounts(database), "grpc"))
    )
    yield f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    await server.drain(0)
    await database.close()
    structlog.reset_defaults()


def taken_in(config: Path, trained: Path, address: str, evaluation: Path | None = None) -> int:
    """Publish, and let the gateway try the version."""
    folder = publish(trained, load_config(config), evaluation)
    options = ConnectionOptions(address=address)
    return with_client(lambda client, _: try_version(client, folder), options)


@pytest.mark.parametrize("training", ["trained", "reinforced"])
async def test_a_running_gateway_loads_a_published_version(
    config: Path, training: str, gateway: str, request: pytest.FixtureRequest
) -> None:
    """It is registered and made the shadow.

    A repetition changes nothing, also after a rollback or promotion.
    """
    trained: Path = request.getfixturevalue(training)
    async with AsyncClient(gateway) as client:
        for change in (None, client.roll_back_version, client.promote_version):
            assert await asyncio.to_thread(taken_in, config, trained, gateway) == 0
            if change:
                await change("executor-000001")
            states = {version.version: version.state for version in await client.versions()}
            assert await asyncio.to_thread(taken_in, config, trained, gateway) == 0
            assert {version.version: version.state for version in await client.versions()} == states
            assert (
                states.keys() == {"executor-000001", "mini-executor"}
                and len(set(states.values())) == 2
            )


async def test_a_name_of_another_version_at_the_gateway_is_refused(
    config: Path, trained: Path, gateway: str, tmp_path: Path
) -> None:
    """A gateway identifies versions by name: another folder that restarts the numbers would mix up
    their figures.
    """
    assert await asyncio.to_thread(taken_in, config, trained, gateway) == 0
    shutil.rmtree(tmp_path / "versions")
    evaluation = trained.parent / "evaluation.json"
    evaluation.write_text("{}")
    with pytest.raises(BadVersion, match=r"has another version with this name"):
        await asyncio.to_thread(taken_in, config, trained, gateway, evaluation)


async def test_an_unreachable_gateway_loses_nothing(
    config: Path, trained: Path, tmp_path: Path
) -> None:
    """The version is published; the error says what failed, and the command can be repeated."""
    with pytest.raises(GatewayError):
        await asyncio.to_thread(taken_in, config, trained, "127.0.0.1:1")
    assert verified(tmp_path / "versions" / "executor-000001")
