"""The demo's models and retrieval, started apart from any gateway: gateways may come and go in
front of them.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.gateway import retrieval
from executor_sft.miniworld.export import write_config
from serving.config.config import (
    Config,
    DistillationConfig,
    ReportCacheConfig,
    RoleConfig,
    RolesConfig,
)
from serving.retrieval.opening import open_retriever
from serving.startup import start_engines
from serving.terminal import complain


class MiniDeployment(msgspec.Struct, frozen=True):
    """A running deployment of the mini models."""

    of: Config
    """The preset `mini`, over whichever world."""
    engines: dict[str, str]
    """Base URLs by the engine's name in the preset."""
    retrieval: str
    """host:port of the retrieval service; empty leaves retrieval to whoever reads the config."""

    def config(self, file: Path, *, versions: Path | None = None) -> Config:
        """The config of a gateway in front of it, which works on every question anew; also written
        to `file`, with its store beside it. `versions`: where versions are published; then the
        untuned model is the active one at first.
        """

        def at(role: RoleConfig) -> RoleConfig:
            return msgspec.structs.replace(
                role, engine=None, base_url=self.engines[role.engine or ""]
            )

        roles = self.of.roles
        teacher = self.of.distillation.teacher
        retrieval = self.of.retrieval
        if self.retrieval:
            retrieval = msgspec.structs.replace(
                retrieval, address=self.retrieval, index=None, documents=()
            )
        config = msgspec.structs.replace(
            self.of,
            roles=RolesConfig(
                delegation=at(roles.delegation),
                execution=at(roles.execution),
                answer=at(roles.answer),
            ),
            engines={},
            report_cache=ReportCacheConfig(enabled=False),
            retrieval=retrieval,
            server=msgspec.structs.replace(
                self.of.server, store=f"sqlite:///{file.parent}/runs.db", http=None
            ),
            distillation=DistillationConfig(
                teacher=at(teacher) if teacher and teacher.engine in self.engines else None
            ),
        )
        if versions is not None:
            config = msgspec.structs.replace(
                config,
                versions=msgspec.structs.replace(config.versions, folder=str(versions), start=None),
            )
        write_config(config, file)
        return config


@asynccontextmanager
async def mini_deployment(
    config: Config, *, teacher: bool = False
) -> AsyncIterator[MiniDeployment]:
    """The preset `mini`, or a `config` like it, without its gateway. `teacher`: with the
    teacher's engine.
    """
    teaching = config.distillation.teacher
    async with AsyncExitStack() as stack:
        opened = partial(open_retriever, config.retrieval, complain, config.engines)
        also = [teaching] if teacher and teaching is not None else []
        engines, retriever = await start_engines(config, stack, complain, opened, also)
        yield MiniDeployment(config, engines, await stack.enter_async_context(retrieval(retriever)))
