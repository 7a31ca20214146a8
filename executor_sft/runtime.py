"""Open the engines, endpoints and retriever of a config without a gateway, so that the `rolegate
sft` commands can answer questions and fill tables.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path
from secrets import token_hex
from typing import Any, get_args

from msgspec import structs

from executor_sft.call_cache import CachedModel, CallCache, KeptCall
from executor_sft.step import digest_of
from router.calls import Role, Timeouts, Upstreams
from router.errors import BadConfig, RolegateError
from router.ledger import Ledger
from router.models.adapters import Adapters
from router.search import Executor, FactorizedSearch, RunContext, Topology
from router.search.agent import ExecutorLimits
from router.search.answerer import Judge
from router.search.retrieval import IndexRetriever
from router.table import WideSearch
from router.trace import RoleName
from router.trace.values import TopologyName
from serving.bulk import Ask, finished, workers_of
from serving.config.config import Config, RoleConfig
from serving.config.prices import price_of
from serving.config.secrets import api_key, missing
from serving.engines.engine import Log
from serving.engines.loading import MAX_LOADED
from serving.engines.versions import MANIFEST
from serving.retrieval.opening import open_retriever
from serving.retrieval.reranker import reranked
from serving.startup import open_upstreams
from serving.topologies import (
    manager_configs,
    new_host,
    new_search,
    new_tables,
    new_worker,
)

BASE = "base"
TEACHER = "teacher"
"""Values of options such as `--executor`, which can also name the folder of an adapter. `base`: the
role's model in the config. `teacher`: the model of `distillation.teacher`.
"""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_SAMPLED = frozenset(get_args(RoleName)) - {"judge"}


@dataclass(frozen=True, slots=True)
class Runtime:
    """The opened engines, endpoints and retriever of a config. Creates roles, executors and
    searches that use them. Any number of runs may share a runtime concurrently.
    """

    config: Config
    retriever: IndexRetriever
    new_role: Callable[..., Role]
    """Function that makes a role from its name and config; see `Started.new_role`."""
    cache: CallCache | None = None
    """Cache of completed model calls; None to make every call."""
    seed: int | None = None
    """Seed of the roles in `sampled_roles`; None for the seeds in the config."""
    temperature: float | None = None
    """Temperature of the roles in `sampled_roles`; None for the temperatures in the config. Ignored
    if `seed` is None.
    """
    sampled_roles: Collection[RoleName] = _SAMPLED
    """Roles to which `seed` and `temperature` apply."""
    asking: Mapping[RoleName, Mapping[str, Any]] = field(default_factory=dict)
    """Fields to add to the requests of each role, such as `return_token_ids`."""
    versions: Mapping[RoleName, str] = field(default_factory=dict)
    """Name of the adapter that replaces the config's model, for each role that uses an adapter."""
    upstreams: Upstreams = field(default_factory=Upstreams)
    """Health of the endpoints, and limits of concurrent calls; shared by all runs."""
    loaders: Mapping[RoleName, Adapters] = field(default_factory=dict)
    """For delegator and executor: client that loads adapters into the role's engine."""

    @property
    def judge(self) -> Judge | None:
        """The judge of answers; None if the config names no judge."""
        config = self.config.distillation.judge
        return None if config is None else Judge(self.role("judge", config))

    def sampled(
        self,
        seed: int,
        temperature: float | None = None,
        roles: Collection[RoleName] = _SAMPLED,
    ) -> "Runtime":
        """Return a copy that uses this seed and temperature. `temperature`: None for the
        temperatures in the config. `roles`: the roles to which seed and temperature apply, by
        default all but the judge. All other roles keep the config's seed and temperature.
        """
        return replace(self, seed=seed, temperature=temperature, sampled_roles=roles)

    def with_versions(self, executor: str, delegator: str) -> "Runtime":
        """Return a copy that uses the adapters named `executor` and `delegator`. With the name
        `base` or `teacher`, which is no adapter, the role keeps its model.
        """
        named: dict[RoleName, str] = {"execution": executor, "delegation": delegator}
        return replace(
            self,
            versions={role: name for role, name in named.items() if name not in (BASE, TEACHER)},
        )

    def role(self, name: RoleName, config: RoleConfig, *, version: str | None = None) -> Role:
        """Return a role with the model and settings of `config`, and with this runtime's seed,
        temperature and cache.

        `name`: name of the role, under which its calls are recorded. `version`: name of an adapter
        that replaces the model.
        """
        # Part of the cache key, because teacher and student may have models of the same name
        is_teacher = config == self.config.distillation.teacher
        if version is not None:
            config = structs.replace(config, model=version)
        if name in self.asking and (config.engine or config.base_url):
            config = structs.replace(
                config,
                extra_body={**self.asking[name], **config.extra_body},
            )
        if self.seed is not None and name in self.sampled_roles:
            temperature = config.temperature if self.temperature is None else self.temperature
            config = structs.replace(config, seed=self.seed, temperature=temperature)
        price = price_of(config, self.config.prices)
        role = self.new_role(name, config, price=price, upstreams=self.upstreams)
        # No structured outputs: they would constrain the texts that the student is trained on.
        # No streaming: the first token may then take as long as the whole call.
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
        """Return an executor. `role`: role with the executor's model; by default, the config's
        executor or the adapter that replaces it. `limits`: limits of searches and turns; by
        default, the limits in the config.
        """
        version = self.versions.get("execution")
        role = role or self.role("execution", self.config.roles.execution, version=version)
        return new_worker(self.config, role, self.retriever, limits=limits)

    def search(self, executor: Executor) -> FactorizedSearch:
        """Return a search for answers, with `executor` and the config's delegator and answerer."""
        return new_search(self.config.search, self._others, executor)

    def topology(self, name: TopologyName, executor: Executor | None = None) -> Topology:
        """Return the topology `name`: `factorized`, or `host`, which has managers between delegator
        and executors.

        `executor`: the executor to use; None for the executor in the config. Raises `BadConfig` if
        a manager of the topology `host` has tools.
        """
        executor = executor or self.executor()
        roles = self._others
        roles["execution"] = executor.role(self.context())
        if name == "factorized":
            return Topology(self.search(executor), roles)
        return new_host(self.config, roles, self._managers, executor)

    def tables(
        self, name: TopologyName, executor: Executor | None = None
    ) -> tuple[WideSearch, dict[str, Role]]:
        """Return the search that fills tables in the topology `name`, and the roles of this search
        by name. `executor`: the executor to use; None for the executor in the config. Raises the
        same errors as `topology`.
        """
        executor = executor or self.executor()
        roles = {**self._others, "execution": executor.role(self.context())}
        managers = self._managers if name == "host" else {}
        return new_tables(self.config, roles, executor, self.retriever, managers)

    @property
    def _managers(self) -> dict[str, Role]:
        """Roles of the managers. Raises `BadConfig` if there are no managers, or if a manager has
        tools.
        """
        if not self.config.managers:
            raise BadConfig(
                "managers: the topology 'host' needs managers; add a table [managers.NAME]."
            )
        for manager, section in self.config.managers.items():
            if section.tools:
                raise BadConfig(
                    f"managers.{manager}.tools: tools work only in a gateway, not in this command; "
                    "remove this key from the config of the command."
                )
        return {
            manager: self.role("delegation", config)
            for manager, config in manager_configs(self.config).items()
        }

    @property
    def _others(self) -> dict[RoleName, Role]:
        """Roles of the delegator and of the answerer."""
        roles = self.config.roles
        delegation = self.role(
            "delegation", roles.delegation, version=self.versions.get("delegation")
        )
        return {"delegation": delegation, "answer": self.role("answer", roles.answer)}

    def context(self, time_s: float | None = None) -> RunContext:
        """Return the context of a new run, which is not stored. The run's time begins now.
        `time_s`: time limit of the run in seconds; by default, the config's `server.timeout_s`.
        """
        ledger = Ledger(f"sft-{token_hex(8)}")  # request ids at engines begin with this name
        return RunContext.lasting(
            time_s or self.config.server.timeout_s,
            lambda event: None,
            ledger,
        )


