"""Process many items concurrently, and collect the errors of failed items."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from router.background import task_group
from router.errors import OutOfTime, RolegateError, UpstreamError, UpstreamUnavailable

Item = TypeVar("Item")
Result = TypeVar("Result")
_HOPELESS = 5
"""All work stops after this number of failed items, if no item has succeeded."""


async def in_flight(
    ask: Callable[[Item], Awaitable[Result]],
    items: Iterable[Item],
    at_once: int,
    on_done: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Call `ask` for each item, at most `at_once` calls at a time, and return the results in the
    order of the items.

    `on_done` is called after each successful call. The first error cancels all other calls and is
    raised.
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
    """Call `ask` for each item, at most `at_once` calls at a time. Return the error message of each
    failed item; keys are the items' names.

    `name`: returns an item's name. `so_far`: returns a text about the progress, given the number of
    finished items. `done`: number of items that were finished before this call.

    If an item fails with `UpstreamError` or `OutOfTime`, the other items continue.
    `UpstreamUnavailable`, or any other error, stops all work and is raised. All work also stops if
    no item has succeeded and `_HOPELESS` items (or all, if there are fewer) have failed; the last
    error is then raised. The message of a raised `RolegateError` also states the number of finished
    items.
    """
    errors = dict[str, str]()

    async def attempt(item: Item) -> None:
        nonlocal done
        try:
            await ask(item)
        except (UpstreamError, OutOfTime) as error:
            errors[name(item)] = str(error)
            hopeless = not done and len(errors) >= min(_HOPELESS, len(items))
            if hopeless or isinstance(error, UpstreamUnavailable):
                raise
        else:
            done += 1

    try:
        await in_flight(attempt, items, at_once, on_done)
    except RolegateError as error:
        kept = "Finished calls are kept; start the same command again to resume."
        error.args = (f"{error.args[0].rstrip('.')}. {so_far(done)}. {kept}",)
        raise
    return errors
