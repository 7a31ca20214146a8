"""What all tests need of the process that they run in."""

import signal
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """A shell lets what it starts in the background ignore them, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _commands_do_not_change_what_others_log() -> Iterator[None]:
    """Commands that show their own progress log errors alone."""
    yield
    structlog.reset_defaults()
