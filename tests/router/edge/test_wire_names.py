"""Every name of an enumeration has its value on the wire."""

from typing import Any, get_args

import msgspec
import pytest
from rolegate.client import requests as client_requests
from rolegate.v1 import answer_service_pb2 as answer_pb
from rolegate.v1 import evidence_pb2, run_service_pb2, usage_pb2, usage_service_pb2
from rolegate.v1 import executor_version_service_pb2 as version_pb
from rolegate.v1 import table_service_pb2 as table_pb

from router.edge.grpc.convert import prefix_of, run_to_proto
from router.edge.grpc.convert_request import enum_from_proto
from router.errors import BadRequest
from router.ledger.reconciliation import ReconciliationVerdict
from router.ledger.usage import Bucket, Dimension
from router.trace import RoleName
from router.trace.run import RunKind, RunStatus
from router.trace.table import (
    CellState,
    ColumnType,
    Schema,
    Support,
    TableOutcome,
)
from router.trace.values import AnswerOutcome, ExecutionOutcome, TableRun, TopologyName
from router.versions.book import VersionState
from tests.router.store.stored import run


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        (answer_pb.AnswerOutcome, AnswerOutcome),
        (answer_pb.Topology, TopologyName),
        (answer_pb.Topology, client_requests.TopologyName),
        (evidence_pb2.ExecutionOutcome, ExecutionOutcome),
        (version_pb.ExecutorVersionState, VersionState),
        (run_service_pb2.RunKind, RunKind),
        (run_service_pb2.RunStatus, RunStatus),
        (table_pb.CellState, CellState),
        (table_pb.ColumnType, ColumnType),
        (table_pb.Support, Support),
        (table_pb.TableOutcome, TableOutcome),
        (usage_pb2.Role, RoleName),
        (usage_service_pb2.ReconciliationVerdict, ReconciliationVerdict),
        (usage_service_pb2.UsageBucket, Bucket),
        (usage_service_pb2.UsageDimension, Dimension),
    ],
)
def test_an_enum_has_the_values_of_its_names(enum: Any, names: Any) -> None:
    """A number is read as the name for which it was written."""
    assert {enum_from_proto(enum.DESCRIPTOR, number, "x") for number in enum.values()} == {
        None,
        *get_args(names),
    }
    assert enum.Name(0) == f"{prefix_of(enum.DESCRIPTOR)}UNSPECIFIED"
    with pytest.raises(BadRequest, match=r"^x is 99"):
        enum_from_proto(enum.DESCRIPTOR, 99, "x")


@pytest.mark.parametrize("kind", get_args(RunKind))
def test_every_kind_of_run_can_be_sent(kind: RunKind) -> None:
    """Internal kinds too."""
    stored_run = run("run-1")
    result = TableRun(Schema(())) if kind == "table" else stored_run.result
    number = run_to_proto(msgspec.structs.replace(stored_run, kind=kind, result=result)).kind
    assert enum_from_proto(run_service_pb2.RunKind.DESCRIPTOR, number, "kind") == kind
