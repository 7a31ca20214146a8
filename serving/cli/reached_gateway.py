"""The gateway that a command asks: one that runs, or one started for the command."""

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec
from rich.console import Console
from rich.markup import escape
from rolegate.client import AsyncClient

from router.access import new_key
from router.trace.identity import SCOPES
from serving.cli.connection import add_certificates, connection
from serving.cli.options import add_config, chosen_config, host_port, timeout
from serving.composition import running_gateway


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
