"""Background tasks and task groups."""

import asyncio

import pytest

from router.background import background_tasks, task_group
from router.errors import StoreFailed


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


async def test_task_group_raises_the_first_error_itself() -> None:
    """The error has no group around it and keeps its cause; the other tasks are cancelled."""
    cancelled = asyncio.Event()

    async def fail() -> None:
        raise StoreFailed("no disk") from OSError("full")

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(StoreFailed, match="no disk") as raised:
        async with task_group() as group:
            group.create_task(wait())
            group.create_task(fail())
    assert isinstance(raised.value.__cause__, OSError)
    assert cancelled.is_set()
