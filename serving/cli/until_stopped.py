"""Running something until a signal comes."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager

import structlog

_log = structlog.get_logger("serve")


async def until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Keep `service`, which tells where it listens, open until SIGTERM or SIGINT; also while it still starts."""
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:  # a second signal must not break off the end
            stopping = True
            this.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        async with service as address:
            _log.info("serve.ready", address=address)
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        _log.info("serve.stopped")


def tell(step: str) -> None:
    """Log a step of the start."""
    _log.info("serve.starting", step=step)
