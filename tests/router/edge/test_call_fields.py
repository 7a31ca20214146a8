"""Counts of a call or of sums are declared in its struct; tables, rows, sums and the wire
follow.
"""

from rolegate.v1.run_service_pb2 import UpstreamCall
from rolegate.v1.usage_pb2 import RoleUsage

from router.edge.grpc.convert import WIRE_NAMES
from router.models import Usage
from router.models.model import TOKEN_COUNTS
from router.store.schema import CALLS, USAGE_HOURS
from router.trace import Call
from router.trace.call import SUMMED_COUNTS, SUMS, RoleTotal
from tests.router.store.stored import call

INSIDE = {
    "run_id",
    "tenant",
    "key_id",
    "number",
    "max_tokens",
    "prompt_bound",
    "reserved",
    "impossible_usage",
}
"""Fields of calls that are internal, or are sent with the run."""


def on_the_wire(message: type[UpstreamCall] | type[RoleUsage]) -> set[str]:
    """Return the fields of a message by their internal names."""
    return {WIRE_NAMES.get(field.name, field.name) for field in message.DESCRIPTOR.fields}


def test_the_wire_has_every_field_and_no_other() -> None:
    """A new field needs an entry in the `.proto` or in `INSIDE`."""
    assert on_the_wire(RoleUsage) == set(RoleTotal.__struct_fields__)
    fields = {*Call.__struct_fields__, *TOKEN_COUNTS, "request_id", "counted"} - {"usage"} - INSIDE
    assert on_the_wire(UpstreamCall) == fields


def test_the_tables_have_every_count() -> None:
    """Each count of an engine is a column and is summed."""
    assert set(TOKEN_COUNTS) == set(Usage.__struct_fields__) - {"lower_bound", "estimated"}
    assert set(TOKEN_COUNTS) <= set(SUMMED_COUNTS) <= set(CALLS.c.keys())
    assert set(SUMS) <= set(USAGE_HOURS.c.keys())


def test_a_call_has_its_own_counts_and_those_of_its_usage() -> None:
    """Counts of an unknown usage are None."""
    counted_call = call("run-1", usage=Usage(*range(5, 5 + len(TOKEN_COUNTS))))
    assert [counted_call.count(name) for name in TOKEN_COUNTS] == list(
        range(5, 5 + len(TOKEN_COUNTS))
    )
    assert counted_call.count("nano_usd") == 7
    assert call("run-1", usage=None).count("prompt_tokens") is None
