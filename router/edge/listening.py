"""Addresses and TLS of servers."""

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
import msgspec
import structlog
from msgspec import Meta

from router.access import Access
from router.errors import BadConfig

_PEM = Annotated[str, Meta(extra={"mark": "path"})]  # as the config marks paths


class TLS(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """TLS files, in PEM."""

    certificate: _PEM
    """Server certificate with its chain."""
    key: _PEM
    client_ca: _PEM | None = None
    """CA of client certificates; if set, clients must present one."""

    def for_http(self) -> ssl.SSLContext:
        """Return the context of an HTTP server. Raises `BadConfig` naming the bad file."""
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
        """Return the credentials of a gRPC server. Raises like `for_http`."""
        self.for_http()
        pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
        roots = Path(self.client_ca).read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


@contextmanager
def _naming(setting: str, path: str, wanted: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise BadConfig(
            f"server.tls.{setting}: {path} is not {wanted} ({error.reason or error})."
        ) from None
    except OSError as error:
        raise BadConfig(
            f"server.tls.{setting}: {path} cannot be read ({error.strerror}); name a PEM file."
        ) from None


_log = structlog.get_logger("edge")
_LAST_PORT = 65_535
_BUSY_TRIES = 10
_BUSY_PAUSE_S = 0.5


def is_address(text: str) -> bool:
    """Return whether the text is host:port with a valid port."""
    host, _, port = text.rpartition(":")
    return bool(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= _LAST_PORT


def is_loopback(address: str) -> bool:
    """Return whether a host, with or without a port, is a loopback address."""
    host = re.sub(r":\d*$", "", address).strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(text: str) -> str:
    """Return the name or IP address of a `Host` header or address, in lower case; empty if there is
    none.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]*)?", text)
    return match[1].lower().strip("[]").removesuffix(".") if match else ""


def is_named(header: str, names: Collection[str]) -> bool:
    """Return whether a `Host` header has one of `names`, an IP address or localhost.

    An attacker cannot rebind the last two, so they are safe against DNS rebinding.
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
    """Check an address like `check_listening`, unless `access` is None, and log a warning if other
    machines connect without TLS. Then wait a few seconds while another process holds the port, such
    as a gateway that is being replaced.
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
            return  # the server reports the bad address
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # as above
        _log.warning("serve.port_busy", address=address, again_in_s=_BUSY_PAUSE_S)
        await asyncio.sleep(_BUSY_PAUSE_S)


async def check_listening(address: str, setting: str, access: Access) -> None:
    """Raise `BadConfig`, naming `setting`, if other machines can connect although no key is
    required. Raises `StoreFailed`.
    """
    if not is_loopback(address) and not await access.required():
        raise BadConfig(
            f"{setting}: {address} can be reached from other machines, but no API key is required; "
            "create one with `rolegate keys create`, or listen on 127.0.0.1:PORT."
        )
