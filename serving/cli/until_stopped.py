"""Running something until a signal comes."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

import structlog

from serving.garbage import collect_seldom

_log = structlog.get_logger("serve")


async def until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Keep `service`, which tells where it listens, open until SIGTERM or SIGINT; also while it still starts."""
    await until_signalled(service, lambda address: _log.info("serve.ready", address=address))
    _log.info("serve.stopped")


async def until_signalled(service: AbstractAsyncContextManager[str], ready: Callable[[str], None]) -> None:
    """Keep `service` open until SIGTERM or SIGINT; `ready` hears where it listens. Another signal while it closes
    takes away its time for that.
    """
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)
    with suppress(asyncio.CancelledError):
        async with service as address:
            collect_seldom()
            ready(address)
            await asyncio.Event().wait()


def tell(step: str) -> None:
    """Log a step of the start."""
    _log.info("serve.starting", step=step)
