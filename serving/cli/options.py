"""Options that several commands share, and the client that they lead to."""

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from msgspec import Meta
from rich.console import Console
from rolegate.client import Client, Connection, GatewayError
from rolegate.client.requests import ADDRESS

from router.edge.listening import is_address
from router.errors import BadConfig
from serving.cli.command import reads
from serving.terminal import complain


def json_of(value: object) -> str:
    """Return a line of JSON for a struct, plain data, or a protobuf message with its defaults."""
    if isinstance(value, Message):
        value = MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    return msgspec.json.encode(value).decode()


def show_each(items: Sequence[object], table: Callable[[], object], *, as_json: bool) -> None:
    """Print a line of JSON for each item, or one table of all."""
    if as_json:
        for item in items:
            print(json_of(item))
    else:
        Console().print(table())


def tenant_name(text: str) -> str:
    """Return a tenant's name, which needs no quotes anywhere."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r}: use at most 64 letters, digits, dots, underscores and hyphens"
        )
    return text


def host_port(text: str) -> str:
    """Return an address to listen at or to connect to."""
    scheme, separator, _ = text.partition("://")
    if separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, without {scheme}://")
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, with a port of 0 to 65535")
    return text


FORMATS = "2026-11-21, 2026-11-21T10:00 (UTC, unless it names a zone), or 7d or 12h ago"


def time_argument(text: str) -> datetime:
    """Return the time of a date, a date and time, or a number of days (`7d`) or hours (`12h`) ago.
    Raises `BadConfig`.
    """
    try:
        if ago := re.fullmatch(r"(\d+)([dh])", text):
            unit = {"d": "days", "h": "hours"}[ago[2]]
            return datetime.now(UTC) - timedelta(**{unit: int(ago[1])})
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadConfig(f"{text!r} is not a time; write {FORMATS}.") from None


HostPort = Annotated[str, reads(host_port, "HOST:PORT")]
TenantName = Annotated[str, reads(tenant_name, "NAME")]
Time = Annotated[datetime, reads(time_argument, "TIME")]
File = Annotated[Path, Meta(extra={"metavar": "FILE"})]
Folder = Annotated[Path, Meta(extra={"metavar": "DIR"})]
Name = Annotated[str, Meta(extra={"metavar": "NAME"})]
Seconds = Annotated[float, Meta(gt=0, lt=86_400, extra={"metavar": "SECONDS"})]
Tokens = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Dollars = Annotated[float, Meta(gt=0, lt=2**63 / 1e9, extra={"metavar": "USD"})]


def check_new_file(
    name: str,
    file: Path,
    suffixes: Sequence[str] = (),
    *,
    force: bool = True,
) -> None:
    """Raise `BadConfig` if an option names a file that cannot be written. `force`: it may exist."""
    problem = ""
    if suffixes and file.suffix not in suffixes:
        problem = f"name a file that ends in {' or '.join(suffixes)}."
    elif not file.parent.is_dir():
        problem = f"the folder {file.parent} does not exist; create it first."
    elif file.is_dir():
        problem = "is a folder; name a file."
    elif file.exists() and not force:
        problem = "exists already; name another file, or replace it with --force."
    if problem:
        raise BadConfig(f"{name} {file}: {problem}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a command."""


class ConfigOptions(Options, frozen=True, kw_only=True):
    """Options of commands that read a config."""

    config: Path


class JSONConfigOptions(ConfigOptions, frozen=True):
    """Options of commands that read a config, and print JSON on request."""

    json: bool = False
    """Print JSON."""


class CertificateOptions(Options, frozen=True):
    """Options of a connection to a gateway."""

    ca: File | None = None
    """Use TLS; trust this CA certificate (PEM)."""
    certificate: File | None = None
    """Send this client certificate (PEM)."""
    key: File | None = None
    """Use this private key of --certificate (PEM)."""


class ConnectionOptions(CertificateOptions, frozen=True):
    """Options of commands that ask a running gateway."""

    address: HostPort = ADDRESS
    """Connect to this gateway; the API key comes from ROLEGATE_API_KEY."""


class JSONConnectionOptions(ConnectionOptions, frozen=True):
    """Options of commands that ask a running gateway, and print JSON on request."""

    json: bool = False
    """Print JSON, a line for each item."""


class PeriodOptions(ConnectionOptions, frozen=True):
    """Options of commands that ask a running gateway for runs or calls of a period."""

    since: Time | None = None
    """Start at this time: 2026-11-21, 2026-11-21T10:00 (UTC by default), 7d or 12h ago."""
    until: Time | None = None
    """End before this time."""
    tenant: str = ""
    """Show one tenant's only."""


def connection(options: CertificateOptions, address: str) -> Connection:
    """Return the connection to a gateway. Raises `BadConfig`."""
    try:
        return Connection.to(
            address, ca=options.ca, certificate=options.certificate, key=options.key
        )
    except OSError as error:
        raise BadConfig(
            f"--ca, --certificate, --key: cannot read {error.filename}: {error.strerror}."
        ) from None
    except ValueError as error:
        raise BadConfig(f"--address {address}: {error}") from None


def with_client(work: Callable[[Client, Any], object], options: ConnectionOptions) -> int:
    """Return the exit status of `work` with a client and the options; 1 and a line with the reason
    if the gateway refuses.
    """
    try:
        with Client(connection(options, options.address)) as client:
            return int(bool(work(client, options)))
    except GatewayError as error:
        complain(f"rolegate: {error}")
        return 1
