"""The connection to a gateway: its address, the API key and the certificates."""

import ipaddress
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import grpc

from rolegate.client.options import checked

API_KEY = "ROLEGATE_API_KEY"
"""Environment variable with the default API key."""
_LAST_PORT = 65_535
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # traces can be long
    # Pings make calls without a deadline fail if the gateway's machine stops answering
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.use_local_subchannel_pool", 1),  # each channel opens its own connection
]


class Access(TypedDict, total=False):
    """API key and certificates of a client. Certificates and keys are PEM, given as bytes or as the
    path of a file.
    """

    api_key: str | None
    """API key. None reads the key from the environment variable ROLEGATE_API_KEY; an empty string
    sends no key.
    """
    ca: Path | str | bytes | None
    """Certificate of the CA that signed the gateway's certificate. The connection then uses TLS."""
    certificate: Path | str | bytes | None
    """Client certificate, if the gateway requires one."""
    key: Path | str | bytes | None
    """Private key of `certificate`."""
    insecure: bool
    """True permits sending the API key to another machine without TLS."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Address of a gateway, and the credentials for it. `Client` and `AsyncClient` can be opened
    with a `Connection` instead of an address.
    """

    address: str
    """Host and port, as host:port."""
    credentials: grpc.ChannelCredentials | None
    """TLS credentials; None for a connection without TLS."""
    metadata: tuple[tuple[str, str], ...] = field(repr=False)
    """gRPC metadata for every call: the API key, or nothing if there is none."""

    @classmethod
    @checked
    def to(cls, address: str, **access: Unpack[Access]) -> "Connection":
        """Return the connection to the gateway at `address` (host:port), with TLS if `access` has
        certificates.

        Raises `ValueError` if the address or the API key is invalid, if the key would be sent
        unencrypted to another machine, or if a certificate is given without its key. Raises
        `OSError` if a file cannot be read.
        """
        if problem := address_problem(address):
            raise ValueError(f"{problem}.")
        given = access.get("api_key")
        api_key = (os.environ.get(API_KEY, "") if given is None else given).strip()
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError(
                "the API key contains characters that no key has, such as a line break; pass the "
                "whole key and nothing else."
            )
        ca, certificate, key = (_pem(access.get(part)) for part in ("ca", "certificate", "key"))
        if (certificate is None) != (key is None):
            raise ValueError(
                "only one of certificate and key (its private key) is given; give both or neither."
            )
        encrypted = ca is not None or certificate is not None
        private = encrypted or address.startswith("unix:") or is_loopback(address)
        if api_key and not (private or access.get("insecure")):
            raise ValueError(
                f"the API key would be sent to {address} unencrypted; give the CA certificate of "
                "the gateway (`ca`; for commands, --ca)."
            )
        credentials = grpc.ssl_channel_credentials(ca, key, certificate) if encrypted else None
        return cls(
            address, credentials, (("authorization", f"Bearer {api_key}"),) if api_key else ()
        )

    def channel(self, module: Any = grpc) -> Any:
        """Open a gRPC channel on a new connection. `module`: `grpc` for blocking calls, or
        `grpc.aio` for calls on the running event loop.
        """
        if self.credentials is None:
            return module.insecure_channel(self.address, _OPTIONS)
        return module.secure_channel(self.address, self.credentials, _OPTIONS)


def is_address(text: str) -> bool:
    """Return whether `text` has the form host:port with a valid port."""
    host, _, port = text.rpartition(":")
    return bool(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= _LAST_PORT


def is_loopback(address: str) -> bool:
    """Return whether `address`, a host with or without a port, is a loopback address or
    `localhost`.
    """
    host = re.sub(r":\d*$", "", address).strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_problem(address: str) -> str:
    """Return a message that says why a gateway's address is invalid; empty for a valid address.
    Valid forms are HOST:PORT, `unix:PATH` and `dns:///HOST:PORT`.
    """
    if scheme := re.match("(?!unix:|dns:).+?://", address):
        return f"{address!r} is not HOST:PORT; leave out {scheme[0]}"
    good = address.startswith("unix:") or is_address(address)
    return "" if good else f"{address!r} is not HOST:PORT, with a port from 0 to 65535"


def _pem(given: object) -> bytes | None:
    """Return the bytes of a certificate or key. `given`: the bytes, the path of a file, or None,
    for which the result is None.
    """
    if isinstance(given, Path | str):
        return Path(given).read_bytes()
    return given if isinstance(given, bytes) else None
