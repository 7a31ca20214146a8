"""A bounded mapping that forgets what was not used for longest."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRU(Generic[Key, Value]):
    """At most `most` values; with 0, none is kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """What is kept under `key`, which counts as a use."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep `value`, instead of what was kept under `key` before."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def forget(self, stale: Callable[[Value], bool]) -> None:
        """Forget those that were not used for longest, as long as they are `stale`."""
        while self._values and stale(next(iter(self._values.values()))):
            self._values.popitem(last=False)

    def remove(self, key: Key) -> None:
        """Forget what is kept under `key`, if anything is."""
        self._values.pop(key, None)
