"""The composition root: from a config to a running gateway, and everything closed again in reverse order."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec

from router.access import Access
from router.accounts import Key
from router.answerer import Answerer
from router.call import RoleName
from router.conductor import Conductor
from router.delegator import Delegator
from router.edge.executor_version_service import ExecutorVersionServicer
from router.edge.http_server import HTTPServer
from router.edge.listening import check_listening
from router.edge.openai_door import openai_app
from router.edge.run_service import RunServicer
from router.edge.server import Server
from router.edge.tls import TLS
from router.edge.usage_service import UsageServicer
from router.engine_counts import VLLMCounts
from router.errors import BadConfig, UpstreamError
from router.executor import Executes, Executor, ExecutorLimits
from router.executors import Executors
from router.gate import GateRule
from router.gateway import Gateway
from router.journal import Journal
from router.litellm_model import LiteLLMModel, close_clients
from router.live_runs import LiveRuns
from router.meanwhile import meanwhile
from router.model import Model, Sampling
from router.openai_http import OpenAIHTTP
from router.price import Price
from router.reconciliation import Reconciler
from router.retrieval import Retriever
from router.role import Role
from router.run import RoleSetting
from router.runs import Runs
from router.scope import Scope
from router.search import Search
from router.store.accounts import SQLAccounts
from router.store.archive import SQLArchive
from router.store.database import Database
from router.store.journal import SQLJournal
from router.store.ledger_sums import SQLLedgerSums
from router.store.usages import SQLUsages
from router.store.version_book import SQLVersionBook
from router.trials import Trials
from router.upstream_session import upstream_session
from router.version_book import VersionBook
from router.versions import Versions
from serving.config import Config, RoleConfig, SearchConfig
from serving.engine import Tell, engine
from serving.prices import prices_of
from serving.readiness import missing
from serving.retrieval.grpc_service import RetrievalServicer
from serving.retrieval.open_retriever import open_retriever
from serving.versions.loading import Loading

_UPSTREAM_CONNECTIONS = 1000
Opened = TypeVar("Opened")


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
    stored. `journal`: instead of the store's. `tell` hears what is being done. Raises `BadConfig` or `BadIndex`, saying
    what to do. Closing drains.
    """
    for problem in missing(config):
        raise BadConfig(problem)
    async with AsyncExitStack() as stack:
        database = await Database.open(config.server.store)
        stack.push_async_callback(database.close)
        access = Access(SQLAccounts(database), key)
        for setting, wanted in (("server.address", address), ("server.http", http)):
            if wanted:
                await check_listening(wanted, setting, access)  # before anything slow begins
        opened = partial(open_retriever, config.retrieval, tell, config.engines)
        engines, retriever = await slow_parts(config, stack, tell, opened)
        session = await stack.enter_async_context(upstream_session(_UPSTREAM_CONNECTIONS))
        stack.push_async_callback(close_clients)
        new = partial(new_role, session=session, engines=engines)
        prices = await prices_of(config)
        roles = {name: new(name, role, price=prices[name]) for name, role in config.roles.by_name.items()}
        live, archive, book = LiveRuns(), SQLArchive(database), SQLVersionBook(database)
        loading = Loading(config, engines, session)
        versions, named = await _versions(config, loading, book)
        make = partial(_executor, config, roles["execution"], new, retriever)
        executors = Executors(make, config.roles.execution.model, versions.traffic, loading.load, tell)
        loading.in_use = lambda: executors.in_use
        try:
            await executors.refresh()
        except UpstreamError as error:
            tell(f"versions of the executor are not in use yet: {error}")
        if (active := executors.traffic.active) != named:
            tell(
                f"executor version {active} is active; the config names {named}, which `versions promote` would make it"
            )
        versions.on_change = executors.wake
        if journal is None:
            keep = {"keep_days": config.server.keep_days, "keep_gb": config.server.keep_gb}
            journal = await stack.enter_async_context(SQLJournal.writing(database, on_cancel=live.cancel, **keep))
        conductor = Conductor(journal, archive, live, _settings(roles), config.server.timeout_s)
        search = partial(new_search, config.search, roles)
        trials = Trials(executors, search, conductor=conductor, book=book, archive=archive, review=versions.review)
        gateway = Gateway(
            search=search(executors),
            executor=executors,
            roles=roles,
            conductor=conductor,
            max_question_chars=config.server.max_question_chars,
            scope=Scope.parse(Path(config.search.scope).read_text("utf-8")) if config.search.scope else None,
            then=trials.consider,
        )
        reconciler = Reconciler(_deployments(roles), VLLMCounts(session), SQLLedgerSums(database))
        tls = TLS(**msgspec.structs.asdict(config.server.tls)) if config.server.tls else None
        server = Server(
            gateway,
            RetrievalServicer(retriever, default_top_k=config.search.top_k),
            RunServicer(Runs(archive, live, trials.judge)),
            UsageServicer(SQLUsages(database), reconciler),
            ExecutorVersionServicer(versions),
            access=access,
            tls=tls,
        )
        door = HTTPServer(openai_app(gateway, access), config.server.grace_s, access=access, tls=tls)

        async def drain() -> None:
            await asyncio.gather(server.drain(config.server.grace_s), door.drain())
            await gateway.settled()

        port = await server.start(address)
        stack.push_async_callback(drain)
        await stack.enter_async_context(meanwhile(executors.follow(), trials.work()))
        if http:
            scheme = "https" if tls else "http"
            tell(f"the OpenAI-compatible door is at {scheme}://{await door.start(http, 'server.http')}/v1")
        yield f"{address.rpartition(':')[0]}:{port}"


