"""Fixtures of the router's tests."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from router.models.connection_pool import ConnectionPool
from tests.openai_server import OpenAIServer, serving


@pytest.fixture
async def openai_server() -> AsyncIterator[OpenAIServer]:
    """An OpenAI-compatible server that plays the test's script."""
    async with serving() as server:
        yield server


@pytest.fixture
async def pool() -> AsyncIterator[ConnectionPool]:
    """Connections to models, as the composition root owns them."""
    async with ConnectionPool() as pool:
        yield pool


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """A pooled HTTP session, as the composition root owns it."""
    async with aiohttp.ClientSession() as session:
        yield session
