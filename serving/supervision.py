"""A server that is started again whenever it dies, or hangs."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from router.errors import BadConfig
from serving.backoff import Backoff
from serving.server_process import ServerProcess

_log = structlog.get_logger("engine")
Say = Callable[[str | None], None]
"""Hears why a server is down, and None once it is there again."""


@dataclass(frozen=True, slots=True)
class Watch:
    """How a server is looked after."""

    within_s: float
    """How long its health check may take."""
    every_s: float = 2.0
    misses: int = 3
    """Failed checks in a row after which it is taken to hang."""
    backoff: Callable[[], Backoff] = field(default=Backoff)


async def keep_running(process: ServerProcess, say: Say, watch: Watch) -> None:
    """Watch a server that has been started, and start it again whenever it is to no use; for ever."""
    backoff = watch.backoff()
    while True:
        why: str | None = await _broken(process, watch)
        while why is not None:
            pause_s = backoff.next()
            say(why)
            _log.error("engine.down", name=process.name, why=why, again_in_s=pause_s)
            await process.stop(0.0)
            await asyncio.sleep(pause_s)
            try:
                await process.start()
                why = None
            except (BadConfig, OSError) as error:  # a disk that is full, or no memory for another process
                why = str(error)
        say(None)
        _log.info("engine.up", name=process.name)


async def _broken(process: ServerProcess, watch: Watch) -> str:
    """What is wrong with it, as soon as something is."""
    missed = 0
    while missed < watch.misses:
        try:
            async with asyncio.timeout(watch.every_s):
                await process.ended()
                return process.end
        except TimeoutError:
            missed = 0 if await process.answers(watch.within_s) else missed + 1
    return "does not answer its health check"
