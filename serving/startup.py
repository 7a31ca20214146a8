"""What takes long to start: engines and an index, side by side."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TypeVar

from router.calls.health import NEEDS, Need, Readiness
from router.search.retrieval import IndexRetriever
from serving.config.config import Config, RoleConfig
from serving.engines.engine import Tell, cores, engine
from serving.retrieval.opening import open_retriever

Opened = TypeVar("Opened")


async def engines_and_retriever(
    config: Config, stack: AsyncExitStack, tell: Tell, readiness: Readiness
) -> tuple[dict[str, str], IndexRetriever]:
    """Start all that a gateway's config names but the gateway: engines' base URLs by name, and the retriever.
    `readiness` hears of engines that die. Raises `BadConfig` or `BadIndex`.
    """
    say = partial(readiness.say, "retrieval.embedder", ["retrieval"])
    opened = partial(open_retriever, config.retrieval, tell, config.engines, say=say)
    return await slow_parts(config, stack, tell, opened, readiness=readiness)


async def slow_parts(
    config: Config,
    stack: AsyncExitStack,
    tell: Tell,
    opened: Callable[..., AbstractAsyncContextManager[Opened]],
    also: Sequence[RoleConfig] = (),
    *,
    readiness: Readiness | None = None,
) -> tuple[dict[str, str], Opened]:
    """Start the engines of all roles, and of those in `also`, and open a retriever or an embedder side by side: base
    URLs by engine name, and that. `readiness` hears of engines that die.

    `opened` takes `cpu_threads`, as `engine` does. Raises `BadConfig` or `BadIndex`.
    """
    searcher = config.topologies.searcher
    roles = [*config.roles.by_name.values(), *([searcher] if searcher else []), *also]
    served = {name: models for name in config.engines if (models := _served_names(roles, name))}
    own = config.retrieval.embedder.engine is not None
    threads = max(1, cores() // max(1, len(served) + own))
    readiness = readiness or Readiness()
    contexts = [
        engine(
            name,
            config.engines[name],
            models,
            tell,
            cpu_threads=threads,
            say=partial(readiness.say, f"engines.{name}", _nothing_without(config, name)),
        )
        for name, models in served.items()
    ]
    retrieval = opened(cpu_threads=threads)
    try:
        async with asyncio.TaskGroup() as group:
            urls = [group.create_task(stack.enter_async_context(context)) for context in contexts]
            retriever = group.create_task(stack.enter_async_context(retrieval))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return dict(zip(served, [url.result() for url in urls], strict=True)), retriever.result()


def _nothing_without(config: Config, engine: str) -> list[Need]:
    """The roles that no other endpoint stands in for."""
    roles = config.roles.by_name
    return [
        NEEDS[name]
        for name, role in roles.items()
        if all(
            each.engine == engine and not each.replicas for each in (role, *(roles[other] for other in role.fallbacks))
        )
    ]


def _served_names(roles: Sequence[RoleConfig], name: str) -> list[str]:
    return list(dict.fromkeys(role.model for role in roles if role.engine == name))
