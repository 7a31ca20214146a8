"""Addresses of servers, and their encryption."""

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
    """Certificates in PEM files."""

    certificate: _PEM
    """The server's, with its chain."""
    key: _PEM
    client_ca: _PEM | None = None
    """The signer of clients' certificates; with it, clients without one are turned away."""

    def for_http(self) -> ssl.SSLContext:
        """Context of an HTTP server. Raises `BadConfig`, naming the file that is wrong."""
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
        """Credentials of a gRPC server. Raises as `for_http`."""
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
    """Tell whether it is host:port; a port that is too high would be cut to another one."""
    host, _, port = text.rpartition(":")
    return bool(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= _LAST_PORT


def is_loopback(address: str) -> bool:
    """Tell whether a host, with or without a port, is this machine alone."""
    host = re.sub(r":\d*$", "", address).strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(text: str) -> str:
    """The name or IP address in a `Host` header or an address, in lower case; empty where there
    is none.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]*)?", text)
    return found[1].lower().strip("[]").removesuffix(".") if found else ""


def is_named(header: str, names: Collection[str]) -> bool:
    """Tell whether a `Host` header holds one of `names` or, as no web page can have a name of its
    own made to be one, an IP address or localhost.
    """
    host = host_of(header)
    try:
        return bool(host) and (
            host in names or host == "localhost" or bool(ipaddress.ip_address(host))
        )
    except ValueError:
        return False


async def wait_for_port(address: str) -> None:
    """Wait a few seconds while another process, such as the gateway that this one replaces,
    holds the port.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    for _ in range(_BUSY_TRIES):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            socket.create_server((host, int(port)), family=family).close()
            return
        except (ValueError, OverflowError):
            return  # the server says what is wrong with the address
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # as above
        _log.warning("serve.port_busy", address=address, again_in_s=_BUSY_PAUSE_S)
        await asyncio.sleep(_BUSY_PAUSE_S)


async def check_listening(address: str, setting: str, access: Access) -> None:
    """See that without keys nobody but this machine gets in. Raises `BadConfig`, naming
    `setting`; `StoreFailed`.
    """
    if not is_loopback(address) and not await access.required():
        raise BadConfig(
            f"{setting}: {address} can be reached from other machines, and nobody needs "
            "a key yet; make one with "
            "`rolegate keys create`, or listen on 127.0.0.1:PORT."
        )


def warn_unencrypted(address: str, tls: TLS | None) -> None:
    """Log where questions, answers and keys can be read on their way."""
    if tls is None and not is_loopback(address):
        _log.warning(
            "serve.unencrypted", address=address, advice="set server.tls, or put a proxy in front"
        )