async def slow_parts(
    config: Config,
    stack: AsyncExitStack,
    tell: Tell,
    opened: Callable[..., AbstractAsyncContextManager[Opened]],
    also: Sequence[RoleConfig] = (),
) -> tuple[dict[str, str], Opened]:
    """Start the engines of all roles, and of those in `also`, and open a retriever or an embedder side by side: base
    URLs by engine name, and that.

    `opened` takes `cpu_threads`, as `engine` does. Raises `BadConfig` or `BadIndex`.
    """
    roles = [*config.roles.by_name.values(), *also]
    served = {name: models for name in config.engines if (models := _served_names(roles, name))}
    own = config.retrieval.embedder.engine is not None
    threads = max(1, (os.cpu_count() or 1) // max(1, len(served) + own))
    contexts = [
        engine(name, config.engines[name], models, tell, cpu_threads=threads) for name, models in served.items()
    ]
    retrieval = opened(cpu_threads=threads)
    try:
        async with asyncio.TaskGroup() as group:
            urls = [group.create_task(stack.enter_async_context(context)) for context in contexts]
            retriever = group.create_task(stack.enter_async_context(retrieval))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return dict(zip(served, [url.result() for url in urls], strict=True)), retriever.result()


def _served_names(roles: Sequence[RoleConfig], name: str) -> list[str]:
    return list(dict.fromkeys(role.model for role in roles if role.engine == name))


def new_role(
    name: RoleName,
    config: RoleConfig,
    session: aiohttp.ClientSession,
    engines: Mapping[str, str],
    price: Price | None = None,
) -> Role:
    """The role that a config describes. `engines`: base URLs by engine name."""
    base_url = engines[config.engine] if config.engine else config.base_url
    key = os.environ.get(config.api_key_env) if config.api_key_env else None
    model: Model
    if base_url:
        model = OpenAIHTTP(
            session, base_url, config.model, api_key=key, thinking=config.thinking, extra_body=config.extra_body
        )
    else:
        model = LiteLLMModel(config.model, api_key=key, extra_body=config.extra_body)
    return Role(
        name,
        model,
        Path(config.prompt).read_text("utf-8").strip(),
        Sampling(config.max_tokens, config.temperature, config.top_p, config.seed),
        config.attempts,
        system_role=config.system_role,
        context_tokens=config.context_tokens,
        deployment=f"engines.{config.engine}" if config.engine else model.endpoint,
        executor_version=config.model if name == "execution" else None,
        price=price,
        streams=base_url is not None,
    )


def _settings(roles: Mapping[RoleName, Role]) -> dict[RoleName, RoleSetting]:
    return {
        name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
        for name, role in roles.items()
    }


def _deployments(roles: Mapping[RoleName, Role]) -> dict[str, str | None]:
    """Where models are served, each with the base URL of its engine; None for a provider's."""
    return {role.deployment: role.model.endpoint if role.streams else None for role in roles.values()}


async def _versions(config: Config, loading: Loading, book: VersionBook) -> tuple[Versions, str]:
    """Versions, of which one is active, and the one that the config names. Raises `BadConfig`."""
    gate, model = config.versions.gate, config.roles.execution.model
    rule = GateRule(gate.margin, gate.error, gate.most_tokens) if gate.enabled else None
    versions = Versions(book, loading.load, rule, gate.canary_share)
    name, manifest = await loading.first() or (model, "")
    await versions.ensure_base(name, manifest)
    await versions.ensure_base(model)  # to be on record, too: there may be a wish to go back to it
    return versions, name


def _executor(config: Config, role: Role, new: Callable[..., Role], retriever: Retriever, version: str) -> Executor:
    """The executor of a version: what is configured, but for the model's name."""
    execution = config.roles.execution
    if version != execution.model:
        role = new("execution", msgspec.structs.replace(execution, model=version), price=role.price)
    return Executor(role, retriever, executor_limits(config.search))


def executor_limits(search: SearchConfig) -> ExecutorLimits:
    """How far a config lets an executor go."""
    return ExecutorLimits(search.max_turns, search.max_searches, search.top_k)


def new_search(search: SearchConfig, roles: Mapping[RoleName, Role], executor: Executes) -> Search:
    """The search loop of a config, with its backbone, its answerer and whichever executor."""
    return Search(
        Delegator(roles["delegation"], search.max_sub_queries),
        executor,
        Answerer(roles["answer"]),
        max_rounds=search.max_rounds,
        require_evidence=search.require_evidence,
    )
