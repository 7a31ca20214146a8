"""The demo as `rolegate ask` starts it, once for all tests of this folder (real engines, a real
index, one gateway), and a single engine.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import pytest
import pytest_asyncio

from serving.composition import running_gateway
from serving.config.config import Config, ReportCacheConfig, RoleConfig
from serving.config.file import load_config, preset
from serving.engines.engine import engine


@dataclass(frozen=True, slots=True)
class Demo:
    """The running demo."""

    config: Config
    database: Path
    address: str
    channel: grpc.aio.Channel
    steps: tuple[str, ...]
    """Log lines of its start."""

    @property
    def engines(self) -> dict[str, str]:
        """Return the engines' base URLs by their names in the ledger."""
        ready = (re.fullmatch(r"vLLM engine (\w+): ready at (\S+)", step) for step in self.steps)
        return {f"engines.{match[1]}": match[2] for match in ready if match}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Demo]:
    folder: Path = tmp_path_factory.mktemp("demo")
    config = load_config(preset("mini"))
    server = msgspec.structs.replace(config.server, store=f"sqlite:///{folder}/runs.db")
    versions = msgspec.structs.replace(config.versions, folder=str(folder / "versions"))
    reuse = ReportCacheConfig(enabled=False)  # each test sees all the work of its questions
    config = msgspec.structs.replace(config, server=server, versions=versions, report_cache=reuse)
    steps: list[str] = []
    async with (
        running_gateway(config, "127.0.0.1:0", steps.append) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield Demo(config, folder / "runs.db", address, channel, tuple(steps))


@pytest.fixture
def demo_engines(demo: Demo) -> Config:
    """The demo's config with its engines' addresses, for workbenches.

    The demo's ledger lacks their calls, so tests that use this run after those that compare ledger
    and engines.
    """

    def at(role: RoleConfig) -> RoleConfig:
        url = demo.engines[f"engines.{role.engine}"]
        return msgspec.structs.replace(role, engine=None, base_url=url)

    roles = {name: at(role) for name, role in demo.config.roles.by_name.items()}
    return msgspec.structs.replace(
        demo.config, roles=msgspec.structs.replace(demo.config.roles, **roles)
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine."""

    url: str
    logs: Path

    @property
    def log(self) -> str:
        """Return its log so far."""
        return "".join(log.read_text("utf-8", "replace") for log in self.logs.iterdir())


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def executor_engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """An engine of the executor's model without a gateway; it logs its requests."""
    config = load_config(preset("mini")).engines["executor"]
    logs = tmp_path_factory.mktemp("engine")
    config = msgspec.structs.replace(config, arguments=(*config.arguments, "--enable-log-requests"))
    async with engine("executor", config, ["mini-executor"], lambda _step: None, logs=logs) as url:
        yield Engine(url, logs)


@pytest.fixture
def engine_url(executor_engine: Engine) -> str:
    return executor_engine.url


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use an engine, and sort tests that must be last to the end."""
    here = [
        place for place, item in enumerate(items) if item.path.is_relative_to(Path(__file__).parent)
    ]
    in_order = sorted(
        (items[place] for place in here), key=lambda item: "demo_engines" in _fixtures(item)
    )
    for place, item in zip(here, in_order, strict=True):
        items[place] = item
        if not {"demo", "executor_engine"}.isdisjoint(_fixtures(item)):
            item.add_marker(pytest.mark.engines)


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])
