"""Work beside other work."""

import asyncio

import pytest

from router.background import background_tasks


async def test_work_that_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """What it stands beside goes on, and the log says what has ended; one that is cancelled has
    not failed.
    """
    ended = asyncio.Event()

    async def fail() -> None:
        try:
            raise OSError("no memory")
        finally:
            ended.set()

    async def last() -> None:
        await asyncio.Event().wait()

    async with background_tasks(fail(), last()):
        await ended.wait()
        await asyncio.sleep(0)
    told = capsys.readouterr().out
    assert "no memory" in told
    assert told.count("task.failed") == 1
