"""The demo as `rolegate ask` runs it, once for all tests of this folder: real engines, a real index, one gateway; and
an engine beside it."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import msgspec
import pytest
import pytest_asyncio

from serving.composition import running_gateway
from serving.config import Config, ReuseConfig
from serving.config_file import load_config, preset
from serving.engine import engine


@dataclass(frozen=True, slots=True)
class Demo:
    """The running demo."""

    config: Config
    database: Path
    address: str
    channel: grpc.aio.Channel
    steps: tuple[str, ...]
    """What was told while it started."""

    @property
    def engines(self) -> dict[str, str]:
        """The engines' base URLs, by the ledger's names of them."""
        ready = (re.fullmatch(r"vLLM engine (\w+): ready at (\S+)", step) for step in self.steps)
        return {f"engines.{found[1]}": found[2] for found in ready if found}


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Demo]:
    folder: Path = tmp_path_factory.mktemp("demo")
    config = load_config(preset("mini"))
    server = msgspec.structs.replace(config.server, store=f"sqlite:///{folder}/runs.db")
    versions = msgspec.structs.replace(config.versions, folder=str(folder / "versions"))
    reuse = ReuseConfig(enabled=False)  # each test sees all the work of its questions
    config = msgspec.structs.replace(config, server=server, versions=versions, reuse=reuse)
    steps: list[str] = []
    async with (
        running_gateway(config, "127.0.0.1:0", steps.append) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield Demo(config, folder / "runs.db", address, channel, tuple(steps))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def engine_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """An executor's engine beside the demo: what is asked of the demo's without its gateway, its ledger would miss."""
    config, logs = load_config(preset("mini")).engines["executor"], tmp_path_factory.mktemp("engine")
    async with engine("executor", config, ["mini-executor"], lambda _step: None, logs=logs) as url:
        yield url
