"""Deadlines of commands and of the client's calls, as the gateway gets them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import run_service_pb2 as pb

from tests.conftest import Rolegate
from tests.router.deployment import Deployment, HeldModel
from tests.router.edge.wire import whole_server
from tests.scripted_model import ScriptedModel


class Recorded(grpc.GenericRpcHandler):
    """A gateway that records the remaining time of each call, and refuses all but `GetRun`."""

    def __init__(self, kind: int) -> None:
        self.remaining: dict[str, float | None] = {}
        self._kind = kind

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method = str(handler_call_details.method).rpartition("/")[2]

        async def served(_request: bytes, context: Any) -> AsyncIterator[bytes]:
            self.remaining[method] = context.time_remaining()
            if method == "GetRun":
                run = pb.Run(kind=self._kind)  # type: ignore[arg-type]
                yield pb.GetRunResponse(run=run).SerializeToString()
            else:
                await context.abort(grpc.StatusCode.INTERNAL, "refused")

        return grpc.unary_stream_rpc_method_handler(served)


COMMANDS = [
    ("StreamAnswer", ("ask", "Who?")),
    ("StreamTable", ("table", "cities", "--columns", "city*")),
    ("StreamAnswer", ("runs", "resume", "run-1")),
    ("StreamTable", ("runs", "resume", "run-1")),
]


@pytest.mark.parametrize(("method", "command"), COMMANDS)
async def test_a_command_sends_the_deadline_that_is_given_and_no_other(
    method: str, command: tuple[str, ...], rolegate: Rolegate
) -> None:
    """So the gateway's own limit applies."""
    table = method == "StreamTable"
    handler = Recorded(pb.RUN_KIND_TABLE if table else pb.RUN_KIND_ANSWER)
    server = grpc.aio.server(handlers=[handler])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    remaining = []
    for given in ((), ("--timeout", "500")):
        shown = await asyncio.to_thread(rolegate, *command, "--address", address, *given)
        assert (shown.status, "refused" in shown.err) == (1, True)
        remaining.append(handler.remaining[method])
    await server.stop(None)
    assert remaining[0] is None
    assert 400 < (remaining[1] or 0) < 502


CALLS: dict[str, Callable[[AsyncClient], Any]] = {
    "Answer": lambda client: client.ask("Who?"),
    "FillTable": lambda client: client.table("cities", "city*"),
    "StreamAnswer": lambda client: anext(aiter(client.stream("Who?"))),
    "StreamTable": lambda client: anext(aiter(client.stream_table("cities", "city*"))),
}


async def test_the_client_s_calls_of_models_send_no_deadline_by_default() -> None:
    """A chat asks as `ask` does."""
    handler = Recorded(pb.RUN_KIND_ANSWER)
    server = grpc.aio.server(handlers=[handler])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    async with AsyncClient(address) as client:
        for call in CALLS.values():
            with pytest.raises(GatewayError, match="refused"):
                await call(client)
        assert handler.remaining == dict.fromkeys(CALLS)
        with pytest.raises(GatewayError, match="refused"):
            await client.chat().ask("Who?")
    await server.stop(None)
    assert handler.remaining == dict.fromkeys(CALLS)


@pytest.mark.parametrize(
    ("limit_s", "given", "advice"),
    [
        (0.3, (), "raise server.timeout_s "),
        (0.3, ("--timeout", "50"), "raise server.timeout_s "),
        (
            50.0,
            ("--timeout", "0.5"),
            "pass a longer timeout (--timeout; in Python, timeout_s), or use a faster model.",
        ),
    ],
)
async def test_a_deadline_that_passed_names_the_limit_to_raise(
    limit_s: float, given: tuple[str, ...], advice: str, rolegate: Rolegate, tmp_path: Path
) -> None:
    model = HeldModel(ScriptedModel([]))
    server = whole_server(Deployment(model), timeout_s=limit_s)
    address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
    shown = await asyncio.to_thread(rolegate, "ask", "Who?", "--address", address, *given)
    await server.drain(0)
    assert shown.status == 1
    assert advice in shown.err
