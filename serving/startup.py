"""Start of all that takes long: engines and an index, side by side."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import TypeVar

from router.background import task_group
from router.calls import Need, Readiness
from router.calls.health import NEEDS
from serving.config.config import Config, RoleConfig
from serving.engines.engine import Log, cores, engine

Opened = TypeVar("Opened")


async def start_engines(
    config: Config,
    stack: AsyncExitStack,
    log: Log,
    opened: Callable[..., AbstractAsyncContextManager[Opened]],
    also: Sequence[RoleConfig] = (),
    *,
    readiness: Readiness | None = None,
) -> tuple[dict[str, str], Opened]:
    """Start the engines of all roles, and of those in `also`, and open a retriever or an embedder
    side by side: base URLs by engine name, and that. `readiness` is told of engines that die.

    `opened` takes `cpu_threads`, as `engine` does. Raises `BadConfig` or `BadIndex`.
    """
    served: dict[str, dict[str, None]] = {}
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
            on_change=partial(readiness.say, f"engines.{name}", _needed_by(config, name)),
        )
        for name, models in served.items()
    ]
    retrieval = opened(cpu_threads=threads)
    async with task_group() as group:
        urls = [group.create_task(stack.enter_async_context(context)) for context in contexts]
        retriever = group.create_task(stack.enter_async_context(retrieval))
    return dict(zip(served, [url.result() for url in urls], strict=True)), retriever.result()


def _needed_by(config: Config, engine: str) -> list[Need]:
    """The roles that no other endpoint stands in for."""
    roles = config.roles.by_name
    return [
        NEEDS[name]
        for name, role in roles.items()
        if all(
            each.engine == engine and not each.replicas
            for each in (role, *(roles[other] for other in role.fallbacks))
        )
    ]
