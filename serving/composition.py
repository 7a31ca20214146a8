"""The composition root: from a config to a running gateway, and everything closed again in reverse order."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from router.access import Access, Key
from router.calls.health import Readiness, watch_role
from router.calls.replicas import Breaker, Upstreams
from router.calls.role import Role
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer, RunServicer, UsageServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.listening import TLS, check_listening
from router.errors import BadConfig, UpstreamError
from router.ledger.journal import Journal
from router.ledger.reconciliation import Reconciler, VLLMCounts
from router.models.litellm_client import close_clients
from router.models.session import upstream_session
from router.protocol.scope import Scope
from router.runs.admission import Admission, AdmissionLimits
from router.runs.gateway import Gateway
from router.runs.lifecycle import RunLifecycle
from router.runs.live import LiveRuns, meanwhile
from router.runs.observers import ObservedRetriever
from router.runs.queries import Runs
from router.search.executor import Executes, Executor
from router.search.loop import FactorizedSearch, Topology, settings_of
from router.search.retrieval import Retriever, WatchedRetriever
from router.search.sharing import Reuse, SharedExecutor
from router.store.accounts import SQLAccounts
from router.store.archive import SQLArchive
from router.store.database import Database
from router.store.journal import SQLJournal
from router.store.reconciliation import SQLLedgerSums
from router.store.usage import SQLUsages
from router.store.versions import SQLVersionBook
from router.trace.call import RoleName
from router.trace.values import TopologyName
from router.versions.book import VersionBook
from router.versions.gate import GateRule
from router.versions.routing import Executors
from router.versions.trials import Trials
from router.versions.versions import Versions
from serving.config.config import Config, ServerConfig
from serving.config.secrets import missing
from serving.engines.engine import Tell
from serving.engines.loading import Loading
from serving.reserved_port import reserved
from serving.retrieval.services import RetrievalServicer
from serving.roles import all_roles, deployments, new_role
from serving.startup import engines_and_retriever
from serving.telemetry.observers import Watched, open_observers
from serving.topologies import executor_limits, new_search, new_topology

_UPSTREAM_CONNECTIONS = 1000


@asynccontextmanager
async def running_gateway(
    config: Config,
    address: str,
    tell: Tell,
    http: str | None = None,
    *,
    key: Key | None = None,
    journal: Journal | None = None,
) -> AsyncIterator[str]:
    """A gateway that listens at `address` while the context is open, with its engines; where it listens, host:port.

    `http`: where its OpenAI-compatible door is to be; None keeps it shut. `key`: one that is good beside those that are
    stored. `journal`: instead of the store's. `tell` hears what is being done.
    Raises `BadConfig` or `BadIndex`, saying what to do. Closing drains.
    """
    for problem in missing(config):
        raise BadConfig(problem)
    async with AsyncExitStack() as stack:
        database = await Database.open(config.server.store)
        stack.push_async_callback(database.close)
        access = Access(SQLAccounts(database), key)
        await check_addresses(address, http, access)  # before anything slow begins
        readiness = Readiness()
        engines, retriever = await engines_and_retriever(config, stack, tell, readiness)
        session = await stack.enter_async_context(upstream_session(_UPSTREAM_CONNECTIONS))
        stack.push_async_callback(close_clients)
        upstreams = Upstreams()
        new = partial(new_role, session=session, engines=engines, upstreams=upstreams)
        roles, own = await all_roles(config, new)
        admission = Admission(AdmissionLimits(**msgspec.structs.asdict(config.admission)))
        executor: Executes | None = None
        observers = await stack.enter_async_context(
            open_observers(
                config.telemetry,
                tell,
                Watched(admission, upstreams, lambda: executor, deployments(roles, own)),
                config.server.http_hosts,
            )
        )
        watched = WatchedRetriever(retriever, readiness)
        retriever = ObservedRetriever(watched, observers) if observers else watched
        live, archive, book = LiveRuns(), SQLArchive(database), SQLVersionBook(database)
        loading = Loading(config, engines, session)
        versions, named = await _versions(config, loading, book)
        make = partial(_executor, config, roles["execution"], new, retriever)
        executors = Executors(make, config.roles.execution.model, versions.traffic, loading.load, tell)
        loading.in_use = lambda: executors.in_use
        await _use_versions(executors, named, tell)
        versions.on_change = executors.wake
        books = await stack.enter_async_context(_journal(config.server, database, live, readiness, journal))
        lifecycle = RunLifecycle(
            books,
            archive,
            live,
            settings_of(roles),
            config.server.timeout_s,
            admission=admission,
            observer=observers,
        )
        search = partial(new_search, config.search, roles)
        trials = Trials(executors, search, lifecycle=lifecycle, book=book, archive=archive, review=versions.review)
        executor = _sharing(config, executors, lambda: retriever.index_id)
        gateway = Gateway(
            topologies=_topologies(config, roles, own, retriever, search(executor)),
            executor=executor,
            roles=roles,
            lifecycle=lifecycle,
            max_question_chars=config.server.max_question_chars,
            scope=Scope.parse(Path(config.search.scope).read_text("utf-8")) if config.search.scope else None,
            on_answered=trials.consider,
        )
        reconciler = Reconciler(deployments(roles, own), VLLMCounts(session), SQLLedgerSums(database))
        tls = TLS(**msgspec.structs.asdict(config.server.tls)) if config.server.tls else None
        server = Server(
            gateway,
            RetrievalServicer(retriever, default_top_k=config.search.top_k, index_id=lambda: retriever.index_id),
            RunServicer(Runs(archive, live, trials.judge)),
            UsageServicer(SQLUsages(database), reconciler),
            ExecutorVersionServicer(versions),
            access=access,
            tls=tls,
            readiness=readiness,
            observer=observers,
        )
        app = openai_app(gateway, access, readiness, observer=observers)
        door = HTTPServer(
            app,
            config.server.grace_s,
            access=access,
            tls=tls,
            hosts=config.server.http_hosts,
        )
        await watched.probe()
        port = await server.start(address)
        stack.push_async_callback(_drain, server, door, gateway, config.server.grace_s)
        await stack.enter_async_context(
            meanwhile(
                executors.follow(),
                trials.work(),
                watched.follow(),
                _reload(config, readiness, upstreams, executors),
                *(watch_role(name, role, readiness, gateway.probe) for name, role in roles.items()),
            )
        )
        if http:
            scheme = "https" if tls else "http"
            tell(f"the OpenAI-compatible door is at {scheme}://{await door.start(http, 'server.http')}/v1")
        yield f"{address.rpartition(':')[0]}:{port}"


@asynccontextmanager
async def _journal(
    server: ServerConfig, database: Database, live: LiveRuns, readiness: Readiness, instead: Journal | None
) -> AsyncIterator[Journal]:
    if instead is not None:
        yield instead
        return
    say = partial(readiness.say, "store", ["store"])
    async with SQLJournal.writing(
        database, on_cancel=live.cancel, on_health=say, keep_days=server.keep_days
    ) as journal:
        yield journal


async def check_addresses(address: str, http: str | None, access: Access) -> None:
    """See that nobody but this machine gets in without a key, and that nobody else listens there.
    Raises `BadConfig` and `StoreFailed`.
    """
    for setting, wanted in (("server.address", address), ("server.http", http)):
        if wanted:
            await check_listening(wanted, setting, access)
            reserved(wanted, setting)[0].close()


async def _use_versions(executors: Executors, named: str, tell: Tell) -> None:
    """Begin with what is on record; `named`: what the config would begin with."""
    try:
        await executors.refresh()
    except UpstreamError as error:
        tell(f"versions of the executor are not in use yet: {error}")
    if (active := executors.traffic.active) != named:
        tell(f"executor version {active} is active; the config names {named}, which `versions promote` would make it")


async def _drain(server: Server, door: HTTPServer, gateway: Gateway, grace_s: float) -> None:
    try:
        await asyncio.gather(server.drain(grace_s), door.drain())
    finally:
        await gateway.settled()


async def _reload(config: Config, readiness: Readiness, upstreams: Upstreams, executors: Executors) -> None:
    """Once an engine is there again: call it again, and let the executor's load its versions; for ever."""
    down: set[str] = set()
    async for _ in readiness.changes():
        up, down = down - readiness.all.keys(), set(readiness.all)
        for source in up & {f"engines.{name}" for name in config.engines}:
            upstreams.endpoint(source).breaker = Breaker()
            if source == f"engines.{config.roles.execution.engine}":
                executors.reload()


