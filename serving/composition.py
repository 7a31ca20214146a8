"""The composition root: from a config to a running gateway, and everything closed again in
reverse order.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from router.access import Access, Accounts, Key
from router.background import background_tasks
from router.calls import Readiness, Role, Upstreams
from router.calls.health import watch_role
from router.calls.replicas import Breaker
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer, RunServicer, UsageServicer
from router.edge.grpc.table_service import TableServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.limits import Limits
from router.edge.listening import check_listening
from router.edge.pages import Frame
from router.edge.pages.asking import Asking, add_asking
from router.edge.pages.run import RunPages
from router.edge.pages.runs import add_runs
from router.edge.pages.usage import add_usage
from router.edge.pages.versions import add_versions
from router.errors import BadConfig, UpstreamError
from router.ledger import Journal, Reconciler
from router.ledger.reconciliation import VLLMCounts
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import close_clients
from router.models.session import fetch_text, upstream_session
from router.protocol import Vocabulary
from router.runs import Admission, Gateway, RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.runs.observers import ObservedRetriever, Observers
from router.search import Executor, ReportCache, Retriever, Topology
from router.search.answerer import Judge
from router.search.executor import Executes
from router.search.loop import settings_of
from router.search.retrieval import IndexRetriever, WatchedRetriever
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.store.follower import own_log
from router.store.log import RunLog
from router.trace import RoleName
from router.trace.values import TopologyName
from router.versions import GateRule, HeldOutQuestion, HeldOutTest, Trials, VersionRouting, Versions
from serving.config.config import Config, RoleConfig
from serving.config.prices import listed_price
from serving.config.secrets import missing
from serving.engines.engine import Log
from serving.engines.loading import Loading
from serving.retrieval.manifest import read_manifest
from serving.retrieval.opening import check_access, open_retriever
from serving.retrieval.services import RetrievalServicer
from serving.roles import all_roles, deployments, new_role
from serving.startup import start_engines
from serving.telemetry.observers import Watched, open_observers
from serving.tools import ToolPool, tool_pool
from serving.topologies import (
    new_executor,
    new_host,
    new_search,
    new_tables,
    new_topology,
    new_worker,
)

_UPSTREAM_CONNECTIONS = 1000
_GATE_ERROR = 0.05
_GATE_TRIALS = 10_000
"""In each stage of a trial, the probability of a wrong decision, and the most trials."""


@dataclass(frozen=True, slots=True)
class _Upstream:
    """All that a gateway calls."""

    readiness: Readiness
    retriever: WatchedRetriever
    session: aiohttp.ClientSession
    engines: Mapping[str, str]
    """Base URLs by name."""
    endpoints: Upstreams
    new_role: Callable[..., Role]
    roles: dict[RoleName, Role]
    baselines: dict[TopologyName, Role]
    managers: dict[str, Role]
    tools: ToolPool

    @property
    def deployments(self) -> dict[str, str | None]:
        """Places where models are served, each with the base URL of its engine."""
        return deployments(self.roles, self.baselines, self.managers)


@dataclass(frozen=True, slots=True)
class _Runs:
    """All that works on runs, and what it works with."""

    gateway: Gateway
    services: tuple[RetrievalServicer, RunServicer, UsageServicer, ExecutorVersionServicer]
    stored: Runs
    executors: VersionRouting
    trials: Trials
    observers: Observers
    usages: SQLUsages
    versions: Versions


@asynccontextmanager
async def running_gateway(
    config: Config,
    address: str,
    log: Log,
    http: str | None = None,
    *,
    key: Key | None = None,
    retriever: IndexRetriever | None = None,
    journal: Callable[[Journal], Journal] = lambda usual: usual,
) -> AsyncIterator[str]:
    """A gateway that listens at `address` while the context is open, with its engines; where it
    listens, host:port.

    `http`: where its OpenAI-compatible server is to be; None for none. `key`: one that is good
    beside those that are stored. `retriever` and `journal`: doubles, instead of the config's and
    around the store's; for measurements. `log` gets what is being done. Raises `BadConfig` or
    `BadIndex`, saying what to do. Closing drains.
    """
    for problem in missing(
        config, {"distillation.judge": judge} if (judge := _judge(config)) else {}
    ):
        raise BadConfig(problem)
    database = await Database.open(config.server.store)
    try:
        folder = config.server.log
        with own_log(database, Path(folder) if folder else None) as run_log:
            accounts = SQLAccounts(database)
            access = Access(accounts, key)
            await _check_addresses(address, http, access)  # before anything slow begins
            async with (
                _open_upstream(config, log, retriever) as upstream,
                _open_runs(
                    config, database, upstream, log, run_log=run_log, around=journal
                ) as runs,
                _listening(
                    config, access, accounts, upstream, runs, address=address, http=http, log=log
                ) as bound,
            ):
                run_log.tell(bound)
                yield bound
    finally:
        await database.close()


async def _check_addresses(address: str, http: str | None, access: Access) -> None:
    """See that nobody but this machine gets in without a key, and that nobody else listens there.
    Raises `BadConfig` and `StoreFailed`.
    """
    for setting, wanted in (("server.address", address), ("server.http", http)):
        if not wanted:
            continue
        await check_listening(wanted, setting, access)
        host, _, port = wanted.rpartition(":")
        try:
            family, kind, _, _, place = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
        except (OSError, ValueError, OverflowError) as error:
            raise BadConfig(
                f"{setting}: cannot listen on {wanted}; is the port in use? Name another "
                "one, or port 0 for any "
                f"({error})."
            ) from None


@asynccontextmanager
async def _open_upstream(
    config: Config, log: Log, double: IndexRetriever | None
) -> AsyncIterator[_Upstream]:
    """Engines, roles and the retriever. Raises `BadConfig` or `BadIndex`."""
    readiness = Readiness()
    say = partial(readiness.say, "retrieval.embedder", ["retrieval"])
    opened = partial(open_retriever, config.retrieval, log, config.engines, on_change=say)
    async with AsyncExitStack() as stack:
        opening = opened if double is None else lambda **_: nullcontext(double)
        also = [judge] if (judge := _judge(config)) else []
        engines, retriever = await start_engines(
            config, stack, log, opening, also, readiness=readiness
        )
        if config.search.access:
            await check_access(retriever)
        pool = await stack.enter_async_context(ConnectionPool(_UPSTREAM_CONNECTIONS))
        session = await stack.enter_async_context(upstream_session())
        stack.push_async_callback(close_clients)
        endpoints = Upstreams()
        new = partial(new_role, pool=pool, engines=engines, upstreams=endpoints)
        roles, baselines, managers = await all_roles(config, new)
        watched = WatchedRetriever(retriever, readiness)
        tools = await stack.enter_async_context(tool_pool(config.tools, readiness))
        yield _Upstream(
            readiness, watched, session, engines, endpoints, new, roles, baselines, managers, tools
        )


@asynccontextmanager
async def _open_runs(
    config: Config,
    database: Database,
    upstream: _Upstream,
    log: Log,
    *,
    run_log: RunLog,
    around: Callable[[Journal], Journal],
) -> AsyncIterator[_Runs]:
    """The gateway proper, with its journal, its observers and the versions of its executor.
    Raises `BadConfig`.
    """
    admission = Admission(config.admission)
    watched = Watched(admission, upstream.endpoints, upstream.deployments)
    live = LiveRuns()
    book = SQLVersionBook(database)
    async with AsyncExitStack() as stack:
        say = partial(upstream.readiness.say, "store", ["store"])
        keep_days = config.server.keep_days
        writing = LogJournal.writing(
            database, run_log, on_cancel=live.cancel, keep_days=keep_days, on_health=say
        )
        journal = await stack.enter_async_context(writing)
        archive = SQLArchive(database, journal.calls)
        observing = open_observers(config.telemetry, log, watched, config.server.http_hosts)
        observers = await stack.enter_async_context(observing)
        retriever = (
            ObservedRetriever(upstream.retriever, observers) if observers else upstream.retriever
        )
        versions, executors = await _open_versions(config, database, upstream, retriever, log)
        settings = settings_of(upstream.roles)
        timeout_s = config.server.timeout_s
        lifecycle = RunLifecycle(
            around(journal),
            archive,
            live,
            settings,
            timeout_s,
            admission=admission,
            observer=observers,
            conditions=lambda: {
                "index": retriever.index_id or "",
                "executor version": executors.traffic.active,
            },
        )
        search = partial(new_search, config.search, upstream.roles)
        judged_by = _judge(config)
        trials = Trials(
            executors,
            search,
            lifecycle=lifecycle,
            book=book,
            archive=archive,
            review=versions.review,
            judge=Judge(upstream.new_role("judge", judged_by)) if judged_by else None,
        )
        if config.versions.held_out:
            versions.held_out = HeldOutTest(
                _held_out(config.versions.held_out), executors, search, lifecycle
            )
        executor = watched.executor = _shared(config, executors, lambda: retriever.index_id)
        gateway = _gateway(
            config, upstream, retriever, executor, lifecycle=lifecycle, trials=trials
        )
        usages = SQLUsages(database, journal.under_way)
        engine_counts = VLLMCounts(partial(fetch_text, upstream.session))
        stored = Runs(archive, live, trials.judge)
        services = (
            RetrievalServicer(
                retriever, default_top_k=config.search.top_k, index_id=lambda: retriever.index_id
            ),
            RunServicer(stored),
            UsageServicer(usages, Reconciler(upstream.deployments, engine_counts, usages)),
            ExecutorVersionServicer(versions),
        )
        yield _Runs(gateway, services, stored, executors, trials, observers, usages, versions)


def _gateway(
    config: Config,
    upstream: _Upstream,
    retriever: Retriever,
    executor: Executes,
    *,
    lifecycle: RunLifecycle,
    trials: Trials,
) -> Gateway:
    roles = upstream.roles
    words = config.search.vocabulary
    baselines = {
        name: new_topology(name, config, roles, role, retriever)
        for name, role in upstream.baselines.items()
    }
    worker = replace(roles["execution"], executor_version=None)  # it is no version of the executor
    with_tools: dict[str, Executes] = {
        name: new_worker(config, worker, None, upstream.tools.view(one.tools), manager=name)
        for name, one in config.managers.items()
        if one.tools
    }
    if upstream.managers:
        baselines["host"] = new_host(config, roles, upstream.managers, executor, with_tools)
    return Gateway(
        topologies={
            "factorized": Topology(new_search(config.search, roles, executor), roles),
            **baselines,
        },
        executor=executor,
        roles=roles,
        lifecycle=lifecycle,
        tables=new_tables(
            config, roles, executor, retriever, upstream.managers, with_tools=with_tools
        ),
        table_limits=config.table,
        max_question_chars=config.server.max_question_chars,
        vocabulary=Vocabulary.parse(Path(words).read_text("utf-8")) if words else None,
        on_answered=trials.consider,
    )


async def _open_versions(
    config: Config, database: Database, upstream: _Upstream, retriever: Retriever, log: Log
) -> tuple[Versions, VersionRouting]:
    """Versions, of which one is active, and the executors that work as those. Raises
    `BadConfig`.
    """
    gate = config.versions.gate
    model = config.roles.execution.model
    book = SQLVersionBook(database)
    loading = Loading(config, upstream.engines, upstream.session)
    limits = gate.max_tokens_ratio, _GATE_TRIALS, gate.least_right
    rule = GateRule(gate.margin, _GATE_ERROR, *limits) if gate.enabled else None
    versions = Versions(book, loading.load, rule, gate.canary_share)
    named, manifest = await loading.first() or (model, "")
    await versions.ensure_base(named, manifest)
    await versions.ensure_base(model)  # to be on record, too: there may be a wish to go back to it
    new_executor = partial(_new_executor, config, upstream, retriever)
    executors = VersionRouting(new_executor, model, versions.traffic, loading.load, log)
    loading.in_use = lambda: executors.in_use
    try:
        await executors.refresh()
    except UpstreamError as error:
        log(f"versions of the executor are not in use yet: {error}")
    if (active := executors.traffic.active) != named:
        log(
            f"executor version {active} is active; the config names {named}, which "
            "`versions promote` would make it"
        )
    versions.on_change = executors.refresh
    return versions, executors


def _judge(config: Config) -> RoleConfig | None:
    """The judge that trials need; None where there is none, or no gate."""
    return config.distillation.judge if config.versions.gate.enabled else None


def _held_out(path: str) -> list[HeldOutQuestion]:
    """The questions of a file. Raises `BadConfig`."""
    try:
        return msgspec.json.Decoder(HeldOutQuestion).decode_lines(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        advice = "write lines of JSON, each with question and golden_answers"
        raise BadConfig(f"versions.held_out: {path} cannot be read ({error}); {advice}.") from None


def _new_executor(
    config: Config, upstream: _Upstream, retriever: Retriever, version: str
) -> Executor:
    """The executor of a version: what is configured, but for the model's name."""
    execution = config.roles.execution
    role = upstream.roles["execution"]
    if version != execution.model:
        made = upstream.new_role(
            "execution", msgspec.structs.replace(execution, model=version), price=role.price
        )
        role = replace(made, fallbacks=role.fallbacks)
    return new_executor(config, role, retriever)


