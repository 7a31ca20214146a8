"""Fixtures of commands and servers."""

from collections.abc import Iterator

import pytest
import structlog

from tests import scripted_gateway
from tests.ports import free_port


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Restore the logging that commands change."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def gateway() -> Iterator[str]:
    """Address of a gateway of scripted models."""
    with scripted_gateway.running() as address:
        yield address


@pytest.fixture
def dead() -> str:
    """Loopback address where nothing listens."""
    return f"127.0.0.1:{free_port()}"
