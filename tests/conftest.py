"""What all tests need of the process that they run in."""

import signal
from collections.abc import Callable, Iterator

import pytest
import structlog

from serving.cli.main import main

Rolegate = Callable[..., tuple[int, str]]
"""Takes a command's arguments."""


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


@pytest.fixture
def rolegate(capsys: pytest.CaptureFixture[str]) -> Rolegate:
    """Runs a command in this process, from any thread: its exit status, and what it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    return run
