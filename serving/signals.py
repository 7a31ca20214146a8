"""Run a service until the process gets SIGTERM or SIGINT."""

import asyncio
import gc
import signal
import sys
from contextlib import AbstractAsyncContextManager, ExitStack, suppress

import structlog
import uvloop

_GC_THRESHOLDS = (10_000, 5, 2)
"""Thresholds of the garbage collector's three generations. Python's default for the first
generation is 700 objects, which a single question exceeds several times. The thresholds of the two
older generations are low, so that the garbage of a question is freed before thousands of further
questions. Collections of these generations are fast, because they contain few objects.
"""
_SWITCH_S = 1e-4
"""Switch interval in seconds. After this time, a thread that waits for the GIL asks the thread with
the GIL to release it. Python's default is 5 ms, and the time starts again whenever the event loop
polls for events. So with the default, a busy event loop would rarely release the GIL to the threads
of searches and of the database.
"""
_log = structlog.get_logger("serve")


def tune_interpreter() -> None:
    """Tune Python for a gateway: collect garbage less often, exclude the objects that exist now
    from garbage collection, and let other threads run while the event loop is busy.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def run_until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Run `until_stopped(service)` in a new event loop of uvloop."""
    uvloop.run(until_stopped(service))


async def until_stopped(service: AbstractAsyncContextManager[str]) -> None:
    """Open `service`, a context manager that yields an address, keep it open until SIGTERM or
    SIGINT, and close it. A signal while `service` opens also stops it. A second signal, while
    `service` closes, ends the grace period of running requests.
    """
    this = asyncio.current_task()
    assert this is not None
    loop = asyncio.get_running_loop()
    with ExitStack() as stack:  # uvloop leaves its signal handlers installed
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, this.cancel)
            stack.callback(loop.remove_signal_handler, number)
        with suppress(asyncio.CancelledError):
            async with service as address:
                tune_interpreter()
                _log.info("serve.ready", address=address)
                # Hide the cancellation from the service, which would otherwise not finish its work
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                this.uncancel()
    _log.info("serve.stopped")


def log_step(step: str) -> None:
    """Log a line of text about a step of the service's start."""
    _log.info("serve.starting", step=step)
