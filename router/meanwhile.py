"""Work without an end, beside what is done meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def meanwhile(*endless: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let these go on while the context is open; then they are cancelled, and their ends waited for."""
    tasks = [asyncio.create_task(work) for work in endless]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
