"""Options that several commands share, and functions that use their values."""

import argparse
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from msgspec import Meta
from rolegate.client import Client, Connection
from rolegate.client.connection import address_problem
from rolegate.client.requests import ADDRESS
from rolegate.v1.document_filter_pb2 import DocumentFilter

from router.administration import TENANT_NAME
from router.errors import BadConfig
from router.frozen import Frozen
from serving.cli.command import exclusive, reads, shown_as
from serving.terminal import table_console


def json_of(value: object) -> str:
    """Return a struct, plain data or a protobuf message as one line of JSON. The JSON of a message
    includes the fields that have their default values.
    """
    if isinstance(value, Message):
        value = MessageToDict(
            value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    return msgspec.json.encode(value).decode()


def show_each(items: Sequence[object], table: Callable[[], object], *, as_json: bool) -> None:
    """Print one line of JSON for each item if `as_json`, else the table that `table` returns.
    `table`: returns a table of all items.
    """
    if as_json:
        for item in items:
            print(json_of(item))
    else:
        table_console().print(table())


def tenant_name(text: str) -> str:
    """Return `text` if it is a valid name of a tenant (see `TENANT_NAME`). Raises
    `argparse.ArgumentTypeError` if it is not.
    """
    if not TENANT_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name of a tenant; use 1 to 64 letters, digits, dots, "
            "underscores and hyphens, beginning with a letter or a digit"
        )
    return text


def host_port(text: str) -> str:
    """Return `text` if it is HOST:PORT, without a scheme. Raises `argparse.ArgumentTypeError` if it
    is not.
    """
    problem = address_problem(text)
    if text.startswith(("unix:", "dns:")):  # the Python client accepts these
        problem = f"{text!r} is not HOST:PORT, such as 127.0.0.1:50551"
    if problem:
        raise argparse.ArgumentTypeError(problem)
    return text


def time_argument(text: str) -> datetime:
    """Return the time that `text` names: a date, a date with a time, or a number of days (`7d`) or
    hours (`12h`) before now. Raises `BadConfig` if it has another form.
    """
    try:
        if (span := _span(text)) is not None:
            return datetime.now(UTC) - span
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise BadConfig(
            f"--since, --until: {text!r} is not a time; write 2026-11-21, 2026-11-21T10:00 (UTC, "
            "if no zone is named), 7d (7 days ago) or 12h (12 hours ago)."
        ) from None


