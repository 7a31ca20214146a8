"""The blocking client is generated from the async one."""

import subprocess
import sys

from scripts.sync_client import TARGET, blocking


def test_the_blocking_client_uses_nothing_of_asyncio() -> None:
    """Every word of the async client has its blocking counterpart."""
    source = '''"""Client."""

from collections.abc import AsyncIterator, Coroutine


class AsyncClient:
    async def runs(self) -> AsyncIterator[int]:
        async for run in self.pages:
            yield await self.channel(grpc.aio, run)
'''
    generated = blocking(source)
    assert "async" not in generated.partition('"""\n\n')[2].lower()
    assert "Coroutine" not in generated
    assert "class Client:" in generated
    assert "-> Iterator[int]" in generated


def test_the_committed_client_is_fresh() -> None:
    """`--check` compares it with its source, and writes nothing."""
    before = TARGET.read_text()
    command = [sys.executable, "-m", "scripts.sync_client", "--check"]
    assert subprocess.run(command, check=False).returncode == 0
    assert TARGET.read_text() == before
