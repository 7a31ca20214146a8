"""Checks of the addresses on which servers listen, and TLS of servers."""

import asyncio
import errno
import ipaddress
import re
import socket
import ssl
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import grpc
import structlog
from msgspec import Meta
from rolegate.client.connection import is_loopback

from router.access import Access
from router.errors import BadConfig
from router.frozen import Frozen

_PEM = Annotated[str, Meta(extra={"mark": "path"})]  # marks a path in the config


class TLS(Frozen, forbid_unknown_fields=True):
    """TLS certificate and key of the servers, as paths of PEM files."""

    certificate: _PEM
    """Path of the PEM file with the server's certificate, followed by its chain."""
    key: _PEM
    """Path of the PEM file with the certificate's private key, without a passphrase."""
    client_ca: _PEM | None = None
    """Path of the PEM file with the certificate of a CA. If set, clients must present a certificate
    that this CA has signed. Absent: clients need no certificate.
    """

    def for_http(self) -> ssl.SSLContext:
        """Return the SSL context of an HTTP server. Raises `BadConfig`, with the name of the file,
        if a file is missing or invalid.
        """
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with _naming("certificate", self.certificate, "a certificate"):
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self.certificate)
        with _naming("key", self.key, "the certificate's key, without a passphrase"):
            context.load_cert_chain(self.certificate, self.key, password="")
        if self.client_ca is not None:
            with _naming("client_ca", self.client_ca, "a certificate"):
                context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_grpc(self) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server. Raises `BadConfig` like `for_http`."""
        self.for_http()
        pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
        roots = Path(self.client_ca).read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


@contextmanager
def _naming(setting: str, path: str, wanted: str) -> Iterator[None]:
    """Convert errors of reading a PEM file to `BadConfig`. `setting`, `path`: name of the setting
    and path of the file, for the error message. `wanted`: what the file must contain.
    """
    try:
        yield
    except ssl.SSLError as error:
        raise BadConfig(
            f"server.tls.{setting}: {path} is not {wanted} ({error.reason or error}); replace it."
        ) from None
    except OSError as error:
        raise BadConfig(
            f"server.tls.{setting}: {path} cannot be read ({error.strerror}); name a PEM file."
        ) from None


_log = structlog.get_logger("edge")
_BUSY_TRIES = 10
_BUSY_PAUSE_S = 0.5


def host_of(text: str) -> str:
    """Return the host name or IP address in `text`, a `Host` header or host:port, in lower case.
    Return an empty string if `text` has another form.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]*)?", text)
    return match[1].lower().strip("[]").removesuffix(".") if match else ""


def is_named(header: str, names: Collection[str]) -> bool:
    """Return True if the host in a `Host` header is in `names`, or is an IP address or `localhost`.

    IP addresses and `localhost` need not be listed, because an attacker cannot use them for DNS
    rebinding.
    """
    host = host_of(header)
    try:
        return bool(host) and (
            host in names or host == "localhost" or bool(ipaddress.ip_address(host))
        )
    except ValueError:
        return False


async def before_listening(
    address: str,
    setting: str,
    access: Access | None,
    tls: TLS | None,
) -> None:
    """Check an address before a server listens on it. If its port is in use, for example by a
    gateway that is being replaced, wait a few seconds.

    If `access` is given, raise the errors of `check_listening`, and log a warning if other machines
    can connect without TLS.
    """
    if access is not None:
        await check_listening(address, setting, access)
        if tls is None and not is_loopback(address):
            advice = "set server.tls, or put a proxy in front"
            _log.warning("serve.unencrypted", address=address, advice=advice)

    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    for _ in range(_BUSY_TRIES):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, int(port)), family=family).close()
            return
        except (ValueError, OverflowError):
            return  # the address is invalid, which the server itself reports
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # another error, which the server itself reports
        _log.warning("serve.port_busy", address=address, again_in_s=_BUSY_PAUSE_S)
        await asyncio.sleep(_BUSY_PAUSE_S)


async def check_listening(address: str, setting: str, access: Access) -> None:
    """Raise `BadConfig` if other machines can connect to `address` although no API key is required.
    `setting`: config key of the address, for the message. Raises `StoreFailed` if the keys cannot
    be read.
    """
    if not is_loopback(address) and not await access.required():
        raise BadConfig(
            f"{setting}: {address} can be reached from other machines, but no API key is required; "
            "create one with `rolegate keys create`, or listen on 127.0.0.1:PORT."
        )
