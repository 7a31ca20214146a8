"""`rolegate ask`: ask a question over gRPC and show how the answer came about.

Without --address a gateway is started for the question and stopped after it.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import get_args

import msgspec
from rich.console import Console
from rich.markup import escape
from rolegate.client import AsyncClient, GatewayError
from rolegate.client.requests import Terms, TopologyName

from router.access import new_key
from router.trace.identity import SCOPES
from serving.cli.answer_view import AnswerView
from serving.cli.connection import add_certificates, connection
from serving.cli.options import add_config, chosen_config, dollars, host_port, timeout, tokens
from serving.composition import running_gateway
from serving.logs import errors_only
from serving.terminal import complain


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--address HOST:PORT` with certificates, or the config of a gateway to be started; and `--timeout SECONDS`."""
    add_config(parser).add_argument(
        "--address", type=host_port, metavar="HOST:PORT", help="ask the gateway that runs there"
    )
    parser.add_argument("--timeout", type=timeout, default=120.0, metavar="SECONDS", help="the deadline (default: 120)")
    add_certificates(parser)


@asynccontextmanager
async def reached(given: argparse.Namespace, progress: Console) -> AsyncIterator[AsyncClient]:
    """A client of the gateway that the options of `add_gateway` name; one that is started stops with the context.

    Raises `BadConfig` or `BadIndex`.
    """
    if given.address is not None:
        async with AsyncClient(connection(given)) as client:
            yield client
        return
    config = chosen_config(given)
    sent, key = new_key(None, SCOPES)
    config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, tls=None))  # loopback only
    async with AsyncExitStack() as stack:
        with progress.status("starting the gateway") as status:

            def tell(text: str) -> None:
                progress.print(text, style="dim", markup=False, highlight=False)
                status.update(escape(text))

            address = await stack.enter_async_context(running_gateway(config, "127.0.0.1:0", tell, key=key))
        yield await stack.enter_async_context(AsyncClient(address, api_key=sent))


def main(arguments: Sequence[str]) -> int:
    """Ask one question."""
    parser = argparse.ArgumentParser(
        prog="rolegate ask", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", metavar="QUESTION", help="in plain words")
    add_gateway(parser)
    parser.add_argument("--request-id", default="", metavar="NAME", help="asked again under it, the answer is the same")
    parser.add_argument("--max-total-tokens", type=tokens, metavar="N", help="what the question may spend")
    parser.add_argument("--max-cost-usd", type=dollars, metavar="USD", help="the same in dollars")
    parser.add_argument("--fresh", action="store_true", help="use nothing that other runs have found")
    parser.add_argument("--topology", choices=get_args(TopologyName), help="who searches and who answers")
    parser.add_argument("--stream", action="store_true", help="show rounds, sub-queries and searches as they happen")
    parser.add_argument("--json", action="store_true", help="print JSON; with --stream, one line an event")
    given = parser.parse_args(arguments)
    errors_only()
    return asyncio.run(_ask(given))


def _terms(given: argparse.Namespace) -> Terms:
    """What was said of the terms."""
    terms = Terms(request_id=given.request_id, fresh=given.fresh)
    if given.max_total_tokens is not None:
        terms["max_total_tokens"] = given.max_total_tokens
    if given.topology is not None:
        terms["topology"] = given.topology
    if given.max_cost_usd is not None:
        terms["max_cost_usd"] = given.max_cost_usd
    return terms


async def _ask(given: argparse.Namespace) -> int:
    """Ask and show; 1 where the gateway answers with an error, or not at all."""
    progress = Console(stderr=True, quiet=given.json)
    view = AnswerView(Console(), progress, stream=given.stream, as_json=given.json)
    async with reached(given, progress) as client:
        try:
            with progress.status("asking"):
                async for event in client.stream(given.question, given.timeout, **_terms(given)):
                    view.tell(event)
            view.show(event.done)
        except GatewayError as error:
            complain(f"rolegate: {error}")
            return 1
    return 0
