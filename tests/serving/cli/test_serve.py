"""Start and end of `rolegate serve`."""

import json
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2_grpc import HealthStub
from rolegate.client import Client
from rolegate.v1.answer_service_pb2 import AnswerRequest
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from tests import scripted_gateway
from tests.conftest import Rolegate
from tests.serving.cli.test_cli import config_file, service

HTTP = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@pytest.fixture
def upstream() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def config_at(upstream: socket.socket, folder: Path, retrieval: str = "127.0.0.1:9") -> list[str]:
    """Return options with all models at this address."""
    host, port = upstream.getsockname()
    file = config_file(folder, f"http://{host}:{port}/v1", f'address = "{retrieval}"')
    return ["--config", str(file), "--address", "127.0.0.1:0"]


def test_a_second_signal_ends_the_gateway_immediately(
    tmp_path: Path, upstream: socket.socket
) -> None:
    """The first signal lets running requests finish for half a minute; health is down meanwhile."""
    with (
        scripted_gateway.running() as retrieval,
        service("serve", *config_at(upstream, tmp_path, retrieval), cwd=tmp_path) as server,
    ):
        with grpc.insecure_channel(server.ready()) as channel:
            stub: Any = HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            answer = AnswerServiceStub(channel).Answer.future(AnswerRequest(question="why?"))
            connection, _ = upstream.accept()  # the gateway calls its delegator
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            server.process.send_signal(signal.SIGTERM)
            error: Any = answer.exception(timeout=20)
            assert "its gateway stopped" in error.details()
            connection.close()
        log = server.rest()
    assert server.process.returncode == 0
    assert re.search(r"serve\.stopping +grace_s=30\.0 +runs=1", re.sub(r"\x1b\[\d*m", "", log))
    assert "serve.stopped" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_leaves_an_empty_log(
    tmp_path: Path, upstream: socket.socket, signals: int
) -> None:
    """Everything is in the database then, even if a second signal comes during `drain_s`."""
    with scripted_gateway.running() as retrieval, ExitStack() as stack:
        options = config_at(upstream, tmp_path, retrieval)
        config = Path(options[1])
        if signals == 2:
            assert "[server]" in config.read_text()
            config.write_text(config.read_text().replace("[server]", "[server]\ndrain_s = 60"))
        server = stack.enter_context(service("serve", *options, cwd=tmp_path))
        address = server.ready()
        assert list(tmp_path.glob("*.db.log/*.log"))
        with grpc.insecure_channel(address) as channel:
            stub: Any = HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
                server.process.send_signal(signal.SIGTERM)
        server.rest()
    assert server.process.returncode == 0
    assert not list(tmp_path.glob("*.db.log/*.log"))


def test_a_gateway_that_drains_is_not_ready_and_still_accepts_requests(
    tmp_path: Path, upstream: socket.socket
) -> None:
    """So a proxy loses none before it has seen that. A second signal ends this immediately."""
    with scripted_gateway.running() as retrieval, ExitStack() as stack:
        options = config_at(upstream, tmp_path, retrieval)
        config = Path(options[1])
        config.write_text(config.read_text().replace("[server]", "[server]\ndrain_s = 60"))
        serving = service("serve", *options, "--http", "127.0.0.1:0", cwd=tmp_path)
        server = stack.enter_context(serving)
        address = server.ready()
        door = re.findall(r"server is at (http://\S+)/v1", server.seen)[0]
        with grpc.insecure_channel(address) as channel:
            stub: Any = HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            server.process.send_signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            with pytest.raises(HTTPError) as caught:
                urllib.request.urlopen(f"{door}/readyz", timeout=60)
            assert "draining" in caught.value.read().decode()
            answer = AnswerServiceStub(channel).Answer.future(AnswerRequest(question="why?"))
            connection, _ = upstream.accept()  # the gateway calls its delegator
            server.process.send_signal(signal.SIGTERM)
            error: Any = answer.exception(timeout=20)
            assert "its gateway stopped" in error.details()
            connection.close()
        log = server.rest()
    assert server.process.returncode == 0
    assert "Traceback" not in log


