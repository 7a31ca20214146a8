"""Runs encoded and decoded part by part."""

import msgspec
import pytest
from msgspec.structs import replace

from router.store import parts
from router.store.parts import decode_run, encoded_in_parts
from router.trace import Run
from tests.router.edge.pages.demo import runs, table

RUNS = [
    *{type(run.result): run for run in runs()}.values(),
    replace(table("run-without-a-result"), result=None, calls=(), events=()),
]


@pytest.fixture(autouse=True)
def _small_runs_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_MANY", 0)
    monkeypatch.setattr(parts, "_LARGE_BYTES", 0)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_parts_are_encoded_as_the_whole_run_is(run: Run) -> None:
    whole = msgspec.msgpack.encode(run)
    assert msgspec.msgpack.encode(encoded_in_parts(run)) == whole
    assert decode_run(whole) == msgspec.msgpack.decode(whole, type=Run)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_damage_is_reported_as_such(run: Run) -> None:
    whole = msgspec.msgpack.encode(run)
    given = msgspec.msgpack.decode(whole)
    damaged = [whole[:cut] for cut in range(0, len(whole), 1 + len(whole) // 200)]
    damaged += [
        msgspec.msgpack.encode({key: value for key, value in given.items() if key != name})
        for name in ("id", "result", "calls")
    ]
    damaged.append(msgspec.msgpack.encode(given | {"events": 3}))
    damaged.append(msgspec.msgpack.encode(given | {"result": {"type": "TableRun"}}))
    damaged.append(msgspec.msgpack.encode(given | {"result": [1]}))
    for trace in damaged:
        with pytest.raises(msgspec.DecodeError):
            decode_run(trace)
