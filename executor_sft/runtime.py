"""Engines, roles and retriever of a config, opened without a gateway: what the steps of a
distillation run on.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import aiohttp
import msgspec

from executor_sft.call_cache import CachedModel, CallCache
from executor_sft.step import digest_of
from router.calls import Role, Timeouts, Upstreams
from router.errors import BadConfig
from router.ledger import Ledger
from router.models.adapters import Adapters
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import close_clients
from router.models.session import upstream_session
from router.search import Executor, FactorizedSearch, RunContext, Topology
from router.search.agent import ExecutorLimits
from router.search.answerer import Judge
from router.search.retrieval import IndexRetriever
from router.table import WideSearch
from router.trace import RoleName
from router.trace.values import TopologyName
from serving.config.config import Config, RoleConfig
from serving.config.secrets import api_key, missing
from serving.engines.engine import Log
from serving.engines.loading import MOST_LOADED
from serving.engines.versions import MANIFEST
from serving.retrieval.opening import open_retriever
from serving.roles import new_role
from serving.startup import start_engines
from serving.topologies import (
    ROLE_OF,
    manager_configs,
    new_executor,
    new_host,
    new_search,
    new_topology,
    new_wide_search,
    role_configs,
)

BASE = "base"
TEACHER = "teacher"
"""Models of the config, and no adapters."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Roles, executors and searches of a config, for any number of runs at once."""

    config: Config
    retriever: IndexRetriever
    session: aiohttp.ClientSession
    pool: ConnectionPool
    engines: Mapping[str, str]
    """Base URLs by the engine's name."""
    cache: CallCache | None = None
    seed: int | None = None
    """Of all roles but the judge; None for the config's."""
    temperature: float | None = None
    """The same."""
    asking: Mapping[RoleName, Mapping[str, Any]] = field(default_factory=dict)
    """Further fields of requests to endpoints, as for the tokens of each call."""
    versions: Mapping[RoleName, str] = field(default_factory=dict)
    """Names of adapters that work as executor or delegator instead of the config's model."""
    upstreams: Upstreams = field(default_factory=Upstreams)
    """Health of endpoints, and how many calls of a role may be under way; shared by all runs."""

    @property
    def judge(self) -> Judge | None:
        """The judge of answers; None where the config names none."""
        config = self.config.distillation.judge
        return None if config is None else Judge(self.role("judge", config))

    def sampled(self, seed: int, temperature: float | None = None) -> "Runtime":
        """The same with another seed, and temperature, of all roles but the judge."""
        return replace(self, seed=seed, temperature=temperature)

    def with_versions(self, executor: str, delegator: str) -> "Runtime":
        """The same with these adapters at work, by their names; what is none is the config's
        model.
        """
        named: dict[RoleName, str] = {"execution": executor, "delegation": delegator}
        return replace(
            self,
            versions={role: name for role, name in named.items() if name not in (BASE, TEACHER)},
        )

    def role(self, name: RoleName, config: RoleConfig, *, version: str | None = None) -> Role:
        """The role that a config describes. `version`: the name of an adapter that works
        instead of its model.
        """
        # Perhaps under the student's name, elsewhere
        is_teacher = config == self.config.distillation.teacher
        if version is not None:
            config = msgspec.structs.replace(config, model=version)
        if name in self.asking and (config.engine or config.base_url):
            config = msgspec.structs.replace(
                config, extra_body={**self.asking[name], **config.extra_body}
            )
        if name != "judge" and self.seed is not None:
            temperature = config.temperature if self.temperature is None else self.temperature
            config = msgspec.structs.replace(config, seed=self.seed, temperature=temperature)
        role = new_role(name, config, self.pool, self.engines, upstreams=self.upstreams)
        # What a model writes is learnt from, so it is not held to patterns. Its replies come whole,
        # at the end.
        timeouts = Timeouts(config.call_timeout_s, config.call_timeout_s)
        role = replace(role, streams=False, structured=False, timeouts=timeouts)
        if self.cache is None:
            return role
        cached = partial(
            CachedModel,
            cache=self.cache,
            role=name,
            variant=(is_teacher, config.thinking, config.extra_body),
        )
        others = tuple(replace(other, model=cached(other.model)) for other in role.others)
        return replace(role, model=cached(role.model), others=others)

    def executor(self, role: Role | None = None, limits: ExecutorLimits | None = None) -> Executor:
        """An executor; with the config's role and limits, unless there are others."""
        version = self.versions.get("execution")
        role = role or self.role("execution", self.config.roles.execution, version=version)
        return new_executor(self.config, role, self.retriever, limits)

    def search(self, executor: Executor) -> FactorizedSearch:
        """A search with the config's backbone and answerer."""
        return new_search(self.config.search, self._others, executor)

    def wide_search(self, executor: Executor) -> WideSearch:
        """A search that fills tables, with the config's backbone."""
        return new_wide_search(self.config, self._others, executor)

    def topology(self, name: TopologyName, executor: Executor | None = None) -> Topology:
        """A way to answer, with its roles. `executor`: of `factorized`; None for the config's
        model. Raises `BadConfig` for one that is not set up.
        """
        if name == "factorized":
            executor = executor or self.executor()
            return Topology(
                self.search(executor), {**self._others, "execution": executor.role(self.context())}
            )
        if name == "host" and self.config.managers:
            for manager, one in self.config.managers.items():
                if one.tools:
                    raise BadConfig(
                        f"managers.{manager}.tools: only a gateway runs tools; leave it out here."
                    )
            executor = executor or self.executor()
            roles = self._others | {"execution": executor.role(self.context())}
            managing = manager_configs(self.config).items()
            managers = {manager: self.role("delegation", config) for manager, config in managing}
            return new_host(self.config, roles, managers, executor)
        described = role_configs(self.config)
        if name not in described:
            raise BadConfig(
                f"topology {name}: is not set up; add [topologies.{name}] to the config."
            )
        own = self.role(ROLE_OF[name], described[name])
        return new_topology(name, self.config, self._others, own, self.retriever)

    @property
    def _others(self) -> dict[RoleName, Role]:
        """The backbone and the answerer."""
        roles = self.config.roles
        delegation = self.role(
            "delegation", roles.delegation, version=self.versions.get("delegation")
        )
        return {"delegation": delegation, "answer": self.role("answer", roles.answer)}

    def context(self, time_s: float | None = None) -> RunContext:
        """A context for one run that begins now, which is not stored. `time_s`: seconds, if not
        those of an answer.
        """
        ledger = Ledger(f"sft-{token_hex(8)}")  # engines tell calls apart by it
        return RunContext.lasting(
            time_s or self.config.server.timeout_s, lambda event: None, ledger
        )


