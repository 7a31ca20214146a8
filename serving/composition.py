"""The composition root: from a config to a running gateway, and everything closed again in reverse order."""

import asyncio
import hashlib
import importlib.util
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from router.answerer import Answerer
from router.delegator import Delegator
from router.edge.server import Server
from router.errors import BadConfig
from router.executor import Executor, ExecutorLimits
from router.gateway import Gateway, GatewayLimits
from router.ledger import RoleName
from router.litellm_model import LiteLLMModel, close_clients
from router.model import Model, Sampling
from router.openai_http import OpenAIHTTP
from router.retrieval import Retriever
from router.role import Role
from router.run import RoleSetting
from router.scope import Scope
from router.search import Search
from router.store import SQLStore
from serving.config import Config, RoleConfig
from serving.engine import Tell, engine
from serving.retrieval.grpc_service import RetrievalServicer
from serving.retrieval.open_retriever import open_retriever

_UPSTREAM_CONNECTIONS = 1000
_LOGS = Path("~/.cache/rolegate/logs")


@asynccontextmanager
async def running_gateway(config: Config, address: str, tell: Tell) -> AsyncIterator[str]:
    """A gateway that listens at `address` while the context is open, with its engines; where it listens, host:port.

    `tell` hears what is being done. Raises `BadConfig` or `BadIndex`, saying what to do. Closing drains.
    """
    check_hosted(config)
    async with AsyncExitStack() as stack:
        engines, retriever = await _slow_parts(config, stack, tell)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_UPSTREAM_CONNECTIONS))
        )
        stack.push_async_callback(close_clients)
        store = await SQLStore.open(config.server.store)
        stack.push_async_callback(store.close)
        roles = _roles(config, session, engines)
        gateway = _gateway(config, roles, retriever, store)
        server = Server(gateway, RetrievalServicer(retriever, default_top_k=config.search.top_k))
        port = await server.start(address)
        stack.push_async_callback(server.drain, config.server.grace_s)
        yield f"{address.rpartition(':')[0]}:{port}"


def check_hosted(config: Config) -> None:
    """See that keys are set and LiteLLM is there, where the config needs them. Raises `BadConfig`."""
    names: tuple[RoleName, ...] = ("delegation", "execution", "answer")
    for name in names:
        role: RoleConfig = getattr(config.roles, name)
        _key(name, role)
        if role.engine is None and role.base_url is None and importlib.util.find_spec("litellm") is None:
            raise BadConfig(
                f"roles.{name}: hosted models need the package litellm; install the extra rolegate[hosted]."
            )


async def _slow_parts(config: Config, stack: AsyncExitStack, tell: Tell) -> tuple[dict[str, str], Retriever]:
    """Start the engines and open the retriever side by side: base URLs by engine name, and the retriever."""
    logs = _LOGS.expanduser()
    served = {name: models for name in config.engines if (models := _served_names(config, name))}
    threads = max(1, (os.cpu_count() or 1) // max(1, len(served)))
    contexts = [
        engine(name, config.engines[name], models, logs / f"{name}-{os.getpid()}.log", tell, cpu_threads=threads)
        for name, models in served.items()
    ]
    try:
        async with asyncio.TaskGroup() as group:
            urls = [group.create_task(stack.enter_async_context(context)) for context in contexts]
            retriever = group.create_task(stack.enter_async_context(open_retriever(config.retrieval, tell)))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return dict(zip(served, [url.result() for url in urls], strict=True)), retriever.result()


def _served_names(config: Config, name: str) -> list[str]:
    roles = (config.roles.delegation, config.roles.execution, config.roles.answer)
    return list(dict.fromkeys(role.model for role in roles if role.engine == name))


def _roles(config: Config, session: aiohttp.ClientSession, engines: Mapping[str, str]) -> dict[RoleName, Role]:
    settings: dict[RoleName, RoleConfig] = {
        "delegation": config.roles.delegation,
        "execution": config.roles.execution,
        "answer": config.roles.answer,
    }
    return {name: _role(name, settings, session, engines) for name, settings in settings.items()}


def _role(name: RoleName, config: RoleConfig, session: aiohttp.ClientSession, engines: Mapping[str, str]) -> Role:
    base_url = engines[config.engine] if config.engine else config.base_url
    key = _key(name, config)
    model: Model
    if base_url:
        model = OpenAIHTTP(session, base_url, config.model, api_key=key, thinking=config.thinking)
    else:
        model = LiteLLMModel(config.model, api_key=key)
    sampling = Sampling(config.max_tokens, config.temperature, config.top_p, config.seed)
    return Role(name, model, Path(config.prompt).read_text("utf-8").strip(), sampling, config.attempts)


def _key(name: RoleName, config: RoleConfig) -> str | None:
    if config.api_key_env is None:
        return None
    key = os.environ.get(config.api_key_env)
    if not key:
        raise BadConfig(
            f"roles.{name}.api_key_env: the environment variable {config.api_key_env} is not set; export it."
        )
    return key


def _gateway(config: Config, roles: dict[RoleName, Role], retriever: Retriever, store: SQLStore) -> Gateway:
    search = config.search
    limits = ExecutorLimits(search.max_turns, search.max_searches, search.top_k)
    executor = Executor(roles["execution"], retriever, limits)
    return Gateway(
        search=Search(
            Delegator(roles["delegation"], search.max_sub_queries),
            executor,
            Answerer(roles["answer"]),
            max_rounds=search.max_rounds,
            require_evidence=search.require_evidence,
        ),
        executor=executor,
        roles=roles,
        settings={
            name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
            for name, role in roles.items()
        },
        store=store,
        limits=GatewayLimits(config.server.max_question_chars, config.server.timeout_s),
        scope=Scope.parse(Path(search.scope).read_text("utf-8")) if search.scope else None,
    )
