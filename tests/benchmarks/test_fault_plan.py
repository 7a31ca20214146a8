"""What goes wrong, by a seed."""

import random
from collections.abc import Iterator

import pytest

from benchmarks.fault_plan import FAULTS, STORMS, FaultPlan, spoiled

_EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}],"usage":{"prompt_tokens":3}}\n\ndata: [DONE]\n\n'
_LINES = _EVENTS.splitlines(keepends=True)


@pytest.fixture
def now() -> Iterator[list[float]]:
    """A clock that is set by hand."""
    yield [0.0]


def test_the_same_seed_gives_the_same_faults(now: list[float]) -> None:
    """And another one gives others; every kind comes, and about as often as it is to."""
    plans = [FaultPlan(seed, 0.5, clock=lambda: now[0]) for seed in ("a", "a", "b")]
    drawn = []
    for plan in plans:
        now[0] = 0.0
        faults = []
        for _ in range(2000):
            now[0] += 0.1
            faults.append(plan.next())
        drawn.append(faults)
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {None, *FAULTS}
    assert plans[0].seen.total() == 2000
    assert 900 < drawn[0].count(None) < 1050


def test_a_storm_hits_every_call_until_it_is_over(now: list[float]) -> None:
    """For as long as it lasts, whatever the share of other faults; then it is over."""
    plan = FaultPlan("s", 1.0, ("throttled",), clock=lambda: now[0])
    assert plan.next() == "throttled"
    plan.share = 1e-9
    assert {plan.next() for _ in range(100)} == {"throttled"}
    now[0] += 10.0
    assert plan.next() is None


def test_without_a_share_all_goes_well() -> None:
    """Not a single fault."""
    plan = FaultPlan("s", 0.0)
    assert {plan.next() for _ in range(100)} == {None}
    assert plan.seen == {"none": 100}


def test_other_faults_leave_the_lines_as_they_are() -> None:
    """They are not in what is said."""
    for fault in set(FAULTS) - {"lying_usage", "invalid_utf8", "duplicated"}:
        assert list(spoiled(_LINES, fault, random.Random(0))) == _LINES


def test_spoiled_lines() -> None:
    """Chunks are spoiled as named, and the end of the stream is not."""
    utf8, lying, twice = set(), set(), set()
    for seed in range(30):
        utf8.add(next(spoiled(_LINES, "invalid_utf8", random.Random(seed))))
        lying.add(next(spoiled(_LINES, "lying_usage", random.Random(seed))))
        twice.add(b"".join(spoiled(_LINES, "duplicated", random.Random(seed))).count(b"word"))
    assert any(_undecodable(line) for line in utf8)
    assert len(lying) > 10
    assert not any(_undecodable(line) for line in lying)
    assert twice == {1, 2, 3}
    for fault in FAULTS:
        assert list(spoiled(_LINES, fault, random.Random(1)))[-2:] == _LINES[-2:]


def test_storms_have_the_statuses_of_servers() -> None:
    """Those that ask to come back later."""
    assert STORMS == {"throttled": 429, "overloaded": 503}


def _undecodable(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return True
    return False
