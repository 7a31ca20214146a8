"""How commands reach a running gateway: the options, and the client that they amount to."""

import argparse
from collections.abc import Callable
from pathlib import Path

from rolegate.client import Access, Client, Connection, GatewayError

from router.errors import BadConfig
from serving.cli.options import host_port
from serving.terminal import complain

ADDRESS = "127.0.0.1:50551"


def add_connection(parser: argparse.ArgumentParser) -> None:
    """`--address HOST:PORT` and what `add_certificates` adds."""
    parser.add_argument(
        "--address", type=host_port, default=ADDRESS, metavar="HOST:PORT", help="the gateway (default: %(default)s)"
    )
    add_certificates(parser)


def add_certificates(parser: argparse.ArgumentParser) -> None:
    """`--ca FILE`, `--certificate FILE` and `--key FILE`."""
    group = parser.add_argument_group("connection", "The key is that of the environment variable ROLEGATE_API_KEY.")
    group.add_argument("--ca", type=Path, metavar="FILE", help="encrypt; who signed the gateway's certificate (PEM)")
    group.add_argument("--certificate", type=Path, metavar="FILE", help="your own, where the gateway wants one (PEM)")
    group.add_argument("--key", type=Path, metavar="FILE", help="that belongs to --certificate (PEM)")


def access(given: argparse.Namespace) -> Access:
    """What the options of `add_certificates` name."""
    return {"ca": given.ca, "certificate": given.certificate, "key": given.key}


def connection(given: argparse.Namespace) -> Connection:
    """To where the options of `add_connection` lead. Raises `BadConfig`."""
    try:
        return Connection.to(given.address, **access(given))
    except OSError as error:
        raise BadConfig(f"--ca, --certificate, --key: cannot read {error.filename}: {error.strerror}.") from None
    except ValueError as error:
        raise BadConfig(f"--address {given.address}: {error}") from None


def with_client(given: argparse.Namespace, work: Callable[[Client], int]) -> int:
    """The exit status that `work` comes to with a client; 1, and a line that says why, where the gateway refuses."""
    try:
        with Client(connection(given)) as client:
            return work(client)
    except GatewayError as error:
        complain(f"rolegate: {error}")
        return 1
