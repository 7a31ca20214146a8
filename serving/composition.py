"""Composition root: create and connect all parts of a gateway as its config describes, and close
them in reverse order.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from router.access import Access, Accounts, Key
from router.administration import Administration, Auditor
from router.background import background_tasks, task_group
from router.calls import Readiness, Role, Upstreams
from router.calls.health import watch_role
from router.calls.replicas import Breaker
from router.edge.grpc.admin_service import AdminServicer
from router.edge.grpc.document_service import DocumentServicer
from router.edge.grpc.server import Server
from router.edge.grpc.services import ExecutorVersionServicer, RunServicer, UsageServicer
from router.edge.grpc.table_service import TableServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.limits import Limits
from router.edge.listening import check_listening
from router.edge.pages import Site
from router.edge.pages.asking import add_asking
from router.edge.pages.documents import add_documents
from router.edge.pages.keys import add_keys
from router.edge.pages.run import RunPages
from router.edge.pages.runs import add_runs
from router.edge.pages.usage import add_usage
from router.edge.pages.versions import add_versions
from router.edge.starting import answering_while_starting
from router.errors import JSON_ERRORS, BadConfig, UpstreamError, explained
from router.frozen import Frozen
from router.ledger import Journal, Reconciler
from router.ledger.reconciliation import VLLMCounts
from router.models.session import fetch_text
from router.protocol import Vocabulary
from router.runs import Admission, Gateway, RunLifecycle, Runs
from router.runs.archive import Archive
from router.runs.live import LiveRuns
from router.runs.observers import ObservedRetriever, Observers
from router.search import Executor, Indexes, ReportCache, Topology
from router.search.answerer import Judge
from router.search.condenser import Condenser
from router.search.executor import Executes
from router.search.loop import settings_of
from router.search.report_cache import ReportCounts
from router.search.retrieval import IndexRetriever, WatchedRetriever
from router.store import Database, LogJournal, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.store.follower import own_log
from router.store.log import RunLog
from router.trace import RoleName
from router.trace.scope import DEFAULT_INDEX, UPLOADS
from router.trace.values import TopologyName
from router.versions import GateRule, HeldOutQuestion, HeldOutTest, Trials, VersionRouting, Versions
from router.versions.book import Traffic, VersionBook
from serving.config.config import Config, ServerConfig, place_of
from serving.config.prices import unpriced
from serving.config.secrets import missing
from serving.engines.engine import Log
from serving.engines.loading import Loading
from serving.retrieval.manifest import manifest_at, read_manifest
from serving.retrieval.opening import Searched, check_access, open_indexes
from serving.retrieval.reranker import reranked
from serving.retrieval.services import RetrievalServicer
from serving.roles import all_roles, new_condenser
from serving.startup import open_upstreams
from serving.telemetry.observers import Watched, open_observers
from serving.tools.pool import ToolPool, tool_pool
from serving.topologies import new_host, new_search, new_tables, new_worker
from serving.uploads.uploads import StoredUploads, opened_uploads

_GATE_ERROR = 0.05
"""Max probability of a wrong decision about a new executor version. It holds for each stage of the
version's trial: as a shadow, and as a canary.
"""
_GATE_TRIALS = 10_000
"""Max runs that a stage of a trial compares. After that, the stage ends without a decision."""


class _Upstream(Frozen):
    """Opened connections to everything that a gateway calls: engines, endpoints, retrievers and
    tools.
    """

    readiness: Readiness
    retrievers: Mapping[str, WatchedRetriever]
    """The retriever of each index, by the index's name."""
    uploads: StoredUploads | None
    session: aiohttp.ClientSession
    engines: Mapping[str, str]
    """Base URLs by engine name."""
    endpoints: Upstreams
    new_role: Callable[..., Role]
    roles: dict[RoleName, Role]
    managers: dict[str, Role]
    condenser: Condenser
    tools: ToolPool

    @property
    def deployments(self) -> dict[str, str | None]:
        """Base URLs of the engines and endpoints that serve the roles' models. The keys are the
        names under which the ledger stores the engines and endpoints. A URL is None for a provider
        that LiteLLM calls.
        """
        roles = (*self.roles.values(), *self.managers.values(), self.condenser.role)
        return {
            replica.deployment: replica.model.endpoint if role.streams else None
            for role in roles
            for replica in role.replicas
        }


