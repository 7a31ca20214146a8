"""The error table: it is complete, and clients see no more than it allows."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from router import errors
from router.edge.grpc.convert import DOMAIN, status_to_proto
from router.edge.status import STATUS, failure_of
from router.errors import (
    BadConfig,
    BadIndex,
    BadRequest,
    BadVersion,
    NoText,
    Overloaded,
    PriceUnknown,
    QuotaExhausted,
    RolegateError,
    StoreInUse,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.trace.identity import LOCAL, Identity
from tests.router.deployment import Deployment
from tests.router.edge.wire import served
from tests.scripted_model import ScriptedModel

NEEDS: dict[type[RolegateError], dict[str, Any]] = {
    QuotaExhausted: {"retry_after_s": 1.5},
    NoText: {"reasons": {}},
    Overloaded: {"retry_after_s": 1.5},
    StoreInUse: {"address": "10.0.0.1:50051"},
}
"""Arguments that some errors require."""


def subclasses(kind: type[RolegateError]) -> Iterator[type[RolegateError]]:
    """Yield all classes below `kind`."""
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def raised() -> list[type[RolegateError]]:
    """Return all of the tree but `UpstreamError`, which is a base class only."""
    return [kind for kind in subclasses(RolegateError) if kind is not UpstreamError]


def info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    """Return the error detail of a status."""
    unpacked = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(unpacked)
    return unpacked


def test_the_table_is_complete() -> None:
    """Every error has its row, and there is no other row."""
    assert set(STATUS) == set(raised())


def test_the_tree_is_drawn_whole() -> None:
    """The tree at the top of the module names every class."""
    assert errors.__doc__ is not None
    kinds: list[type[RolegateError]] = [RolegateError, *subclasses(RolegateError)]
    for kind in kinds:
        assert kind.__module__ == "router.errors"
        assert kind.__name__ in errors.__doc__


def _status(error: BaseException, identity: Identity = LOCAL) -> status_pb2.Status:
    return status_to_proto(failure_of(error, identity))


def test_every_error_has_its_own_reason() -> None:
    """Reasons are in upper snake case, and codes are gRPC's error codes."""
    reasons = [reason for _, reason in STATUS.values()]
    assert len(set(reasons)) == len(reasons)
    assert all(reason == reason.upper() and reason.replace("_", "").isalpha() for reason in reasons)
    assert all(
        code in code_pb2.Code.values() and code != code_pb2.OK for code, _ in STATUS.values()
    )


@pytest.mark.parametrize("kind", raised())
def test_a_status_has_the_message_of_its_error(kind: type[RolegateError]) -> None:
    """Reason and domain are for programs."""
    error = kind(
        "what is wrong",
        **NEEDS.get(kind, {"endpoint": "e"} if issubclass(kind, UpstreamError) else {}),
    )
    status = _status(error)
    assert (status.code, info(status).reason) == STATUS[kind]
    assert (status.message, info(status).domain) == (str(error), DOMAIN)
    assert "what is wrong" in status.message


def test_the_failed_role_is_metadata() -> None:
    error = UpstreamRefused("wrong key", endpoint="e")
    assert dict(info(_status(error)).metadata) == {}
    error.role = "answer"
    assert dict(info(_status(error)).metadata) == {"role": "answer"}


@pytest.mark.parametrize(
    "error",
    [
        QuotaExhausted("spent", retry_after_s=90.5),
        UpstreamUnavailable("busy", endpoint="e", retry_after_s=90.5),
        ExceptionGroup("", [UpstreamUnavailable("busy", endpoint="e", retry_after_s=90.5)]),
    ],
)
def test_a_retry_delay_is_a_detail_and_metadata(error: Exception) -> None:
    """gRPC clients read the detail, others the metadata."""
    status = _status(error)
    delay = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(delay)
    assert delay.retry_delay.ToMilliseconds() == 90_500
    assert info(status).metadata["retry_after_s"] == "90.500"


TENANT = Identity("acme", frozenset({"ask"}))


@pytest.mark.parametrize("kind", raised())
def test_tenants_see_no_addresses_and_no_files(kind: type[RolegateError]) -> None:
    """A message that may contain them is replaced by advice; code and reason stay the same."""
    message = "cannot open /etc/rolegate/index at http://10.0.0.1"
    error = kind(
        message,
        **NEEDS.get(
            kind, {"endpoint": "http://10.0.0.1"} if issubclass(kind, UpstreamError) else {}
        ),
    )
    status = _status(error, TENANT)
    assert (status.code, info(status).reason) == STATUS[kind]
    names_things = issubclass(kind, UpstreamError) or kind in (
        BadConfig,
        StoreInUse,
        BadIndex,
        BadVersion,
        PriceUnknown,
    )
    assert (status.message == message) != names_things
    assert "10.0.0.1" not in status.message or not names_things


@pytest.mark.parametrize(
    "error", [ValueError("password=1234"), KeyError("password"), RuntimeError("password")]
)
def test_an_unexpected_error_is_internal_without_its_text(error: Exception) -> None:
    status = _status(error)
    assert (status.code, info(status).reason) == (code_pb2.INTERNAL, "INTERNAL")
    assert "password" not in str(status)


def test_an_error_of_a_task_group_is_unwrapped() -> None:
    """Holds for nested groups."""
    group = ExceptionGroup(
        "outer", [ExceptionGroup("inner", [BadRequest("empty")]), ValueError("later")]
    )
    assert _status(group) == _status(BadRequest("empty"))
    assert "outer" not in str(_status(ExceptionGroup("outer", [ValueError("x")])))


async def test_an_executor_s_bug_is_internal_without_its_task_group() -> None:
    async with served(Deployment(executor=ScriptedModel([])).gateway()) as channel:
        stub = AnswerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Answer(pb.AnswerRequest(question="why?"))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "TaskGroup" not in str(caught.value)
