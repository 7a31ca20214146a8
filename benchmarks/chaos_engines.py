"""Questions through real vLLM engines, with fault proxies before them, while one engine after the other is killed."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import aiohttp
import msgspec
import psutil
from rolegate.client import AsyncClient

from benchmarks.chaos_accounts import Accounts, accounts
from benchmarks.chaos_gateway import store_of
from benchmarks.chaos_orders import Proxies
from benchmarks.chaos_questions import ANSWERED, Asker, Load, Told
from benchmarks.child import child
from benchmarks.mini_deployment import demo_questions
from executor_sft.miniworld.export import write_config
from router.runs.live import meanwhile
from serving.config.config import Config, ReuseConfig, RoleConfig, RolesConfig
from serving.config.file import load_config, preset

_TIMEOUT_S, _FIRST_TOKEN_S, _CALL_S = 30.0, 10.0, 20.0
_PAUSE_S = 1.0
_BACK_WITHIN_S, _LOOKS_EVERY_S = 600.0, 0.5
_CALM_S = 5.0
"""After the last fault, for breakers to close."""
_AFTERWARDS = 10
_API_SERVER = "vllm.entrypoints.openai.api_server"


class Death(msgspec.Struct, frozen=True):
    """Of an engine."""

    engine: str
    signal: str
    """SIGKILL, or SIGSTOP, which lets it hang with all that it has taken."""
    asked: int
    """Questions that had ended when it came."""
    down_s: float | None
    """Until another process answered its health check; None for never."""


class Engines(msgspec.Struct, frozen=True):
    """How it went."""

    told: Told
    accounts: Accounts
    faults: dict[str, dict[str, int]]
    deaths: list[Death]
    asked_afterwards: int
    """Questions after the last engine had come back, while nothing failed."""
    answered_afterwards: int

    @property
    def killed(self) -> int:
        """How often an engine was killed."""
        return sum(death.signal == "SIGKILL" for death in self.deaths)


async def engines_killed(folder: Path, load: Load, kills: int, step: Callable[[int], None]) -> Engines:
    """Ask, with a store in the new `folder`, while engines are killed so often, and hang once. As long as one is down,
    further questions are asked. `step` hears how many have ended.
    """
    folder.mkdir()
    config = _config(store_of(folder))
    write_config(config, folder / "rolegate.toml")
    asked = cycle(demo_questions(folder / "world", 500))
    arguments = str(folder / "rolegate.toml"), "--seed", str(load.seed)
    deaths: list[Death] = []
    async with child("benchmarks.supervised_gateway", *arguments) as gateway, AsyncClient(gateway.told[0]) as client:
        proxies = Proxies(gateway.told[1], [f"engines.{name}" for name in gateway.told[2:]])
        asker, engines = Asker(client, _TIMEOUT_S, load.seed), sorted(_engines(gateway.pid))
        victims = [(name, signal.SIGKILL) for name in islice(cycle(engines), kills)]
        if kills:
            victims.append((engines[0], signal.SIGSTOP))
        portion = load.questions // (len(victims) + 1)
        await proxies.share(load.share)
        async with meanwhile(_told(asker, step), asker.watch()):
            for victim, how in victims:
                await _ask(asker, asked, load.at_once, _after(asker, portion))
                before, back = len(asker.ended), asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    group.create_task(_ask(asker, asked, load.at_once, back.is_set))
                    deaths.append(Death(victim, how.name, before, await _down_s(gateway.pid, victim, how)))
                    back.set()
            await _ask(asker, asked, load.at_once, _after(asker, portion))
            await proxies.share(0.0)
            await asyncio.sleep(_CALM_S)
            outcomes = [(await asker.ask(next(asked))).outcome for _ in range(_AFTERWARDS)]
        await proxies.look()
    return Engines(
        Told.of(asker.ended, asker.lag_s),
        await accounts(store_of(folder), asker.ended, proxies.attempts),
        dict(proxies.faults),
        deaths,
        len(outcomes),
        outcomes.count(ANSWERED),
    )


def _config(store: str) -> Config:
    """The preset `mini`, which works on every question anew, and gives up sooner."""
    config = load_config(preset("mini"))

    def at(role: RoleConfig) -> RoleConfig:
        return msgspec.structs.replace(role, first_token_timeout_s=_FIRST_TOKEN_S, call_timeout_s=_CALL_S)

    return msgspec.structs.replace(
        config,
        roles=RolesConfig(**{name: at(role) for name, role in config.roles.by_name.items()}),
        reuse=ReuseConfig(enabled=False),
        server=msgspec.structs.replace(config.server, store=store, http=None, timeout_s=_TIMEOUT_S),
    )


async def _ask(asker: Asker, questions: Iterator[str], at_once: int, enough: Callable[[], bool]) -> None:
    async def keep_asking() -> None:
        while not enough():
            if (await asker.ask(next(questions))).outcome != ANSWERED:
                await asyncio.sleep(_PAUSE_S)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(keep_asking())


def _after(asker: Asker, portion: int) -> Callable[[], bool]:
    until = len(asker.ended) + portion
    return lambda: len(asker.ended) >= until


async def _told(asker: Asker, step: Callable[[int], None]) -> None:
    while True:
        step(len(asker.ended))
        await asyncio.sleep(1.0)


def _engines(gateway: int) -> dict[str, psutil.Process]:
    """The API servers of its engines, by the name of their model."""
    found = {}
    for process in psutil.Process(gateway).children():
        with suppress(psutil.Error):
            if _API_SERVER in (command := process.cmdline()):
                found[command[command.index("--served-model-name") + 1]] = process
    return found


async def _down_s(gateway: int, engine: str, how: signal.Signals) -> float | None:
    """Kill it, and see when it is back; None where it is not for ten minutes."""
    process = _engines(gateway)[engine]
    command, begun = process.cmdline(), time.monotonic()
    url = f"http://127.0.0.1:{command[command.index('--port') + 1]}/health"
    process.send_signal(how)
    with suppress(TimeoutError):
        async with asyncio.timeout(_BACK_WITHIN_S), aiohttp.ClientSession() as session:
            while True:
                await asyncio.sleep(_LOOKS_EVERY_S)
                another = _engines(gateway).get(engine)
                if another is not None and another.pid != process.pid:
                    with suppress(aiohttp.ClientError, OSError):
                        async with session.get(url) as response:
                            if response.status == 200:
                                return time.monotonic() - begun
    return None
