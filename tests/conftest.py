"""Process-wide settings of all tests."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from serving.cli.main import main
from serving.config.config import EmbedderConfig
from tests import embedding

if "PYTEST_XDIST_WORKER" in os.environ:
    # Each core has a process, and threads spin while they wait
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The time of an example depends on the load of the machine. `pytest --hypothesis-profile thorough`
# searches longer.
settings.register_profile("rolegate", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("rolegate")


class Ended(NamedTuple):
    """A command's exit status and output."""

    status: int
    out: str
    err: str


Rolegate = Callable[..., Ended]
"""Function of a command's arguments."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Give each process whole files, as the tests of a file share their setup."""
    # The files with the most tests are not the slowest
    config.option.loadscopereorder = False
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _file
    return scheduler


def pytest_collection_finish() -> None:
    """Leave what collection and imports made to the end: collecting that garbage again and again
    takes a sixth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


_TOGETHER = {
    "engine": ("end_to_end/",),
    "gateways": ("contract/",),
    "torch": (
        *("benchmarks/test_retrieval", "executor_sft/test_dataset", "executor_sft/test_lessons"),
        *(
            "executor_sft/test_minimodel",
            "executor_sft/test_train",
            "serving/test_index_build",
            "serving/cli/test_cli",
        ),
        *("serving/retrieval/", "calls/test_prompt_bound"),
    ),
    "litellm": (
        "benchmarks/test_cost",
        "models/test_litellm_model",
        "config/test_prices",
        "cli/test_keys",
    ),
}
"""Files that count as a single file, by what they share; it takes seconds to start or to import."""


def _file(test: str) -> str:
    path = test.partition("::")[0]
    return next(
        (shared for shared, parts in _TOGETHER.items() if any(part in path for part in parts)), path
    )


@pytest.fixture(scope="session", autouse=True)
def _interrupts_are_heard() -> None:
    """Handle interrupts, which a shell's background processes ignore, with their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _commands_do_not_change_what_others_log() -> Iterator[None]:
    """Keep the logging that commands change; those that show progress log errors alone."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def word_embedder() -> Iterator[EmbedderConfig]:
    """Config of an embedder that compares words."""
    with embedding.endpoint() as config:
        yield config


@pytest.fixture
def rolegate(capsys: pytest.CaptureFixture[str]) -> Rolegate:
    """Function that runs a command in this process, from any thread."""

    def run(*arguments: object) -> Ended:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        return Ended(status, *capsys.readouterr())

    return run
