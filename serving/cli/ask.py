"""`rolegate ask`: ask a question over gRPC and show how the answer came about.

Without --address a gateway is started for the question and stopped after it.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import grpc
from rich.console import Console
from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1.answer_service_pb2_grpc import AnswerServiceStub

from serving.cli.answer_view import AnswerView
from serving.cli.options import add_config, chosen_config, timeout
from serving.composition import running_gateway
from serving.logs import errors_only

_DETAILS = "grpc-status-details-bin"
"""What a gateway sends along with every error of its own."""


def main(arguments: Sequence[str]) -> int:
    """Ask one question."""
    parser = argparse.ArgumentParser(
        prog="rolegate ask", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", metavar="QUESTION", help="in plain words")
    parser.add_argument("--address", metavar="HOST:PORT", help="ask the gateway that runs there")
    add_config(parser)
    parser.add_argument("--stream", action="store_true", help="show rounds, sub-queries and searches as they happen")
    parser.add_argument("--json", action="store_true", help="print JSON; with --stream, one line an event")
    parser.add_argument("--timeout", type=timeout, default=120.0, metavar="SECONDS", help="the deadline (default: 120)")
    given = parser.parse_args(arguments)
    if given.address and given.config:
        parser.error("--config is for a gateway started here; the one at --address has its own")
    errors_only()
    return asyncio.run(_ask(given))


async def _ask(given: argparse.Namespace) -> int:
    """Ask and show; 1 where the gateway answers with an error, or not at all."""
    progress = Console(stderr=True, quiet=given.json)
    async with AsyncExitStack() as stack:
        address = given.address
        if address is None:
            status = stack.enter_context(progress.status("starting the gateway"))

            def tell(text: str) -> None:
                progress.print(f"[dim]{text}[/dim]", highlight=False)
                status.update(text)

            address = await stack.enter_async_context(running_gateway(chosen_config(given), "127.0.0.1:0", tell))
            status.stop()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        view = AnswerView(Console(), progress, stream=given.stream, as_json=given.json)
        try:
            request = pb.StreamAnswerRequest(question=given.question)
            with progress.status("asking"):
                async for event in AnswerServiceStub(channel).StreamAnswer(request, timeout=given.timeout):
                    view.show(event)
        except grpc.aio.AioRpcError as error:
            print(f"rolegate: {_plainly(error, address)}", file=sys.stderr)
            return 1
    return 0


def _plainly(error: grpc.aio.AioRpcError, address: str) -> str:
    details = error.details() or ""
    from_gateway = _DETAILS in (error.trailing_metadata() or ())
    if error.code() is grpc.StatusCode.UNAVAILABLE and not from_gateway:
        return f"no gateway answers at {address}; start one with `rolegate serve`, or leave --address out."
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return f"what answers at {address} is no gateway; is it a retrieval server?"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and details == "Deadline Exceeded":
        return "the deadline passed before the answer came; give a longer --timeout."
    return details or error.code().name