def span_argument(text: str) -> float:
    """Return the number of seconds in a time span such as `7d` (days) or `12h` (hours). Raises
    `argparse.ArgumentTypeError` if `text` has another form or is zero.
    """
    if not (span := _span(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time span; write 12h or 30d")
    return span.total_seconds()


def _span(text: str) -> timedelta | None:
    """Return the time span in a text such as `7d` or `12h`; None if the text has another form."""
    if not (span := re.fullmatch(r"(\d{1,6})([dh])", text)):
        return None
    hours_per_unit = {"d": 24, "h": 1}
    return timedelta(hours=int(span[1]) * hours_per_unit[span[2]])


HostPort = Annotated[str, reads(host_port, "HOST:PORT")]
TenantName = Annotated[str, reads(tenant_name, "NAME")]
Span = Annotated[float, reads(span_argument, "TIME")]
Time = Annotated[datetime, reads(time_argument, "TIME")]
File = Annotated[Path, shown_as("FILE")]
Folder = Annotated[Path, shown_as("DIR")]
Name = Annotated[str, shown_as("NAME")]
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
    """Raise `BadConfig` if a command must not or cannot write `file`. `name`: option that names the
    file. `suffixes`: allowed endings of the file's name; empty to allow all. `force`: whether an
    existing file may be replaced.
    """
    problem = ""
    if suffixes and file.suffix not in suffixes:
        problem = f"must end in {' or '.join(suffixes)}; name another file."
    elif not file.parent.is_dir():
        problem = f"the folder {file.parent} does not exist; create it first."
    elif file.is_dir():
        problem = "is a folder; name a file."
    elif file.exists() and not force:
        problem = "exists already; name another file, or replace it with --force."
    if problem:
        raise BadConfig(f"{name} {file}: {problem}")


_PROPERTIES = {
    "title=": ["title"],
    "author=": ["author"],
    "path=": ["path_prefix"],
    "tag=": ["tags"],
    "date=": ["from_date", "to_date"],
    "date>=": ["from_date"],
    "date<=": ["to_date"],
}
"""The keys are beginnings of property texts, such as `date>=` of `date>=2026`. The values are the
fields of a `DocumentFilter` that such a text sets.
"""


def document_filter(properties: Iterable[str]) -> DocumentFilter:
    """Return the filter that `properties` describe. Documents must have all of these properties,
    such as `author=Ada Lovelace` and `date>=2024-01`. Raises `BadConfig` for an invalid property.
    """
    values = defaultdict[str, list[str]](list)
    for text in properties:
        match = re.fullmatch(r"\s*(\w+)\s*([<>]?=)(.*\S.*)", text)
        fields = _PROPERTIES.get(match[1] + match[2]) if match else None
        if not match or not fields:
            raise BadConfig(
                f"filter {text!r}: is not a filter; write title=TEXT, author=TEXT, path=PREFIX, "
                'tag=TAG, date=2026-11, "date>=2026-11-21" or "date<=2026" (with the quotes).'
            )
        for field in fields:
            values[field].append(match[3].strip())
            if field != "tags" and len(values[field]) > 1:
                raise BadConfig(
                    f"filter {text!r}: only tag may be given twice; leave out one of the two."
                )
    tags = values.pop("tags", [])
    return DocumentFilter(tags=tags, **{field: texts[0] for field, texts in values.items()})


Names = Annotated[tuple[str, ...], shown_as("NAME")]
Properties = Annotated[tuple[str, ...], shown_as("PROPERTY")]


class Options(Frozen):
    """Options of a command."""


class ConfigOptions(Options):
    """Options of commands that read a config."""

    config: Path


class JSONConfigOptions(ConfigOptions):
    """Options of commands that read a config, and print JSON with --json."""

    json: bool = False
    """Print JSON."""


class CertificateOptions(Options):
    """Options of a connection to a gateway."""

    ca: File | None = None
    """Connect with TLS, and trust only the CA certificate in this PEM file. Needed if the gateway's
    config has [server.tls] (default: no TLS; or, with --certificate, TLS with the CAs that gRPC
    trusts by default).
    """
    certificate: File | None = None
    """Connect with TLS, and send the client certificate in this PEM file. Needed if the gateway's
    config has server.tls.client_ca; needs --key.
    """
    key: File | None = None
    """PEM file with the private key of --certificate."""


class StoreOptions(CertificateOptions):
    """Options of commands that open the store of a config, or call a running gateway."""

    config: Path | None = None
    address: Annotated[HostPort, exclusive("config")] | None = None
    """Call the running gateway at this address instead of using a config. If the gateway has API
    keys, put a key into the environment variable ROLEGATE_API_KEY.
    """


class ConnectionOptions(CertificateOptions):
    """Options of commands that call a running gateway."""

    address: HostPort = ADDRESS
    """Call the running gateway at this address. If the gateway has API keys, put a key into the
    environment variable ROLEGATE_API_KEY.
    """


class JSONConnectionOptions(ConnectionOptions):
    """Options of commands that call a running gateway, and print JSON with --json."""

    json: bool = False
    """Print JSON instead of text, one object per line."""


class PeriodOptions(ConnectionOptions):
    """Options of commands that show runs or calls of a period, from a running gateway."""

    since: Time | None = None
    """Show only runs or calls that started at this time or later: 2026-11-21, 2026-11-21T10:00
    (UTC), 7d (7 days ago) or 12h (12 hours ago); without it, there is no lower limit.
    """
    until: Time | None = None
    """Show only runs or calls that started before this time; same forms as --since (default: now).
    """
    tenant: str = ""
    """Show only runs or calls of this tenant (default: all tenants that the API key may see)."""


def connection(options: CertificateOptions, address: str) -> Connection:
    """Return the settings to connect to the gateway at `address` with the certificates that
    `options` name. Raises `BadConfig` if a file cannot be read or the address is invalid.
    """
    try:
        return Connection.to(
            address, ca=options.ca, certificate=options.certificate, key=options.key
        )
    except OSError as error:
        raise BadConfig(
            f"--ca, --certificate, --key: cannot read {error.filename} ({error.strerror}); correct "
            "the path, or let this user read the file."
        ) from None
    except ValueError as error:
        raise BadConfig(f"--address {address}: {error}") from None


def with_client(work: Callable[[Client, Any], object], options: ConnectionOptions) -> int:
    """Call `work` with a client of the gateway at `options.address`, and with `options`. Return the
    exit status: 1 if `work` returns a true value, else 0. Raises `GatewayError`.
    """
    with Client(connection(options, options.address)) as client:
        return int(bool(work(client, options)))
