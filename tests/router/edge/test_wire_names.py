"""Whatever has a name inside has one on the wire."""

from typing import get_args

import msgspec
import pytest
from rolegate.v1.executor_version_service_pb2 import ExecutorVersionState
from rolegate.v1.run_service_pb2 import RunKind as WireKind
from rolegate.v1.usage_pb2 import Role as WireRole

from router.edge.grpc.convert_run import run_to_proto, state_from_proto, version_to_proto
from router.edge.grpc.convert_usage import ROLES
from router.trace.call import RoleName
from router.trace.run import RunKind
from router.versions.book import ExecutorVersion, VersionState
from tests.router.store.stored import run


def test_roles() -> None:
    """All of them, each its own."""
    assert {name: WireRole.Name(number) for name, number in ROLES.items()} == {
        name: f"ROLE_{name.upper()}" for name in get_args(RoleName)
    }


@pytest.mark.parametrize("kind", get_args(RunKind))
def test_kinds_of_runs(kind: RunKind) -> None:
    """Also those that nobody asks for."""
    assert run_to_proto(msgspec.structs.replace(run("run-1"), kind=kind)).kind == WireKind.Value(
        f"RUN_KIND_{kind.upper()}"
    )


@pytest.mark.parametrize("state", get_args(VersionState))
def test_states_of_versions(state: VersionState) -> None:
    """Both ways."""
    number = version_to_proto(ExecutorVersion("executor-000001", state, 0.0, 1.0, 1.0)).state
    assert number == ExecutorVersionState.Value(f"EXECUTOR_VERSION_STATE_{state.upper()}")
    assert state_from_proto(number) == state
