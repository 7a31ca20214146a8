"""A service on a background event loop."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.errors import BadConfig
from serving.cli.ask import in_background


@asynccontextmanager
async def service(events: list[str], *, fails: str = "") -> AsyncIterator[threading.Event]:
    """Record the service's life; the event is set by its loop, and nothing waits for it."""
    ticked = threading.Event()
    events.append("opening")
    if fails == "opening":
        raise BadConfig("no")
    try:
        if fails == "never":
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        asyncio.get_running_loop().call_later(0.01, ticked.set)
        yield ticked
    finally:
        await asyncio.sleep(0)
        events.append("closed")
        if fails == "closing":
            raise BadConfig("not closed")


def test_the_loop_runs_while_the_main_thread_waits() -> None:
    """It ends with the context."""
    events: list[str] = []
    with in_background(service(events)) as ticked:
        assert ticked.wait(10)
        assert events == ["opening"]
    assert events == ["opening", "closed"]


@pytest.mark.parametrize(("fails", "message"), [("opening", "no"), ("closing", "not closed")])
def test_errors_of_opening_and_closing_are_raised(fails: str, message: str) -> None:
    with pytest.raises(BadConfig, match=message), in_background(service([], fails=fails)):
        pass


def test_an_error_inside_closes_the_service() -> None:
    """The error is raised."""
    events: list[str] = []
    with pytest.raises(ZeroDivisionError), in_background(service(events)):
        raise ZeroDivisionError
    assert events == ["opening", "closed"]


def test_ctrl_c_while_it_opens_closes_it() -> None:
    """The service is closed before the interrupt is raised."""
    events: list[str] = []
    with pytest.raises(KeyboardInterrupt), in_background(service(events, fails="never")):
        pass
    assert events == ["opening", "closed"]
