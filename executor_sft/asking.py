"""Many questions: so many at once, with a bar, and with those told that failed."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from router.background import task_group
from router.errors import OutOfTime, RolegateError, UpstreamError, UpstreamUnavailable

Item = TypeVar("Item")
Result = TypeVar("Result")
_HOPELESS = 5
"""So many that fail before any is done are no accident."""


async def in_flight(
    ask: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    on_done: Callable[[], None],
) -> list[Result]:
    """Ask of each item, `at_once` at a time; the results in the items' order. The first error
    ends all.
    """
    results = dict[int, Result]()
    left = enumerate(items)

    async def keep_asking() -> None:
        for number, item in left:
            results[number] = await ask(item)
            on_done()

    async with task_group() as group:
        for _ in range(at_once):
            group.create_task(keep_asking())
    return [results[number] for number in sorted(results)]


async def failures(
    ask: Callable[[Item], Awaitable[None]],
    items: Sequence[Item],
    at_once: int,
    on_done: Callable[[], None],
    *,
    name: Callable[[Item], str],
    so_far: Callable[[int], str],
    done: int = 0,
) -> dict[str, str]:
    """Ask of each item; why items failed, by their names. `so_far`: says how many are done, `done`
    of them before.

    Raises `UpstreamUnavailable` once an endpoint is gone, `UpstreamError` or `OutOfTime` where
    every item fails, and what else `ask` raises, with how far it came.
    """
    failed: dict[str, str] = {}

    async def tried(item: Item) -> None:
        nonlocal done
        try:
            await ask(item)
        except (UpstreamError, OutOfTime) as error:
            failed[name(item)] = str(error)
            hopeless = not done and len(failed) >= min(_HOPELESS, len(items))
            if hopeless or isinstance(error, UpstreamUnavailable):
                raise
        else:
            done += 1

    try:
        await in_flight(tried, items, at_once, on_done)
    except RolegateError as error:
        kept = "What was paid for is kept; start the same command again to go on."
        error.args = (f"{error.args[0].rstrip('.')}. {so_far(done)}. {kept}",)
        raise
    return failed
