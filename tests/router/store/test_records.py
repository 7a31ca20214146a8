"""Records of the log: what is written is read back."""

import msgspec
import pytest
from msgspec.structs import asdict, fields

from router.amount import Amount
from router.models import Usage
from router.store.records import Begun, Opened, RecordedRun, Reserved, Settled, decode, encode
from router.trace import Call
from router.trace.call import OpenedCall
from tests.router.store.entries import NOW, opened, start

CALL = Call(
    run_id="run-1",
    tenant="acme",
    number=7,
    role="execution",
    model="m",
    deployment="engine",
    executor_version="v1",
    purpose="retry",
    attempt=2,
    sub_query_index=3,
    max_tokens=100,
    reserved=Amount(500, 9),
    started_at=NOW,
    prompt_bound=400,
    manager="browser",
    worker=1,
    key_id="5f0c2a9e",
    outcome="failed",
    usage=Usage(30, 20, cached_tokens=10, reasoning_tokens=5, lower_bound=True, estimated=True),
    nano_usd=8,
    first_token_s=0.25,
    duration_s=1.5,
    impossible_usage=True,
)


def test_every_field_of_the_call_above_is_set() -> None:
    """A new field has to be set in `CALL`, so that the next test covers it."""
    assert CALL.usage is not None
    for struct in (CALL, CALL.usage):
        unset = [
            field.name for field in fields(struct) if getattr(struct, field.name) == field.default
        ]
        assert unset == []


def test_a_call_comes_back_from_its_two_records_with_every_field() -> None:
    run = RecordedRun(Begun(start("run-1"), False))
    for record in (Opened(opened(CALL)), Settled.of(CALL)):
        run.apply(decode(encode(record)))
    assert run.calls == [CALL]


def test_a_field_of_a_call_is_in_one_of_its_two_records() -> None:
    """The record of the end follows from the fields of `Call`, number aside."""
    ends = set(asdict(Settled.of(CALL)))
    assert ends - {"number"} == set(Call.__struct_fields__) - set(OpenedCall.__struct_fields__)


def test_a_record_from_before_versions_is_read() -> None:
    record = bytes.fromhex("920d82a6746f6b656e7305a86e616e6f5f75736409")
    assert decode(record) == Reserved(Amount(5, 9))


def test_a_record_of_version_1_is_read() -> None:
    record = bytes.fromhex("01920d82a6746f6b656e7305a86e616e6f5f75736409")
    assert decode(record) == Reserved(Amount(5, 9)) and encode(decode(record)) == record


def test_a_record_of_a_later_release_is_refused() -> None:
    """The error names both versions."""
    with pytest.raises(msgspec.DecodeError, match="version 2, and this release reads up to 1"):
        decode(b"\x02" + encode(Reserved(Amount(5, 9)))[1:])