async def _versions(config: Config, loading: Loading, book: VersionBook) -> tuple[Versions, str]:
    """Versions, of which one is active, and the one that the config names. Raises `BadConfig`."""
    gate, model = config.versions.gate, config.roles.execution.model
    rule = GateRule(gate.margin, gate.error, gate.most_tokens, gate.most_trials) if gate.enabled else None
    versions = Versions(book, loading.load, rule, gate.canary_share)
    name, manifest = await loading.first() or (model, "")
    await versions.ensure_base(name, manifest)
    await versions.ensure_base(model)  # to be on record, too: there may be a wish to go back to it
    return versions, name


def _executor(config: Config, role: Role, new: Callable[..., Role], retriever: Retriever, version: str) -> Executor:
    """The executor of a version: what is configured, but for the model's name."""
    execution = config.roles.execution
    if version != execution.model:
        made = new("execution", msgspec.structs.replace(execution, model=version), price=role.price)
        role = replace(made, fallbacks=role.fallbacks)
    return Executor(role, retriever, executor_limits(config.search))


def _sharing(config: Config, executors: Executors, index: Callable[[], str | None]) -> Executes:
    """The executors, shared by all who ask the same, unless that is switched off, or they may say something else each
    time.
    """
    execution, reuse = config.roles.execution, config.reuse
    if not reuse.enabled or (execution.temperature > 0 and execution.seed is None):
        return executors
    return SharedExecutor(executors, index, Reuse(reuse.keep_s, reuse.most, reuse.across_tenants))


def _topologies(
    config: Config,
    roles: Mapping[RoleName, Role],
    own: Mapping[TopologyName, Role],
    retriever: Retriever,
    search: FactorizedSearch,
) -> dict[TopologyName, Topology]:
    """Return every way to answer: the factorized search and the baselines."""
    baselines = {name: new_topology(name, config, roles, role, retriever) for name, role in own.items()}
    return {"factorized": Topology(search, roles), **baselines}