def _shared(config: Config, executors: VersionRouting, index: Callable[[], str | None]) -> Executes:
    """The executors, shared by all who ask the same, unless that is switched off, or decoding
    is random.
    """
    execution = config.roles.execution
    cache = config.report_cache
    if not cache.enabled or (execution.temperature > 0 and execution.seed is None):
        return executors
    return ReportCache(executors, index, keep_s=cache.keep_s, across_tenants=cache.across_tenants)


@asynccontextmanager
async def _listening(
    config: Config,
    access: Access,
    accounts: Accounts,
    upstream: _Upstream,
    runs: _Runs,
    *,
    address: str,
    http: str | None,
    log: Log,
) -> AsyncIterator[str]:
    """The servers, and what goes on beside them; where gRPC listens."""
    gateway = runs.gateway
    readiness = upstream.readiness
    observers = runs.observers
    tls = config.server.tls
    tables = TableServicer(gateway, runs.stored, access)
    server = Server(
        gateway,
        *runs.services,
        tables=tables,
        access=access,
        tls=tls,
        readiness=readiness,
        observer=observers,
    )
    pages = Frame(access)
    add_runs(pages, runs.stored)
    add_usage(
        pages, runs.usages, accounts, lambda model: config.prices.get(model) or listed_price(model)
    )
    add_versions(pages, runs.versions)
    asking = Asking(gateway, access, versions=runs.versions, executors=runs.executors)
    add_asking(pages, asking)
    folder = config.retrieval.index
    RunPages(
        pages,
        runs.stored,
        asking,
        upstream.retriever,
        files_not_read=lambda: read_manifest(Path(folder)).files_not_read if folder else None,
    )
    app = openai_app(
        gateway,
        access,
        readiness,
        observer=observers,
        pages=pages,
        chat_tasks=config.server.chat_tasks,
    )
    limits = Limits(connections_per_address=config.server.http_connections_per_address)
    hosts = config.server.http_hosts
    http_server = HTTPServer(
        app, config.server.grace_s, access=access, tls=tls, limits=limits, hosts=hosts
    )
    await upstream.retriever.probe()
    port = await server.start(address)
    try:
        async with background_tasks(
            runs.executors.follow(),
            runs.trials.work(),
            upstream.retriever.follow(),
            _recover(config, upstream, runs.executors),
            *(
                watch_role(name, role, readiness, gateway.probe)
                for name, role in upstream.roles.items()
            ),
        ):
            if http:
                bound = await http_server.start(http, "server.http")
                root = f"{'https' if tls else 'http'}://{bound}"
                log(f"the OpenAI-compatible server is at {root}/v1")
                log(f"pages are at {root}/")
            yield f"{address.rpartition(':')[0]}:{port}"
    finally:
        try:
            grace_s = config.server.grace_s
            await asyncio.gather(
                server.drain(grace_s), http_server.drain(), asking.detached.drain(grace_s)
            )
        finally:
            await gateway.settled()


async def _recover(config: Config, upstream: _Upstream, executors: VersionRouting) -> None:
    """Once an engine is there again: call it again, and let the executor's load its versions;
    for ever.
    """
    down: set[str] = set()
    async for _ in upstream.readiness.changes():
        up = down - upstream.readiness.all.keys()
        down = set(upstream.readiness.all)
        for source in up & {f"engines.{name}" for name in config.engines}:
            upstream.endpoints.endpoint(source).breaker = Breaker()
            if source == f"engines.{config.roles.execution.engine}":
                executors.reload()
