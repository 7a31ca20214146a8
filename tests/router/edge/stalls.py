"""Inputs that cost a gateway most, for `python tests/stall.py tests/router/edge/stalls.py`."""

import aiohttp
import grpc
from rolegate.v1 import table_service_pb2 as pb
from rolegate.v1.table_service_pb2_grpc import TableServiceStub

from tests.stall import Input, Served

ASKS_FOR_COLUMNS = "a table " + ("column: " + "b," * 6) * 199
LIGATURE = "\ufdfa"
"""One character that NFKC makes 18 of."""


def chat(content: object, **more: object) -> Input:
    """A question over OpenAI's protocol."""

    async def send(served: Served) -> str:
        body = {"model": "rolegate", "messages": [{"role": "user", "content": content}], **more}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{served.http}/v1/chat/completions", json=body) as response,
        ):
            return f"{response.status} {(await response.text())[:200]}"

    return send


def table(**fields: object) -> Input:
    """A table over gRPC."""

    async def send(served: Served) -> str:
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            try:
                request = pb.FillTableRequest(**fields)  # type: ignore[arg-type]
                return str((await TableServiceStub(channel).FillTable(request)).table.outcome)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name} {error.details()}"

    return send


CHOICES = [f"choice number {number}" for number in range(1000)]
KEY = pb.Column(name="city", key=True)
CHOICE = pb.Column(name="kind", type=pb.COLUMN_TYPE_CHOICE, choices=CHOICES)
INPUTS: dict[str, Input] = {
    "idle": chat("When was Heat made?"),
    "1 columns, 4 kB, over OpenAI's protocol": chat(ASKS_FOR_COLUMNS),
}