def named_adapters(given: Sequence[str], others: Sequence[str] = (BASE,)) -> dict[str, Path | None]:
    """Folders of adapters by the names under which they are loaded; None for `others`. Raises
    `BadConfig`.
    """
    named = dict(
        (which, None) if which in others else (adapter_name(Path(which)), Path(which))
        for which in given
    )
    if len(named) < len(given):
        raise BadConfig(f"{' '.join(given)}: names the same one twice.")
    return named


def adapter_name(folder: Path) -> str:
    """The name under which an adapter is loaded: its version's, or that of its training with a part
    of its digest, as an engine that goes on running may still hold an older one. Raises `BadConfig`
    where there is none.
    """
    path = folder.resolve()
    return (
        path.name
        if (path / MANIFEST).exists()
        else f"{path.parent.name}-{digest_of(path / ADAPTER_WEIGHTS)[:8]}"
    )


def adapter_files(named: Mapping[str, Path | None]) -> dict[str, Path]:
    """The weights of those that are adapters."""
    return {name: folder / ADAPTER_WEIGHTS for name, folder in named.items() if folder}


@asynccontextmanager
async def open_runtime(
    config: Config,
    log: Log,
    *,
    cache: Path | None = None,
    adapters: Mapping[str, Path | None] = {},
    delegators: Mapping[str, Path | None] = {},
    teacher: bool = False,
    extra_roles: Mapping[str, RoleConfig] = {},
) -> AsyncIterator[Runtime]:
    """Start what the config names, and stop it again.

    `log`: called with a line for each part that starts. `cache`: a file in which every completed
    model call is kept, so that none is made twice, now or later. `adapters`, `delegators`: as of
    `named_adapters`, loaded into their role's engine meanwhile. `teacher`: it is needed.
    `extra_roles`: further roles that are, by the names refusals give them. Raises `BadConfig`,
    `BadIndex`, `BadVersion` and `UpstreamUnavailable`.
    """
    distillation = config.distillation
    further = {"judge": distillation.judge, "teacher": distillation.teacher if teacher else None}
    also = {f"distillation.{name}": role for name, role in further.items() if role} | dict(
        extra_roles
    )
    for problem in missing(config, also):
        raise BadConfig(problem)
    if (count := max(len(adapter_files(adapters)), len(adapter_files(delegators)))) > MOST_LOADED:
        raise BadConfig(f"{count} adapters at a time; an engine takes {MOST_LOADED}.")
    async with AsyncExitStack() as stack:
        opened_cache = stack.enter_context(CallCache.open(cache)) if cache else None
        opened = partial(open_retriever, config.retrieval, log, config.engines)
        engines, retriever = await start_engines(config, stack, log, opened, list(also.values()))
        pool = await stack.enter_async_context(ConnectionPool())
        session = await stack.enter_async_context(upstream_session())
        stack.push_async_callback(close_clients)
        for which, wanted in (("execution", adapters), ("delegation", delegators)):
            role: RoleConfig = getattr(config.roles, which)
            for name, weights in adapter_files(wanted).items():
                if (base_url := engines[role.engine] if role.engine else role.base_url) is None:
                    raise BadConfig(
                        f"roles.{which}: adapters need a vLLM of our own; name its "
                        "engine or base_url."
                    )
                loading = Adapters(session, base_url, api_key(role.api_key_env))
                if await loading.load(name, weights.parent.resolve()):
                    stack.push_async_callback(loading.unload, name)
        yield Runtime(config, retriever, session, pool, engines, opened_cache)