class _Runs(Frozen):
    """The parts of a gateway that execute, observe, store and query runs."""

    gateway: Gateway
    indexes: Indexes
    stored: Runs
    versions: Versions
    routing: VersionRouting
    trials: Trials
    observers: Observers
    usages: SQLUsages


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
    """Run a gateway with its engines while the context is open. Yield the address of the gRPC
    server as host:port.

    `address`: address of the gRPC server. `http`: address of the server for the OpenAI-compatible
    API and the web pages; None for no such server. `key`: an API key that is valid in addition to
    the stored keys. `log`: called with a line of text for each step of the start. `retriever` and
    `journal` are for benchmarks: `retriever` replaces the indexes of the config, and `journal`
    returns a wrapper of the store's journal (the part that records runs). On exit, running requests
    get `server.grace_s` seconds to finish. Raises `BadConfig` or `BadIndex`.
    """
    for problem in missing(config):
        raise BadConfig(problem)
    database = await Database.open(config.server.store)
    try:
        with own_log(database, config.server.log) as run_log:
            accounts = SQLAccounts(database)
            access = Access(accounts, key, uploads=bool(config.uploads.folder) and not retriever)
            await _check_addresses(address, http, access)  # fail before engines start
            starting = AsyncExitStack()
            await starting.enter_async_context(
                answering_while_starting(address, http, config.server.tls, config.server.http_hosts)
            )
            async with (
                starting,
                _open_upstream(config, log, retriever) as upstream,
                _open_runs(
                    config,
                    database,
                    upstream,
                    log,
                    run_log=run_log,
                    around=journal,
                ) as runs,
                _listening(
                    config,
                    access,
                    accounts,
                    upstream,
                    runs,
                    address=address,
                    http=http,
                    log=log,
                    starting=starting,
                ) as bound,
            ):
                run_log.write_address(bound)
                yield bound
    finally:
        await database.close()


async def _check_addresses(address: str, http: str | None, access: Access) -> None:
    """Raise `BadConfig` if the gateway cannot listen on one of the addresses, or if other machines
    can reach the gateway although no API key exists. Without keys, clients are not authenticated.
    Raises `StoreFailed` if the keys cannot be read.
    """
    for setting, wanted in (("server.address", address), ("server.http", http)):
        if not wanted:
            continue

        await check_listening(wanted, setting, access)
        host, _, port = wanted.rpartition(":")
        try:
            family, kind, _, _, socket_address = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(socket_address)
        except (OSError, ValueError, OverflowError) as error:
            raise BadConfig(
                f"{setting}: cannot listen on {wanted}; is the port in use? Choose another port, "
                f"or port 0 for any free port ({error})."
            ) from None


