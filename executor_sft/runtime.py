"""Open the engines, roles and retriever of a config without a gateway, for the steps of a
distillation.
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
from serving.config.prices import price_of
from serving.config.secrets import api_key, missing
from serving.engines.engine import Log
from serving.engines.loading import MAX_LOADED
from serving.engines.versions import MANIFEST
from serving.retrieval.opening import open_retriever
from serving.roles import new_role
from serving.startup import start_engines
from serving.topologies import (
    manager_configs,
    new_executor,
    new_host,
    new_search,
    new_wide_search,
)

BASE = "base"
TEACHER = "teacher"
"""Names of the config's models, where adapters may be named as well."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Roles, executors and searches of a config, for any number of concurrent runs."""

    config: Config
    retriever: IndexRetriever
    session: aiohttp.ClientSession
    pool: ConnectionPool
    engines: Mapping[str, str]
    """Base URL of each engine, by name."""
    cache: CallCache | None = None
    seed: int | None = None
    """Seed of all roles but the judge; None for the config's."""
    temperature: float | None = None
    """Temperature of all roles but the judge; used only with `seed`, None for the config's."""
    asking: Mapping[RoleName, Mapping[str, Any]] = field(default_factory=dict)
    """Extra request fields for endpoints, by role, such as `return_token_ids`."""
    versions: Mapping[RoleName, str] = field(default_factory=dict)
    """Adapters that replace the config's model, by role."""
    upstreams: Upstreams = field(default_factory=Upstreams)
    """Health of endpoints and limits of calls in flight; shared by all runs."""

    @property
    def judge(self) -> Judge | None:
        """The judge of answers; None where the config names none."""
        config = self.config.distillation.judge
        return None if config is None else Judge(self.role("judge", config))

    def sampled(self, seed: int, temperature: float | None = None) -> "Runtime":
        """Return a copy with this seed and temperature for all roles but the judge."""
        return replace(self, seed=seed, temperature=temperature)

    def with_versions(self, executor: str, delegator: str) -> "Runtime":
        """Return a copy with these adapters; `base` and `teacher` stand for the config's models."""
        named: dict[RoleName, str] = {"execution": executor, "delegation": delegator}
        return replace(
            self,
            versions={role: name for role, name in named.items() if name not in (BASE, TEACHER)},
        )

    def role(self, name: RoleName, config: RoleConfig, *, version: str | None = None) -> Role:
        """Return the role of a config. `version`: an adapter that replaces its model."""
        # Tells the teacher's calls from the student's in the cache, if their models share a name
        is_teacher = config == self.config.distillation.teacher
        if version is not None:
            config = msgspec.structs.replace(config, model=version)
        if name in self.asking and (config.engine or config.base_url):
            config = msgspec.structs.replace(
                config,
                extra_body={**self.asking[name], **config.extra_body},
            )
        if name != "judge" and self.seed is not None:
            temperature = config.temperature if self.temperature is None else self.temperature
            config = msgspec.structs.replace(config, seed=self.seed, temperature=temperature)
        role = new_role(
            name,
            config,
            self.pool,
            self.engines,
            price=price_of(config, self.config.prices),
            upstreams=self.upstreams,
        )
        # The student learns from these outputs, so structured outputs must not constrain them.
        # Replies are not streamed, so the first token may take as long as the whole call.
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
        """Return an executor with this role and these limits; by default, the config's."""
        version = self.versions.get("execution")
        role = role or self.role("execution", self.config.roles.execution, version=version)
        return new_executor(self.config, role, self.retriever, limits)

    def search(self, executor: Executor) -> FactorizedSearch:
        """Return a search with the config's backbone and answerer."""
        return new_search(self.config.search, self._others, executor)

    def wide_search(self, executor: Executor) -> WideSearch:
        """Return a search that fills tables, with the config's backbone."""
        return new_wide_search(self.config, self._others, executor)

    def topology(self, name: TopologyName, executor: Executor | None = None) -> Topology:
        """Return a topology with its roles. `executor`: None for the config's. Raises `BadConfig`
        if a manager has tools.
        """
        executor = executor or self.executor()
        roles = self._others
        roles["execution"] = executor.role(self.context())
        if name == "factorized":
            return Topology(self.search(executor), roles)
        for manager, section in self.config.managers.items():
            if section.tools:
                raise BadConfig(
                    f"managers.{manager}.tools: only a gateway runs tools; remove it here."
                )
        managers = {
            manager: self.role("delegation", config)
            for manager, config in manager_configs(self.config).items()
        }
        return new_host(self.config, roles, managers, executor)

    @property
    def _others(self) -> dict[RoleName, Role]:
        """Roles of the backbone and of the answerer."""
        roles = self.config.roles
        delegation = self.role(
            "delegation", roles.delegation, version=self.versions.get("delegation")
        )
        return {"delegation": delegation, "answer": self.role("answer", roles.answer)}

    def context(self, time_s: float | None = None) -> RunContext:
        """Return the context of a run that begins now and is not stored. `time_s`: its time limit;
        by default, that of an answer.
        """
        ledger = Ledger(f"sft-{token_hex(8)}")  # engines identify calls by it
        return RunContext.lasting(
            time_s or self.config.server.timeout_s,
            lambda event: None,
            ledger,
        )


