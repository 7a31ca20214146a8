"""The demo's models and retrieval, started apart from any gateway: gateways may come and go in front of them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from executor_sft.miniworld.export import write_config
from router.edge.grpc.server import Server
from serving.config.config import Config, DistillationConfig, ReportCacheConfig, RoleConfig, RolesConfig
from serving.config.file import load_config, preset
from serving.engines.engine import Log
from serving.retrieval.opening import open_retriever
from serving.retrieval.services import RetrievalServicer
from serving.startup import start_engines


class MiniDeployment(msgspec.Struct, frozen=True):
    """A running deployment of the mini models."""

    of: Config
    """The preset `mini`, over whichever world."""
    engines: dict[str, str]
    """Base URLs by the engine's name in the preset."""
    retrieval: str
    """host:port of the retrieval service; empty leaves retrieval to whoever reads the config."""

    def config(self, file: Path, store: str, *, versions: Path | None = None) -> Config:
        """The config of a gateway in front of it, which works on every question anew; also written to `file`.
        `versions`: where versions are published; then the untuned model is the active one at first.
        """
        urls = self.engines

        def at(role: RoleConfig) -> RoleConfig:
            return msgspec.structs.replace(role, engine=None, base_url=urls[role.engine or ""])

        roles, teacher, retrieval = self.of.roles, self.of.distillation.teacher, self.of.retrieval
        if self.retrieval:
            retrieval = msgspec.structs.replace(retrieval, address=self.retrieval, index=None, documents=())
        config = msgspec.structs.replace(
            self.of,
            roles=RolesConfig(delegation=at(roles.delegation), execution=at(roles.execution), answer=at(roles.answer)),
            engines={},
            report_cache=ReportCacheConfig(enabled=False),
            retrieval=retrieval,
            server=msgspec.structs.replace(self.of.server, store=store, http=None),
            distillation=DistillationConfig(teacher=at(teacher) if teacher and teacher.engine in urls else None),
        )
        if versions is not None:
            config = msgspec.structs.replace(
                config, versions=msgspec.structs.replace(config.versions, folder=str(versions), start=None)
            )
        write_config(config, file)
        return config


@asynccontextmanager
async def mini_deployment(
    tell: Log, config: Config | None = None, *, teacher: bool = False
) -> AsyncIterator[MiniDeployment]:
    """The preset `mini` without its gateway, or another `config` like it. `teacher`: with the teacher's engine."""
    config = config or load_config(preset("mini"))
    teaching = config.distillation.teacher
    async with AsyncExitStack() as stack:
        opened = partial(open_retriever, config.retrieval, tell, config.engines)
        also = [teaching] if teacher and teaching is not None else []
        engines, retriever = await start_engines(config, stack, tell, opened, also)
        server = Server(None, RetrievalServicer(retriever))
        port = await server.start("127.0.0.1:0")
        stack.push_async_callback(server.drain, 0)
        yield MiniDeployment(config, engines, f"127.0.0.1:{port}")
