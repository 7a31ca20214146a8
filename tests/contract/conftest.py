"""The gateways of the contract: started once, and everything asked of them once."""

import asyncio
import json
import threading
import time, os
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.contract.gateway import Gateway, config_of, write_config
from tests.contract.names import RECORDING, record, recorded
from tests.contract.scenarios import SCENARIOS
from tests.contract.upstream import Upstream

T = TypeVar("T")
GATEWAYS = ("main", "faults", "loose", "broken", "guarded")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker of pytest-xdist, which need not be installed."""
    config.addinivalue_line("markers", "xdist_group(name): runs in the same process as others of that name")


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
                known |= {one: len(each["runs"]) - shadows[one] for one, each in recorded(f"runs-{name}").items()}

        async def play(name: str) -> None:
            for scenario in SCENARIOS:
                if scenario.gateway == name:
                    begun = time.monotonic()
                    try:
                        self.played[scenario.name] = await self.gateways[name].play(scenario, known.get(scenario.name))
                    except Exception as error:
                        error.add_note(f"in the scenario {scenario.name}")
                        raise
                    if os.environ.get("CT"): print(f"{time.monotonic()-begun:.2f} {time.monotonic():.1f}", name, scenario.name)

        async with asyncio.TaskGroup() as group:
            for name in GATEWAYS:
                group.create_task(play(name))


def make_keys(config: Path) -> dict[str, str]:
    """Keys in the config's store, by the tenants that they are of; the operator's by the empty name."""
    limits = {
        "poor": ["--tokens-per-day", "50"],
        "seldom": ["--requests-per-day", "1"],
        "unpriced": ["--usd-per-day", "1"],
        "quiet": ["--redact"],
    }
    keys = {"none": "", "wrong": "rg_00000000_wrong", "": command("keys", "create", config=config)["key"]}
    for tenant in ("acme", "rich", *limits):
        if tenant in limits:
            command("tenants", "set", tenant, *limits[tenant], config=config)
        keys[tenant] = command("keys", "create", "--tenant", tenant, config=config)["key"]
    keys["trainer"] = command("keys", "create", "--tenant", "acme", "--scope", "train", config=config)["key"]
    return keys


def command(*arguments: str, config: Path | None = None) -> Any:
    """What a command prints with `--json`."""
    from serving.cli.main import main

    chosen = ["--config", str(config)] if config else []
    with redirect_stdout(StringIO()) as printed:
        status = main([*arguments, "--json", *chosen])
    assert status == 0, printed.getvalue()
    return json.loads(printed.getvalue()) if printed.getvalue().strip() else None


@pytest.fixture(scope="session")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    """All gateways, after all scenarios."""
    contract = Contract()
    contract.open(tmp_path_factory.mktemp("contract"))
    if RECORDING:
        for name in GATEWAYS:
            mine = {one.name: contract.played[one.name] for one in SCENARIOS if one.gateway == name}
            record(f"runs-{name}", mine)
    try:
        yield contract
    finally:
        contract.close()
