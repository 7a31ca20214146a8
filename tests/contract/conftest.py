"""The gateways of the contract: started once, and everything asked of them once."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pytest

from serving.cli.main import main
from tests.contract.gateway import Gateway, config_of, write_config
from tests.contract.recording import RECORDING, record, recorded
from tests.contract.scenarios import SCENARIOS
from tests.contract.upstream import Upstream

T = TypeVar("T")
GATEWAYS = ("main", "faults", "loose", "broken", "guarded")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of pytest-xdist, which need not be installed."""
    config.addinivalue_line(
        "markers", "xdist_group(name): runs in the same process as others of that name"
    )


class Contract:
    """Gateways that run, and what came of all scenarios."""

    def __init__(self) -> None:
        self.gateways: dict[str, Gateway] = {}
        self.played: dict[str, Any] = {}
        self.upstream = Upstream()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def open(self, folder: Path) -> None:
        """Start everything, and play all scenarios."""
        self._thread.start()
        self.wait(self.upstream.start())
        for name in GATEWAYS:
            (folder / name).mkdir()
            config = write_config(folder / name, config_of(name, self.upstream))
            keys = make_keys(config) if name == "guarded" else {}
            self.gateways[name] = Gateway(self.upstream, config, keys)
        self.wait(self._play())

    def close(self) -> None:
        """Stop everything."""

        async def close() -> None:
            await asyncio.gather(*(gateway.close() for gateway in self.gateways.values()))
            await self.upstream.close()

        self.wait(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` comes to, on the loop of the gateways' clients."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout=300)

    async def _play(self) -> None:
        await asyncio.gather(*(gateway.start() for gateway in self.gateways.values()))
        known: dict[str, int] = {}
        if not RECORDING:
            shadows = {one.name: one.shadows for one in SCENARIOS}
            for name in GATEWAYS:
                known |= {
                    one: len(each["runs"]) - shadows[one]
                    for one, each in recorded(f"runs-{name}").items()
                }

        async def play(name: str) -> None:
            for scenario in SCENARIOS:
                if scenario.gateway == name:
                    self.played[scenario.name] = await self.gateways[name].play(
                        scenario, known.get(scenario.name)
                    )

        await asyncio.gather(*map(play, GATEWAYS))


def make_keys(config: Path) -> dict[str, str]:
    """Keys in the config's store, by the tenants that they are of; the operator's by the empty
    name.
    """
    limits = {
        "acme": "",
        "rich": "",
        "poor": "--tokens-per-day 50",
        "seldom": "--requests-per-day 1",
    }
    limits |= {"unpriced": "--usd-per-day 1", "quiet": "--redact"}
    at = ("--config", str(config))

    def key(*options: str) -> str:
        made: str = json.loads(printed("keys", "create", *options, "--json", *at))["key"]
        return made

    keys = {
        "none": "",
        "wrong": "rg_00000000_wrong",
        "": key(),
        "trainer": key(*"--tenant acme --scope train".split()),
    }
    for tenant, options in limits.items():
        if options:
            printed("tenants", "set", tenant, *options.split(), *at)
        keys[tenant] = key("--tenant", tenant)
    return keys


def printed(*arguments: str, status: int = 0) -> str:
    """What a command prints."""
    out = StringIO()
    problems = StringIO()
    with redirect_stdout(out), redirect_stderr(problems):
        try:
            ended = main(list(arguments))
        except SystemExit as left:
            ended = int(left.code or 0)
    assert ended == status, f"{' '.join(arguments)}: {out.getvalue()}{problems.getvalue()}"
    return out.getvalue()


@pytest.fixture(scope="session")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    """All gateways, after all scenarios."""
    contract = Contract()
    try:
        contract.open(tmp_path_factory.mktemp("contract"))
        if RECORDING:
            for name in GATEWAYS:
                mine = {
                    one.name: contract.played[one.name] for one in SCENARIOS if one.gateway == name
                }
                record(f"runs-{name}", mine)
        yield contract
    finally:
        contract.close()
