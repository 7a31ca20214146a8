"""The error table: complete, and all that a client learns."""

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
    Overloaded,
    PriceUnknown,
    QuotaExhausted,
    RolegateError,
    StoreInUse,
    UpstreamError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models import ScriptedModel
from router.trace.identity import LOCAL, Identity
from tests.router.deployment import Deployment
from tests.router.edge.wire import served

NEEDS: dict[type[RolegateError], dict[str, Any]] = {
    QuotaExhausted: {"retry_after_s": 1.5},
    Overloaded: {"retry_after_s": 1.5},
    StoreInUse: {"address": "10.0.0.1:50051"},
}
"""What some errors are made with."""


def subclasses(kind: type[RolegateError]) -> Iterator[type[RolegateError]]:
    """All classes below `kind`."""
    for child in kind.__subclasses__():
        yield child
        yield from subclasses(child)


def raised() -> list[type[RolegateError]]:
    """All of the tree but `UpstreamError`, which only gathers those below it."""
    return [kind for kind in subclasses(RolegateError) if kind is not UpstreamError]


def info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    """The detail of a status."""
    unpacked = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(unpacked)
    return unpacked


def test_the_table_is_complete() -> None:
    """Every error that is raised has its row, and no row is for anything else."""
    assert set(STATUS) == set(raised())


def test_the_tree_is_drawn_whole() -> None:
    """The tree at the top of the module names every class, with what its docstring says."""
    assert errors.__doc__ is not None
    kinds: list[type[RolegateError]] = [RolegateError, *subclasses(RolegateError)]
    for kind in kinds:
        assert kind.__module__ == "router.errors"
        assert kind.__name__ in errors.__doc__


def _status(error: BaseException, identity: Identity = LOCAL) -> status_pb2.Status:
    return status_to_proto(failure_of(error, identity))


def test_reasons_tell_errors_apart() -> None:
    """Reasons are upper snake case, one for each class, and codes are those of gRPC that mean
    an error.
    """
    reasons = [reason for _, reason in STATUS.values()]
    assert len(set(reasons)) == len(reasons)
    assert all(reason == reason.upper() and reason.replace("_", "").isalpha() for reason in reasons)
    assert all(
        code in code_pb2.Code.values() and code != code_pb2.OK for code, _ in STATUS.values()
    )


@pytest.mark.parametrize("kind", raised())
def test_a_status_says_what_the_error_says(kind: type[RolegateError]) -> None:
    """The message is for people; reason and domain are for programs."""
    error = kind(
        "what is wrong",
        **NEEDS.get(kind, {"endpoint": "e"} if issubclass(kind, UpstreamError) else {}),
    )
    status = _status(error)
    assert (status.code, info(status).reason) == STATUS[kind]
    assert (status.message, info(status).domain) == (str(error), DOMAIN)
    assert "what is wrong" in status.message


def test_the_role_is_metadata() -> None:
    """A client that owns three models learns which of them failed."""
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
def test_when_to_come_back_is_told(error: Exception) -> None:
    """Where it is known: to clients of gRPC in the detail that is made for it, to others in the
    metadata.
    """
    status = _status(error)
    delay = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(delay)
    assert delay.retry_delay.ToMilliseconds() == 90_500
    assert info(status).metadata["retry_after_s"] == "90.500"


TENANT = Identity("acme", frozenset({"ask"}))


@pytest.mark.parametrize("kind", raised())
def test_tenants_read_no_addresses_and_no_files(kind: type[RolegateError]) -> None:
    """Where a text may name them, they are told what to do instead; code and reason are the
    same as for others.
    """
    said = "cannot open /etc/rolegate/index at http://10.0.0.1"
    error = kind(
        said,
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
    assert (status.message == said) != names_things
    assert "10.0.0.1" not in status.message or not names_things


@pytest.mark.parametrize(
    "error", [ValueError("password=1234"), KeyError("password"), RuntimeError("password")]
)
def test_foreign_errors_say_nothing(error: Exception) -> None:
    """What is not ours is internal, without a word of its text."""
    status = _status(error)
    assert (status.code, info(status).reason) == (code_pb2.INTERNAL, "INTERNAL")
    assert "password" not in str(status)


def test_what_a_task_group_wrapped_is_unwrapped() -> None:
    """An error that came through any number of task groups is what it was."""
    group = ExceptionGroup(
        "outer", [ExceptionGroup("inner", [BadRequest("empty")]), ValueError("later")]
    )
    assert _status(group) == _status(BadRequest("empty"))
    assert "outer" not in str(_status(ExceptionGroup("outer", [ValueError("x")])))


async def test_an_executors_bug_over_a_channel() -> None:
    """So is one that came through the task group of the executors."""
    async with served(Deployment(executor=ScriptedModel([])).gateway()) as channel:
        stub = AnswerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Answer(pb.AnswerRequest(question="why?"))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert "TaskGroup" not in str(caught.value)
