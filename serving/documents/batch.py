"""Lists short enough to be held in memory."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_ITEMS = 256
_CHARS = 1_000_000


def batches(items: Iterable[T], length: Callable[[T], int]) -> Iterator[list[T]]:
    """The items in lists short enough to be held in memory; `length` tells the characters of one."""
    batch: list[T] = []
    chars = 0
    for item in items:
        batch.append(item)
        chars += length(item)
        if len(batch) == _ITEMS or chars > _CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch
