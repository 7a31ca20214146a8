"""The demo's models and retrieval, started apart from any gateway: gateways may come and go in front of them."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tomlkit

from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.edge.server import Server
from serving.composition import slow_parts
from serving.config import Config, RoleConfig, RolesConfig
from serving.config_file import load_config, preset
from serving.engine import Tell
from serving.retrieval.grpc_service import RetrievalServicer
from serving.retrieval.open_retriever import open_retriever


class MiniDeployment(msgspec.Struct, frozen=True):
    """What runs."""

    engines: dict[str, str]
    """Base URLs by the engine's name in the preset."""
    retrieval: str
    """host:port of the retrieval service."""

    def config(self, file: Path, store: str, base_urls: Mapping[str, str] | None = None) -> Config:
        """The config of a gateway in front of it, also written to `file`. `base_urls`: instead of the engines'."""
        mini = load_config(preset("mini"))
        urls = {**self.engines, **(base_urls or {})}

        def at(role: RoleConfig) -> RoleConfig:
            return msgspec.structs.replace(role, engine=None, base_url=urls[role.engine or ""])

        roles = RolesConfig(
            delegation=at(mini.roles.delegation), execution=at(mini.roles.execution), answer=at(mini.roles.answer)
        )
        config = msgspec.structs.replace(
            mini,
            roles=roles,
            engines={},
            retrieval=msgspec.structs.replace(mini.retrieval, address=self.retrieval, index=None, documents=()),
            server=msgspec.structs.replace(mini.server, store=store, http=None),
        )
        file.write_text(tomlkit.dumps(_without_none(msgspec.to_builtins(config))), "utf-8")
        return config


@asynccontextmanager
async def mini_deployment(tell: Tell) -> AsyncIterator[MiniDeployment]:
    """The preset `mini` without its gateway."""
    config = load_config(preset("mini"))
    async with AsyncExitStack() as stack:
        opened = partial(open_retriever, config.retrieval, tell, config.engines)
        engines, retriever = await slow_parts(config, stack, tell, opened)
        server = Server(None, RetrievalServicer(retriever))
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.drain, 0)
        yield MiniDeployment(engines, f"127.0.0.1:{port}")


def demo_questions(folder: Path, count: int) -> list[str]:
    """Questions about the demo's world; the same ones every time."""
    return [question.text for question in export(World(7, "test"), folder, count)]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list | tuple) else value
