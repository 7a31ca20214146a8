"""Start engines and open a retriever or an embedder, all at the same time, because each takes
long.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import aiohttp

from router.background import task_group
from router.calls import Need, Readiness, Role
from router.frozen import Frozen
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import close_clients
from router.models.session import upstream_session
from serving.config.config import Config, RoleConfig
from serving.engines.engine import Log, cores, engine
from serving.roles import new_role

Opened = TypeVar("Opened")
_MAX_CONNECTIONS = 1000


class Started(Frozen, Generic[Opened]):
    """Running engines, an open retriever or embedder, and connections for model calls."""

    engines: Mapping[str, str]
    """Base URLs by engine name."""
    retrieval: Opened
    """The retriever or embedder that was opened."""
    session: aiohttp.ClientSession
    new_role: Callable[..., Role]
    """`serving.roles.new_role` with the arguments `pool` and `engines` already given."""


@asynccontextmanager
async def open_upstreams(
    config: Config,
    log: Log,
    opened: Callable[..., AbstractAsyncContextManager[Opened]],
    also: Sequence[RoleConfig] = (),
    *,
    readiness: Readiness | None = None,
) -> AsyncIterator[Started[Opened]]:
    """Start the engines that the config's roles and `also` need, and open a retriever or an
    embedder at the same time. Then open connections to all models.

    `opened`: function with the argument `cpu_threads` (number of threads), which returns a context
    manager for the retriever or embedder. `also`: further roles, such as a judge. `readiness`: is
    notified when an engine goes down, and when it is up again. Raises `BadConfig` or `BadIndex`.
    """
    served = dict[str, dict[str, None]]()
    for role in (*config.called_roles.values(), *also):
        if role.engine in config.engines:
            served.setdefault(role.engine, {})[role.model] = None
    embeds = config.retrieval.embedder.engine is not None
    threads = max(1, cores() // max(1, len(served) + embeds))
    readiness = readiness or Readiness()
    contexts = [
        engine(
            name,
            config.engines[name],
            list(models),
            log,
            cpu_threads=threads,
            on_change=partial(readiness.report, f"engines.{name}", _needed_by(config, name)),
        )
        for name, models in served.items()
    ]
    retrieval = opened(cpu_threads=threads)

    async with AsyncExitStack() as stack:
        async with task_group() as group:
            urls = [group.create_task(stack.enter_async_context(context)) for context in contexts]
            retriever = group.create_task(stack.enter_async_context(retrieval))
        engines = dict(zip(served, [url.result() for url in urls], strict=True))
        pool = await stack.enter_async_context(ConnectionPool(_MAX_CONNECTIONS))
        session = await stack.enter_async_context(upstream_session())
        stack.push_async_callback(close_clients)
        yield Started(
            engines, retriever.result(), session, partial(new_role, pool=pool, engines=engines)
        )


def _needed_by(config: Config, engine: str) -> list[Need]:
    """Return the roles that cannot work without this engine, because neither the role nor a
    fallback of the role has another endpoint. While the engine is down, the gateway is not ready
    for these roles.
    """
    roles = config.roles.by_name

    def only_here(role: RoleConfig) -> bool:
        candidates = (role, *(roles[name] for name in role.fallbacks))
        return all(other.engine == engine and not other.replicas for other in candidates)

    return [name for name, role in roles.items() if only_here(role)]
