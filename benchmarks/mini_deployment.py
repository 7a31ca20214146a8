"""The demo's models and retrieval, running outside of a gateway, so that a benchmark can start and
kill gateways without restarting the models.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from benchmarks.gateway import retrieval
from executor_sft.miniworld.export import write_config
from router.frozen import Frozen
from serving.config.config import (
    Config,
    DistillationConfig,
    ReportCacheConfig,
    RoleConfig,
)
from serving.retrieval.opening import open_retriever
from serving.startup import open_upstreams
from serving.terminal import complain


class MiniDeployment(Frozen):
    """Running engines of the mini models, and a running retrieval service."""

    of: Config
    """Config of the running engines and retrieval: the preset `mini`, in some benchmarks with the
    documents of another world.
    """
    engines: Mapping[str, str]
    """Base URL of each engine, by name."""
    retrieval: str
    """Address of the retrieval service, as host:port. If empty, gateways open the index themselves.
    """

    def config(self, file: Path, *, versions: Path | None = None) -> Config:
        """Write the config of a gateway that uses these engines to `file`, and return the config.
        The gateway has no report cache, and its store is in the folder of `file`.

        `versions`: folder of published versions of the executor. With it, the gateway starts with
        the untuned executor; None to keep the config's versions.
        """

        def at(role: RoleConfig) -> RoleConfig:
            return replace(role, engine=None, base_url=self.engines[role.engine or ""])

        roles = self.of.roles
        teacher = self.of.distillation.teacher
        retrieval = self.of.retrieval
        if self.retrieval:
            retrieval = replace(retrieval, address=self.retrieval, index=None, documents=())
        config = replace(
            self.of,
            roles=replace(roles, **{name: at(role) for name, role in roles.by_name.items()}),
            condenser=self.of.condenser and at(self.of.condenser),
            engines={},
            report_cache=ReportCacheConfig(enabled=False),
            retrieval=retrieval,
            server=replace(self.of.server, store=f"sqlite:///{file.parent}/runs.db", http=None),
            distillation=DistillationConfig(
                teacher=at(teacher) if teacher and teacher.engine in self.engines else None
            ),
        )
        if versions is not None:
            config = replace(
                config,
                versions=replace(config.versions, folder=str(versions), start=None),
            )
        write_config(config, file)
        return config


@asynccontextmanager
async def mini_deployment(
    config: Config, *, teacher: bool = False
) -> AsyncIterator[MiniDeployment]:
    """Start the engines and the retrieval service of `config`, and stop them on exit. `config`: the
    preset `mini`, or that preset with changes. `teacher`: also start the teacher's engine.
    """
    teacher_role = config.distillation.teacher
    open_index = partial(open_retriever, config.retrieval, complain, config.engines)
    more_roles = [teacher_role] if teacher and teacher_role else []
    async with (
        open_upstreams(config, complain, open_index, more_roles) as started,
        retrieval(started.retrieval) as address,
    ):
        yield MiniDeployment(config, started.engines, address)
