"""A service on a loop of its own."""

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
async def service(told: list[str], *, fails: str = "") -> AsyncIterator[threading.Event]:
    """Tells of its life; what it opens is set by its loop, while nobody waits for that."""
    ticked = threading.Event()
    told.append("opening")
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
        told.append("closed")
        if fails == "closing":
            raise BadConfig("not closed")


def test_its_loop_goes_on() -> None:
    """While the main thread waits, until the context is left."""
    told: list[str] = []
    with in_background(service(told)) as ticked:
        assert ticked.wait(10)
        assert told == ["opening"]
    assert told == ["opening", "closed"]


@pytest.mark.parametrize(("fails", "said"), [("opening", "no"), ("closing", "not closed")])
def test_its_errors_are_raised(fails: str, said: str) -> None:
    """Those of opening and of closing."""
    with pytest.raises(BadConfig, match=said), in_background(service([], fails=fails)):
        pass


def test_an_error_inside_closes_it() -> None:
    """And is raised."""
    told: list[str] = []
    with pytest.raises(ZeroDivisionError), in_background(service(told)):
        raise ZeroDivisionError
    assert told == ["opening", "closed"]


def test_ctrl_c_while_it_opens() -> None:
    """It is closed before the interrupt is raised."""
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt), in_background(service(told, fails="never")):
        pass
    assert told == ["opening", "closed"]
