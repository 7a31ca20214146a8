"""What all tests need of the process that they run in."""

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell lets what it starts in the background ignore them, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
