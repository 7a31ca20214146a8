"""Certificates of a server."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from router.errors import BadConfig


@dataclass(frozen=True, slots=True)
class TLS:
    """Paths of PEM files."""

    certificate: str
    """The server's, with its chain."""
    key: str
    client_ca: str | None = None
    """Who signs clients' certificates; with it, clients without one are turned away."""

    def for_http(self) -> ssl.SSLContext:
        """What an HTTP server needs. Raises `BadConfig`, naming the file that is wrong."""
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
        """What a gRPC server needs. Raises as `for_http`."""
        self.for_http()
        pair = (Path(self.key).read_bytes(), Path(self.certificate).read_bytes())
        roots = Path(self.client_ca).read_bytes() if self.client_ca is not None else None
        return grpc.ssl_server_credentials([pair], roots, require_client_auth=roots is not None)


@contextmanager
def _naming(setting: str, path: str, wanted: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        raise BadConfig(f"server.tls.{setting}: {path} is not {wanted} ({error.reason or error}).") from None
    except OSError as error:
        raise BadConfig(f"server.tls.{setting}: {path} cannot be read ({error.strerror}); name a PEM file.") from None