def test_a_run_over_http_that_outlives_the_grace_is_interrupted(
    tmp_path: Path, upstream: socket.socket, rolegate: Rolegate
) -> None:
    """Its client gets the advice to resume it. The next gateway shows it."""
    options = config_at(upstream, tmp_path, "127.0.0.1:9")
    config = Path(options[1])
    config.write_text(config.read_text().replace("[server]", "[server]\ngrace_s = 1"))
    with service("serve", *options, "--http", "127.0.0.1:0", cwd=tmp_path) as server:
        server.ready()
        door = re.findall(r"server is at (http://\S+/v1)", server.seen)[0]
        body = json.dumps(
            {"model": "rolegate", "messages": [{"role": "user", "content": "why?"}]}
        ).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{door}/chat/completions", body, headers)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(urllib.request.urlopen, request, timeout=60)
            connection, _ = upstream.accept()
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(HTTPError) as caught:
                asking.result(timeout=60)
            connection.close()
        server.rest()
    assert caught.value.code == 503
    assert "`rolegate runs resume run-" in json.load(caught.value)["error"]["message"]
    with service("serve", *options, cwd=tmp_path) as server:
        listing = ("runs", "list", "--address", server.ready(), "--status", "interrupted")
        assert "why?" in rolegate(*listing).out


def test_a_client_says_that_its_gateway_ended_the_connection(
    tmp_path: Path, upstream: socket.socket, rolegate: Rolegate
) -> None:
    """It names the run, if it knows it, and how to continue."""
    with service("serve", *config_at(upstream, tmp_path), cwd=tmp_path) as server:
        address = server.ready()
        with ThreadPoolExecutor(2) as pool, Client(address) as client:
            command = pool.submit(rolegate, "ask", "why?", "--address", address)
            call = pool.submit(client.ask, "how?")
            connections = [upstream.accept()[0] for _ in range(2)]
            server.process.kill()
            shown = command.result(timeout=60)
            error = call.exception(timeout=60)
            for connection in connections:
                connection.close()
    lost = f"the gateway at {address} ended the connection"
    known = re.search(rf"{lost} while run (run-\w+) was in progress; ", shown.err)
    assert known
    assert (shown.status, f"`rolegate runs resume {known[1]}`" in shown.err) == (1, True)
    assert f"{lost} during the call; " in str(error)
    assert "(`--request-id`; in Python, `request_id`)" in str(error)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_can_bind_the_same_ports_immediately(
    stop: signal.Signals, tmp_path: Path, upstream: socket.socket, rolegate: Rolegate
) -> None:
    """This holds while old connections have not ended on the server's side, with and without their
    clients.
    """
    options = config_at(upstream, tmp_path)[:2]
    # gRPC waits for clients that do not answer its GOAWAY as long as it may
    config = Path(options[1])
    config.write_text(config.read_text().replace("[server]", "[server]\ngrace_s = 1"))
    with service(
        "serve", *options, "--address", "127.0.0.1:0", "--http", "127.0.0.1:0", cwd=tmp_path
    ) as server:
        address = server.ready()
        door = re.findall(r"server is at http://(\S+)/v1", server.seen)[0]
        clients = [client_of(*at) for at in ((address, HTTP2), (door, HTTP)) for _ in range(2)]
        server.process.send_signal(stop)
        server.rest()
    for client in clients[::2]:
        while client.recv(4096):
            pass
        client.close()
    with service("serve", *options, "--address", address, "--http", door, cwd=tmp_path) as server:
        assert server.ready() == address
        assert f"is in use by the gateway at {address}" in rolegate("serve", *options).err
        config.write_text(config.read_text().replace("runs.db", "other.db"))
        assert "is the port in use?" in rolegate("serve", *options, "--address", address).err
    for client in clients[1::2]:
        client.close()


def client_of(place: str, opening: bytes) -> socket.socket:
    """Return a connection that its server has accepted."""
    host, port = place.split(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    client.sendall(opening)
    assert client.recv(1)
    return client
