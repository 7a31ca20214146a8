"""Methods, messages and routes are those that were recorded, and each was called at least once."""

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.contract.conftest import Contract
from tests.contract.recording import RECORDING, check, record, recorded
from tests.contract.wire import PACKAGE, described, services

pytestmark = pytest.mark.xdist_group("contract")
_CALLED_ELSEWHERE = {
    *(f"TableService/{name}" for name in ("FillTable", "StreamTable", "GetTable")),
    *(
        f"DocumentService/{name}"
        for name in ("UploadDocument", "ListDocuments", "DeleteDocument", "GetBuild")
    ),
}
"""Methods whose answers are compared by tests of their own."""


@pytest.mark.parametrize("part", ["methods", "messages", "enums"])
def test_the_wire_is_what_was_recorded(part: str) -> None:
    """All methods with their messages, all fields with their types, all values of enums."""
    found = described()
    if RECORDING:
        record("wire", found)
    check(part, found[part], recorded("wire")[part])


def test_the_server_has_every_service(contract: Contract) -> None:
    """Reflection lists them, and describes their methods."""
    with grpc.insecure_channel(contract.gateways["main"].address) as channel:
        reflected = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(reflected)
        listed = set(reflected.get_services())
        for name, service in services().items():
            there = {method.name for method in pool.FindServiceByName(f"{PACKAGE}.{name}").methods}
            assert there == {method.name for method in service.methods}
    further = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert listed == {f"{PACKAGE}.{name}" for name in services()} | further


def test_health(contract: Contract) -> None:
    """It knows every service, and tells whoever watches."""
    with grpc.insecure_channel(contract.gateways["main"].address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", *(f"{PACKAGE}.{name}" for name in services())):
            request = health_pb2.HealthCheckRequest(service=name)
            assert stub.Check(request, timeout=10).status == health_pb2.HealthCheckResponse.SERVING
            watched = stub.Watch(request, timeout=10)
            assert next(watched).status == health_pb2.HealthCheckResponse.SERVING
            watched.cancel()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_every_method_was_called(contract: Contract) -> None:
    """By one scenario at least, so that what each returns is compared."""
    called = set[str]().union(*(gateway.wire.called for gateway in contract.gateways.values()))
    not_called = described()["methods"].keys() - called
    assert not_called <= _CALLED_ELSEWHERE


def test_every_route_was_asked(contract: Contract) -> None:
    """Those of the OpenAI-compatible server."""
    asked = sorted({route for gateway in contract.gateways.values() for route in gateway.fetched})
    if RECORDING:
        record("routes", asked)
    assert asked == recorded("routes")
