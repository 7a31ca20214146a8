"""Running something until a signal comes."""

import asyncio
import gc
import signal
import sys
from contextlib import AbstractAsyncContextManager, ExitStack, suppress

import structlog

_YOUNG = 10_000
_MIDDLE = 5
_OLD = 2
"""Python's own first threshold, 700 objects, is passed by a single question. Older ones are few
here, and soon looked through: what a question leaves behind is not to wait for thousands of others.
"""
_SWITCH_S = 1e-4
"""How long a thread waits for the interpreter before it asks for it. Python's own 5 ms start again
whenever the event loop has looked for news: one with much to do would never let go, and neither a
search nor the database's thread would come to an end.
"""
_log = structlog.get_logger("serve")


def tune_interpreter() -> None:
    """Collect garbage less often, and not among the objects that exist now; let threads run
    alongside the event loop.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def run_until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Run `until_stopped` on uvloop, which Windows does not have."""
    if sys.platform == "win32":
        asyncio.run(until_stopped(service))
    else:
        import uvloop

        uvloop.run(until_stopped(service))


async def until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Keep `service`, which says where it listens, open until SIGTERM or SIGINT, also while it
    still starts. Another signal while it closes takes away its time for that.
    """
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:  # uvloop leaves its handlers where they are
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, this.cancel)
            stack.callback(loop.remove_signal_handler, number)
        with suppress(asyncio.CancelledError):
            async with service as address:
                tune_interpreter()
                _log.info("serve.ready", address=address)
                await asyncio.Event().wait()
    _log.info("serve.stopped")


def log_step(step: str) -> None:
    """Log a step of the start."""
    _log.info("serve.starting", step=step)
