"""A gateway in front of canned models, with a fault proxy before each of its upstreams."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rolegate.client import AsyncClient

from benchmarks.canned_config import canned_config
from benchmarks.chaos_orders import Proxies
from benchmarks.child import child
from benchmarks.process_meter import ProcessMeter
from executor_sft.miniworld.export import write_config
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config

BACKBONES, EXECUTORS = 2, 3
"""Replicas; the proxies' order is that."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that a request may take, and a call of a model."""

    timeout_s: float
    first_token_timeout_s: float
    call_timeout_s: float


@dataclass(frozen=True, slots=True)
class ChaosGateway:
    """Both, each in a process of its own."""

    client: AsyncClient
    meter: ProcessMeter
    """Of the gateway."""
    proxies: Proxies


@asynccontextmanager
async def chaos_gateway(folder: Path, seed: int, patience: Patience, *pace: str) -> AsyncIterator[ChaosGateway]:
    """One with a new store in `folder`. `pace`: the models', as their module's command line has it."""
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(child("benchmarks.canned_upstream", *pace))
        base_url, retrieval = models.told
        behind = "--seed", str(seed), "--retrieval", retrieval
        upstreams = [base_url] * (BACKBONES + EXECUTORS)
        proxy = await stack.enter_async_context(child("benchmarks.chaos_proxy", *upstreams, *behind))
        *urls, retrieval, orders = proxy.told
        folder.mkdir()
        file = canned_config(folder, base_url, retrieval, store_of(folder))
        write_config(_through(load_config(file), urls, patience), file)
        gateway = await stack.enter_async_context(child("benchmarks.gateway_child", str(file), "--quiet"))
        client = await stack.enter_async_context(AsyncClient(gateway.told[0]))
        yield ChaosGateway(client, ProcessMeter(gateway.pid), Proxies(orders, urls))


def store_of(folder: Path) -> str:
    """Where a gateway in `folder` has its store."""
    return f"sqlite:///{folder}/runs.db"


def _through(config: Config, urls: list[str], patience: Patience) -> Config:
    backbones, executors, roles = urls[:BACKBONES], urls[BACKBONES:], config.roles
    waits = msgspec.structs.asdict(patience)
    server = msgspec.structs.replace(config.server, timeout_s=waits.pop("timeout_s"))

    def at(role: RoleConfig, urls: list[str]) -> RoleConfig:
        return msgspec.structs.replace(role, base_url=urls[0], replicas=tuple(urls[1:]), **waits)

    execution = msgspec.structs.replace(roles.execution, fallbacks=("delegation",))
    roles = msgspec.structs.replace(
        roles,
        delegation=at(roles.delegation, backbones),
        execution=at(execution, executors),
        answer=at(roles.answer, backbones),
    )
    return msgspec.structs.replace(config, roles=roles, server=server)