def named_adapters(given: Sequence[str], others: Sequence[str] = (BASE,)) -> dict[str, Path | None]:
    """Return the folder of each adapter in `given`. Keys are the names under which engines load the
    adapters.

    `given`: folders of adapters, or names from `others`; the result has None for names from
    `others`. Raises `BadConfig` if a model is named twice, or if a folder has no adapter.
    """
    folders = dict[str, Path | None]()
    for name in given:
        if name in others:
            folders[name] = None
        else:
            folders[adapter_name(Path(name))] = Path(name)
    if len(folders) < len(given):
        raise BadConfig(
            f"models {', '.join(given)}: two of them are the same model; name each model once."
        )
    return folders


def adapter_name(folder: Path) -> str:
    """Return the name under which engines load the adapter in `folder`.

    A published version keeps its name. Any other adapter gets the name of its parent folder with
    the beginning of the weights' SHA-256, because a running engine may still have an older adapter
    from the same folder loaded. Raises `BadConfig` if there are no weights.
    """
    path = folder.resolve()
    if (path / MANIFEST).exists():
        return path.name
    return f"{path.parent.name}-{digest_of(path / ADAPTER_WEIGHTS)[:8]}"


def adapter_files(named: Mapping[str, Path | None]) -> dict[str, Path]:
    """Return the weights file of each adapter, by the adapter's name. `named`: as returned by
    `named_adapters`; names without a folder are left out.
    """
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

    `log`: called with a line of text for each part that starts. `cache`: file of the `CallCache`;
    None for no cache. `adapters`: adapters to load into the executor's engine, as returned by
    `named_adapters`. `delegators`: adapters to load into the delegator's engine. `teacher`: also
    start the teacher's engine. `extra_roles`: further roles whose engines are needed; the keys are
    used in error messages.

    Raises `BadConfig` if the config cannot be used here, `BadIndex` for a bad index, `BadVersion`
    for a bad adapter, and `UpstreamUnavailable` if an endpoint cannot be reached.
    """
    config = structs.replace(config, condenser=None)  # no conversations are rolled out
    also = dict(extra_roles)
    if config.distillation.judge:
        also["distillation.judge"] = config.distillation.judge
    if teacher and config.distillation.teacher:
        also["distillation.teacher"] = config.distillation.teacher
    for problem in missing(config, also):
        raise BadConfig(problem)
    count = max(len(adapter_files(named)) for named in (adapters, delegators))
    if count > MAX_LOADED:
        raise BadConfig(
            f"{count} adapters for one role, but an engine loads at most {MAX_LOADED}; give fewer."
        )

    async with AsyncExitStack() as stack:
        opened_cache = stack.enter_context(CallCache.open(cache)) if cache else None
        opened = partial(open_retriever, config.retrieval, log, config.engines)
        started = await stack.enter_async_context(
            open_upstreams(config, log, opened, list(also.values()))
        )
        loaders = dict[RoleName, Adapters]()
        given: dict[RoleName, Mapping[str, Path | None]] = {
            "execution": adapters,
            "delegation": delegators,
        }
        for role_name, named in given.items():
            role = config.roles.by_name[role_name]
            base_url = started.engines[role.engine] if role.engine else role.base_url
            if base_url:
                loading = Adapters(started.session, base_url, api_key(role.api_key_env))
                loaders[role_name] = loading
            for name, weights in adapter_files(named).items():
                if base_url is None:
                    raise BadConfig(
                        f"roles.{role_name}: has neither engine nor base_url, and only vLLM loads "
                        "adapters; set engine, or the base_url of a vLLM server."
                    )
                if await loading.load(name, weights.parent.resolve()):
                    stack.push_async_callback(loading.unload, name)
        yield Runtime(
            config,
            reranked(started.retrieval, config.reranker, started.session, config.prices),
            started.new_role,
            opened_cache,
            loaders=loaders,
        )


Work = Callable[[Runtime], Ask]
"""Function that takes a runtime. It returns the function to be called with each item, such as a
question.
"""


def spread(runtime: Runtime, work: Work, ray: str | None) -> Ask:
    """Return the function `work(runtime)`, which works on one item in this process. With `ray`,
    return a function that does the same in the workers of a Ray cluster. The workers' model calls
    are kept in the cache of `runtime`.

    `work`: must be picklable. `ray`: the cluster, `local` or HOST:PORT, see `workers_of`. Raises
    `BadConfig` if the config has engines, or the cluster cannot be used.
    """
    if ray is None:
        return work(runtime)
    if runtime.config.engines:
        raise BadConfig(
            f"--ray {ray}: workers cannot start engines; serve the models separately, set "
            "base_url instead of engine, and remove the tables [engines.NAME]."
        )
    workers = cycle(workers_of(ray, _Worker))

    async def ask(item: object) -> Any:
        call = next(workers).work_on.remote(item, work, runtime.config)
        result, calls = await finished(call)
        assert runtime.cache
        for completed in calls:
            runtime.cache.keep(completed)
        if isinstance(result, RolegateError):
            raise result
        return result

    return ask


class _Worker:
    """A worker process on a Ray cluster. Works on any number of items concurrently."""

    _stack = AsyncExitStack()
    """Keeps the runtime open. A class attribute is enough, because a process has only one worker.
    """
    _opened: Any = None
    """Future of the runtime; None before the first item."""

    async def work_on(self, item: object, work: Work, config: Config) -> Any:
        """Return (result or error of the item, completed model calls). The configs of all items
        must have the same retriever.
        """
        if self._opened is None:
            entered = self._stack.enter_async_context(open_runtime(config, print))
            self._opened = asyncio.ensure_future(entered)
        calls = list[KeptCall]()
        try:
            runtime = await self._opened
            # A remote retriever learns the id of its index with the first search
            await runtime.retriever.search(["warm up"], 1)
            runtime = replace(runtime, config=config, cache=CallCache(calls))
            result = await work(runtime)(item)
        except RolegateError as error:
            result = error
        return result, calls