@asynccontextmanager
async def _open_upstream(
    config: Config, log: Log, double: IndexRetriever | None
) -> AsyncIterator[_Upstream]:
    """Start engines, and open retrievers, roles and tools. `double`: a retriever to use instead of
    the config's indexes; None to open these indexes. Raises `BadConfig` or `BadIndex`.
    """
    readiness = Readiness()
    opened = partial(
        open_indexes,
        config.all_indexes,
        log,
        config.engines,
        embeds=config.uploads.folder is not None,
        on_change=partial(readiness.report, "retrieval.embedder", ["retrieval"]),
    )
    searched = Searched({DEFAULT_INDEX: double}) if double else None
    opening = opened if searched is None else lambda **_: nullcontext(searched)
    async with (
        open_upstreams(config, log, opening, readiness=readiness) as started,
        tool_pool(config.tools, readiness) as tools,
        opened_uploads(config, started.retrieval.embedder) as uploads,
    ):
        if config.search.access:
            for retriever in started.retrieval.retrievers.values():
                await check_access(retriever)
        endpoints = Upstreams()
        new = partial(started.new_role, upstreams=endpoints)
        roles, managers = await all_roles(config, new)
        yield _Upstream(
            readiness,
            {
                name: WatchedRetriever(retriever, readiness, place_of(name))
                for name, retriever in started.retrieval.retrievers.items()
            },
            uploads,
            started.session,
            started.engines,
            endpoints,
            new,
            roles,
            managers,
            await new_condenser(config, new, roles),
            tools,
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
    """Open the gateway with its journal (the part that records runs), observers and executor
    versions. `around`: called with the store's journal; returns the journal that the gateway uses.
    Raises `BadConfig`.
    """
    admission = Admission(config.admission)
    execution = config.roles.execution
    reports = None
    # With a fixed seed or temperature 0, the executor would report the same for the same sub-query,
    # so runs may reuse each other's reports
    if config.report_cache.enabled and not (execution.temperature > 0 and execution.seed is None):
        reports = ReportCounts()
    live = LiveRuns()
    async with (
        LogJournal.writing(
            database,
            run_log,
            on_cancel=live.cancel,
            keep_days=config.server.keep_days,
            on_health=partial(upstream.readiness.report, "store", ["store"]),
            find=live.find,
        ) as journal,
        open_observers(
            config.telemetry,
            log,
            Watched(
                admission,
                upstream.endpoints,
                upstream.deployments,
                reports,
                upstream.readiness,
                journal,
            ),
            config.server.http_hosts,
        ) as observers,
    ):
        archive = SQLArchive(database, journal.calls)

        def wrapped(retriever: IndexRetriever) -> IndexRetriever:
            retriever = reranked(retriever, config.reranker, upstream.session, config.prices)
            return ObservedRetriever(retriever, observers)

        uploads = upstream.uploads
        indexes = Indexes(
            {name: wrapped(retriever) for name, retriever in upstream.retrievers.items()},
            (lambda tenant: wrapped(uploads.index(tenant))) if uploads else None,
        )
        lifecycle = RunLifecycle(
            around(journal),
            archive,
            live,
            settings_of(upstream.roles),
            config.server.timeout_s,
            admission=admission,
            observer=observers,
            conditions=lambda scope: {
                "index": indexes.index_id(scope) or "",
                "executor version": routing.traffic.active,
            },
        )
        versions, routing, trials = await _open_versions(
            config,
            SQLVersionBook(database),
            archive,
            upstream,
            log,
            lifecycle=lifecycle,
            indexes=indexes,
        )

        executor: Executes = routing
        if reports is not None:
            executor = ReportCache(
                routing,
                indexes.index_id,
                keep_s=config.report_cache.keep_s,
                counts=reports,
            )
        yield _Runs(
            _gateway(
                config,
                upstream,
                executor,
                indexes,
                lifecycle=lifecycle,
                trials=trials,
            ),
            indexes,
            Runs(archive, live, trials.judge),
            versions,
            routing,
            trials,
            observers,
            SQLUsages(database, journal.under_way),
        )


def _gateway(
    config: Config,
    upstream: _Upstream,
    executor: Executes,
    indexes: Indexes,
    *,
    lifecycle: RunLifecycle,
    trials: Trials,
) -> Gateway:
    roles = upstream.roles
    vocabulary = config.search.vocabulary
    # An executor with tools calls the base model, so its calls belong to no executor version
    worker = replace(roles["execution"], executor_version=None)
    with_tools: dict[str, Executes] = {
        name: new_worker(
            config,
            worker,
            None,
            upstream.tools.view(manager.tools),
            manager=name,
        )
        for name, manager in config.managers.items()
        if manager.tools
    }
    topologies: dict[TopologyName, Topology] = {
        "factorized": Topology(new_search(config.search, roles, executor), roles)
    }
    if upstream.managers:
        topologies["host"] = new_host(config, roles, upstream.managers, executor, with_tools)
    tables, table_roles = new_tables(
        config,
        roles,
        executor,
        indexes,
        upstream.managers,
        with_tools=with_tools,
    )
    return Gateway(
        topologies=topologies,
        executor=executor,
        roles=roles,
        lifecycle=lifecycle,
        condenser=upstream.condenser,
        style=config.answer,
        tables=tables,
        table_roles=table_roles,
        max_question_chars=config.server.max_question_chars,
        vocabulary=Vocabulary.parse(Path(vocabulary).read_text("utf-8")) if vocabulary else None,
        on_answered=trials.consider,
    )


async def _open_versions(
    config: Config,
    book: VersionBook,
    archive: Archive,
    upstream: _Upstream,
    log: Log,
    *,
    lifecycle: RunLifecycle,
    indexes: Indexes,
) -> tuple[Versions, VersionRouting, Trials]:
    """Return the parts that manage versions of the executor: `Versions`, the routing of runs to
    versions, and the trials of versions. Also register the config's model as a version.

    `lifecycle`: opens the runs of trials and held-out tests. Raises `BadConfig`.
    """
    gate = config.versions.gate
    model = config.roles.execution.model
    rule = None
    if gate.enabled:
        rule = GateRule(
            gate.margin,
            _GATE_ERROR,
            gate.max_tokens_ratio,
            _GATE_TRIALS,
            gate.min_right,
        )

    async def traffic() -> Traffic:
        return await versions.traffic()

    # These parts need each other: `loading` asks `routing` for the versions in use, and `routing`
    # asks `versions` for the stored traffic. Both ask only later, when all parts exist.
    loading = Loading(config, upstream.engines, upstream.session, in_use=lambda: routing.in_use)
    routing = VersionRouting(
        partial(_new_executor, config, upstream, indexes),
        model,
        traffic,
        loading.load,
        log,
    )
    search = partial(new_search, config.search, upstream.roles)
    held_out = None
    if config.versions.held_out:
        held_out = HeldOutTest(_held_out(config.versions.held_out), routing, search, lifecycle)
    versions = Versions(
        book,
        loading.load,
        rule,
        gate.canary_share,
        on_change=routing.refresh,
        held_out=held_out,
    )
    judge = config.called_roles.get("distillation.judge")
    trials = Trials(
        routing,
        search,
        lifecycle=lifecycle,
        book=book,
        archive=archive,
        review=versions.review,
        judge=Judge(upstream.new_role("judge", judge)) if judge else None,
    )

    configured, manifest = await loading.first() or (model, "")
    await versions.ensure_base(configured, manifest)
    await versions.ensure_base(model)  # so that operators can return to the base model
    try:
        await routing.refresh()
    except UpstreamError as error:
        log(f"registered versions of the executor cannot be loaded yet: {error}")
    active = routing.traffic.active
    if active != configured:
        log(
            f"executor version {active} is active, not {configured} as in the config; to activate "
            f"the configured one, run `rolegate versions promote {configured}`"
        )
    return versions, routing, trials


def _held_out(path: str) -> list[HeldOutQuestion]:
    """Return the held-out questions (see `VersionsConfig.held_out`) in a file of JSON lines. Raises
    `BadConfig` if the file cannot be read.
    """
    try:
        return msgspec.json.Decoder(HeldOutQuestion).decode_lines(Path(path).read_bytes())
    except OSError as error:
        raise BadConfig(
            f"versions.held_out: {path} cannot be read ({error.strerror}); make it readable."
        ) from None
    except JSON_ERRORS as error:
        raise BadConfig(
            f"versions.held_out: {path}: {explained(error)}; write on each line a JSON object "
            "with `question` and `golden_answers`, neither of them empty (`[0]` is the first line)."
        ) from None


def _new_executor(config: Config, upstream: _Upstream, indexes: Indexes, version: str) -> Executor:
    """Return the executor of a version. It has the settings of the configured executor, but calls
    the model whose name is `version`.
    """
    execution = config.roles.execution
    role = upstream.roles["execution"]
    if version != execution.model:
        made = upstream.new_role(
            "execution", msgspec.structs.replace(execution, model=version), price=role.price
        )
        role = replace(made, fallbacks=role.fallbacks)
    return new_worker(config, role, indexes)


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
    starting: AsyncExitStack,
) -> AsyncIterator[str]:
    """Serve gRPC and HTTP, and run the background tasks, while the context is open. Yield the
    address of the gRPC server. `starting`: servers at the same addresses, which have answered
    "starting" so far; they are closed first.
    """
    gateway = runs.gateway
    readiness = upstream.readiness
    observers = runs.observers
    tls = config.server.tls
    tables = TableServicer(gateway, runs.stored, access)

    indexes = sorted(config.all_indexes)
    administered = partial(Administration, indexes=indexes, unpriced=partial(unpriced, config))
    grpc, page = (Auditor(accounts, door, access.outdate) for door in ("grpc", "page"))
    engine_counts = VLLMCounts(partial(fetch_text, upstream.session))
    server = Server(
        gateway,
        RetrievalServicer(runs.indexes, default_top_k=config.search.top_k),
        RunServicer(runs.stored),
        UsageServicer(runs.usages, Reconciler(upstream.deployments, engine_counts, runs.usages)),
        tables,
        ExecutorVersionServicer(runs.versions, grpc),
        AdminServicer(administered(grpc)),
        DocumentServicer(upstream.uploads),
        access=access,
        tls=tls,
        readiness=readiness,
        observer=observers,
    )
    pages = Site(access)
    add_runs(pages, runs.stored)
    add_usage(pages, runs.usages, accounts, runs.stored)
    add_versions(pages, runs.versions, page)
    add_keys(pages, administered(page))
    add_documents(
        pages,
        upstream.uploads,
        lambda: {
            name: manifest.passages if (manifest := manifest_at(Path(index.index))) else None
            for name, index in config.all_indexes.items()
            if index.index
        },
    )
    if upstream.uploads:
        indexes = [*indexes, UPLOADS]
    add_asking(pages, gateway, tables.detached, runs=runs.stored, indexes=indexes)
    folder = config.retrieval.index
    RunPages(
        pages,
        runs.stored,
        runs.indexes,
        files_not_read=lambda: read_manifest(Path(folder)).files_not_read if folder else None,
    )
    app = openai_app(
        gateway,
        access,
        readiness,
        observer=observers,
        pages=pages,
        chat_tasks=config.server.chat_tasks,
        indexes=indexes,
    )
    http_server = HTTPServer(
        app,
        config.server.grace_s,
        access=access,
        tls=tls,
        limits=Limits(connections_per_address=config.server.http_connections_per_address),
        hosts=config.server.http_hosts,
    )
    retrievers = upstream.retrievers.values()
    await asyncio.gather(*(retriever.probe() for retriever in retrievers))
    await starting.aclose()
    port = await server.start(address)
    try:
        async with background_tasks(
            runs.routing.follow(),
            runs.trials.work(),
            *(retriever.follow() for retriever in retrievers),
            _recover(config, upstream, runs.routing),
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
            await _drain(config.server, readiness, server, http_server)
        finally:
            await gateway.settled()


async def _drain(
    config: ServerConfig, readiness: Readiness, server: Server, http_server: HTTPServer
) -> None:
    """Report that the gateway is not ready, and wait `drain_s` seconds, so that load balancers
    notice. Then close the servers; running requests get `grace_s` seconds to finish. If this is
    cancelled, it ends the waiting and still closes both servers.
    """
    grace_s = 0.0
    try:
        if config.drain_s:
            readiness.report("draining", ["store"], "the gateway stops")
            await asyncio.sleep(config.drain_s)
        grace_s = config.grace_s
    finally:
        # After a cancellation, `asyncio.gather` would not wait for both
        async with task_group() as closing:
            closing.create_task(server.drain(grace_s))
            closing.create_task(http_server.drain())


async def _recover(config: Config, upstream: _Upstream, routing: VersionRouting) -> None:
    """Whenever an engine is up again after a failure, close its circuit breaker, so that the engine
    gets calls again. If the engine serves the executor, also load the executor's versions into the
    engine again. Never returns.
    """
    down = set[str]()
    engines = {f"engines.{name}" for name in config.engines}
    async for _ in upstream.readiness.changes():
        up = down - upstream.readiness.all.keys()
        down = set(upstream.readiness.all)
        for source in up & engines:
            upstream.endpoints.endpoint(source).breaker = Breaker()
            if source == f"engines.{config.roles.execution.engine}":
                routing.reload()
