"""The demo's models and retrieval without a gateway, so that gateways can be started and killed in
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
    """Running engines and retrieval of the mini models."""

    of: Config
    """Config like the preset `mini`, over any world."""
    engines: dict[str, str]
    """Base URLs by engine name."""
    retrieval: str
    """host:port of the retrieval service; if empty, `config` keeps the index and documents of `of`.
    """

    def config(self, file: Path, *, versions: Path | None = None) -> Config:
        """Return the config of a gateway in front of this deployment, without a report cache, and
        write it to `file`; its store is in the same folder. `versions`: folder of published
        versions; the gateway then starts with the untuned model.
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
    """Start the engines and the retrieval of a config like the preset `mini`. `teacher`: start the
    teacher's engine, too.
    """
    teacher_role = config.distillation.teacher
    async with AsyncExitStack() as stack:
        open_index = partial(open_retriever, config.retrieval, complain, config.engines)
        more_roles = [teacher_role] if teacher and teacher_role else []
        engines, retriever = await start_engines(
            config,
            stack,
            complain,
            open_index,
            more_roles,
        )
        yield MiniDeployment(config, engines, await stack.enter_async_context(retrieval(retriever)))