def named_adapters(given: Sequence[str], others: Sequence[str] = (BASE,)) -> dict[str, Path | None]:
    """Return the folders of adapters by the names under which engines load them; None for a name
    in `others`. Raises `BadConfig`.
    """
    folders: dict[str, Path | None] = {}
    for name in given:
        if name in others:
            folders[name] = None
        else:
            folders[adapter_name(Path(name))] = Path(name)
    if len(folders) < len(given):
        raise BadConfig(f"{' '.join(given)}: names a model twice.")
    return folders


def adapter_name(folder: Path) -> str:
    """Return the name under which engines load an adapter: that of its version, or of its training
    with a part of its digest, as a running engine may still hold an older one. Raises `BadConfig`.
    """
    path = folder.resolve()
    if (path / MANIFEST).exists():
        return path.name
    return f"{path.parent.name}-{digest_of(path / ADAPTER_WEIGHTS)[:8]}"


def adapter_files(named: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return the weights of the adapters among `named`."""
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
    """Start the engines and the retriever of a config, and stop them on exit.

    `log`: called with a line for each part that starts. `cache`: file in which completed model
    calls are kept, so that none is repeated. `adapters`, `delegators`: as of `named_adapters`,
    loaded into the engine of the executor or the delegator. `teacher`: whether the teacher is
    needed. `extra_roles`: further roles, by their names in errors. Raises `BadConfig`, `BadIndex`,
    `BadVersion` and `UpstreamUnavailable`.
    """
    also = dict(extra_roles)
    if config.distillation.judge:
        also["distillation.judge"] = config.distillation.judge
    if teacher and config.distillation.teacher:
        also["distillation.teacher"] = config.distillation.teacher
    for problem in missing(config, also):
        raise BadConfig(problem)
    count = max(len(adapter_files(named)) for named in (adapters, delegators))
    if count > MAX_LOADED:
        raise BadConfig(f"{count} adapters for one role; an engine loads at most {MAX_LOADED}.")

    async with AsyncExitStack() as stack:
        opened_cache = stack.enter_context(CallCache.open(cache)) if cache else None
        opened = partial(open_retriever, config.retrieval, log, config.engines)
        engines, retriever = await start_engines(
            config,
            stack,
            log,
            opened,
            list(also.values()),
        )
        pool = await stack.enter_async_context(ConnectionPool())
        session = await stack.enter_async_context(upstream_session())
        stack.push_async_callback(close_clients)
        for role_name, named in (("execution", adapters), ("delegation", delegators)):
            role: RoleConfig = getattr(config.roles, role_name)
            for name, weights in adapter_files(named).items():
                base_url = engines[role.engine] if role.engine else role.base_url
                if base_url is None:
                    raise BadConfig(
                        f"roles.{role_name}: only vLLM loads adapters; set engine or base_url."
                    )
                loading = Adapters(session, base_url, api_key(role.api_key_env))
                if await loading.load(name, weights.parent.resolve()):
                    stack.push_async_callback(loading.unload, name)
        yield Runtime(
            config,
            retriever,
            session,
            pool,
            engines,
            opened_cache,
        )
