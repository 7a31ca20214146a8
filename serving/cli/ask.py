"""`rolegate ask`: ask a question over gRPC and show how the answer came about.

Without --address a gateway is started for the question and stopped after it.
"""

import argparse
import asyncio
from collections.abc import Sequence
from typing import get_args

from rich.console import Console
from rolegate.client import GatewayError
from rolegate.client.requests import Terms, TopologyName

from serving.cli.answer_view import AnswerView
from serving.cli.options import dollars, tokens
from serving.cli.reached_gateway import add_gateway, reached
from serving.logs import errors_only
from serving.terminal import complain


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
