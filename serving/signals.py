"""Run a service until the process gets SIGTERM or SIGINT."""

import asyncio
import gc
import signal
import sys
from contextlib import AbstractAsyncContextManager, ExitStack, suppress

import structlog
import uvloop

_YOUNG = 10_000
_MIDDLE = 5
_OLD = 2
"""Thresholds of the garbage collector's three generations. Python's default for the first, 700
objects, is exceeded by a single question. The older generations are small here, and fast to
collect, so their thresholds are low: garbage of a question does not wait for thousands of further
questions.
"""
_SWITCH_S = 1e-4
"""Time for which a waiting thread lets another thread run Python code before it requests the
interpreter lock. Python's default of 5 ms starts again whenever the event loop has polled for
events. So a busy event loop would never release the lock, and searches and the database's thread
would not finish.
"""
_log = structlog.get_logger("serve")


def tune_interpreter() -> None:
    """Tune Python for a gateway: collect garbage less often, never scan the objects that exist now,
    and let other threads run although the event loop is busy.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def run_until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Run `until_stopped` on uvloop."""
    uvloop.run(until_stopped(service))


async def until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Keep `service` open until SIGTERM or SIGINT, then close it. The service yields the address at
    which it listens. A signal during the start also stops it. A second signal while it closes ends
    its grace period.
    """
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:  # uvloop does not remove its signal handlers
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, this.cancel)
            stack.callback(loop.remove_signal_handler, number)
        with suppress(asyncio.CancelledError):
            async with service as address:
                tune_interpreter()
                _log.info("serve.ready", address=address)
                # The service must not see the signal as an error: it would not finish its work
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                this.uncancel()
    _log.info("serve.stopped")


def log_step(step: str) -> None:
    """Log a step of the service's start."""
    _log.info("serve.starting", step=step)
