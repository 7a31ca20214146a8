"""Background tasks and task groups."""

import asyncio
import weakref

import pytest

from router.background import background_tasks, free_slowly, task_group
from router.errors import StoreFailed


async def test_a_failed_task_is_logged_and_the_others_continue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A cancelled task has not failed."""
    ended = asyncio.Event()

    async def fail() -> None:
        try:
            raise OSError("no memory")
        finally:
            ended.set()

    async def run_forever() -> None:
        await asyncio.Event().wait()

    async with background_tasks(fail(), run_forever()):
        await ended.wait()
        await asyncio.sleep(0)
    log = capsys.readouterr().out
    assert "no memory" in log
    assert log.count("task.failed") == 1


async def test_a_task_group_raises_the_first_error_itself() -> None:
    """The error has no group around it and keeps its cause. The other tasks are cancelled."""
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


class _Part:
    """What a weak reference can follow."""


async def test_the_parts_of_a_large_object_are_freed_in_many_steps() -> None:
    """They are all kept until then."""
    parts = [_Part() for _ in range(1000)]
    left = weakref.WeakSet(parts)
    free_slowly(parts, 0.05)
    del parts
    await asyncio.sleep(0)
    assert len(left) == 1000

    most = 0
    while left:
        before = len(left)
        await asyncio.sleep(0)
        most = max(most, before - len(left))
    assert most <= 100
