"""The gateway that a command asks: one that runs, or one started for the command."""

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from rich.console import Console
from rich.markup import escape

from serving.cli.options import add_config, chosen_config, timeout
from serving.composition import running_gateway


def add_gateway(parser: argparse.ArgumentParser) -> None:
    """`--address HOST:PORT`, or the config of a gateway to be started; and `--timeout SECONDS`."""
    add_config(parser).add_argument("--address", metavar="HOST:PORT", help="ask the gateway that runs there")
    parser.add_argument("--timeout", type=timeout, default=120.0, metavar="SECONDS", help="the deadline (default: 120)")


@asynccontextmanager
async def reached(given: argparse.Namespace, progress: Console) -> AsyncIterator[str]:
    """Where the gateway listens that the options of `add_gateway` name; one that is started stops with the context.

    Raises `BadConfig` or `BadIndex`.
    """
    if given.address is not None:
        yield given.address
        return
    async with AsyncExitStack() as stack:
        with progress.status("starting the gateway") as status:

            def tell(text: str) -> None:
                progress.print(text, style="dim", markup=False, highlight=False)
                status.update(escape(text))

            address = await stack.enter_async_context(running_gateway(chosen_config(given), "127.0.0.1:0", tell))
        yield address
