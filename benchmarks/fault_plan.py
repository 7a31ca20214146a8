"""Which call of an upstream goes wrong, and how: drawn by chance, but the same for the same seed."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Literal, get_args

Fault = Literal[
    "reset", "black_hole", "drip", "cut", "lying_usage", "invalid_utf8", "duplicated", "throttled", "overloaded"
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
Storm = Literal["throttled", "overloaded"]
STORMS: dict[Storm, int] = {"throttled": 429, "overloaded": 503}
"""Faults that all calls have for a while, with their status."""
_STORM_WEIGHT = 0.1
_STORM_S = 0.2, 1.5
_DATA = b"data: {"
_LIES: tuple[object, ...] = (-1, 0, 10**6, 2**63, 10**30, 1.5, float("1e308"), "many", None, [], {"total": 3}, True)
_RETRY_AFTER = (None, "0", "1", "3600", "-5", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")


class FaultPlan:
    """Says of one call after the other what goes wrong with it."""

    def __init__(
        self, seed: str, share: float, faults: Iterable[Fault] = FAULTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`share`: of the calls with which something begins to go wrong; a storm is a tenth as likely as another
        fault, as it hits many calls. `clock`: seconds.
        """
        self.chance = random.Random(seed)
        """For what else is left to chance in a fault."""
        self.share = share
        self.seen = Counter[str]()
        """Calls by what went wrong with them."""
        self._faults, self._clock = tuple(faults), clock
        self._weights = [_STORM_WEIGHT if fault in STORMS else 1.0 for fault in self._faults]
        self._storm: Storm | None = None
        self._storm_until = 0.0

    def next(self) -> Fault | None:
        """What is to go wrong with the next call."""
        fault = self._next()
        self.seen[fault or "none"] += 1
        return fault

    def retry_after(self) -> dict[str, str]:
        """The headers of a reply of a storm."""
        said = self.chance.choice(_RETRY_AFTER)
        return {} if said is None else {"Retry-After": said}

    def _next(self) -> Fault | None:
        if not self.share:
            return None
        if self._storm and self._clock() < self._storm_until:
            return self._storm
        self._storm = None
        if self.chance.random() >= self.share:
            return None
        fault = self.chance.choices(self._faults, self._weights)[0]
        if fault in STORMS:
            self._storm, self._storm_until = fault, self._clock() + self.chance.uniform(*_STORM_S)
        return fault


def spoiled(lines: Iterable[bytes], fault: Fault | None, chance: random.Random) -> Iterator[bytes]:
    """The lines of an event stream with a fault that leaves it going on."""
    for line in lines:
        if not line.startswith(_DATA):
            yield line
            continue
        match fault:
            case "lying_usage":
                yield _lying(line, chance)
            case "invalid_utf8" if chance.random() < 0.5:
                at = chance.randrange(len(_DATA), len(line))
                yield line[:at] + chance.choice((b"\xff\xfe", b"\xc3", b"\xed\xa0\x80")) + line[at:]
            case "duplicated":
                yield from repeat(line + b"\n", chance.randint(1, 3))
            case _:
                yield line


def _lying(line: bytes, chance: random.Random) -> bytes:
    chunk = json.loads(line.removeprefix(b"data: "))
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    chunk["usage"] = {name: chance.choice(_LIES) for name in names if chance.random() < 0.8}
    if chance.random() < 0.3:
        chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": chance.choice(_LIES)}
    if chance.random() < 0.1:
        chunk["usage"] = chance.choice(_LIES)
    return b"data: %b\n" % json.dumps(chunk).encode()
