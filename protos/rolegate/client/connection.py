"""Connection of a client to its gateway, with its key and certificates."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict, Unpack

import grpc

from rolegate.client.options import checked

API_KEY = "ROLEGATE_API_KEY"
"""The environment variable that holds the key of clients that are given none."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),  # traces may be long
    ("grpc.use_local_subchannel_pool", 1),  # so that a new channel is a new connection
]


class Access(TypedDict, total=False):
    """Keys and certificates; these are in PEM, as a file (a path, also as a string) or as they
    are.
    """

    api_key: str | None
    """None takes that of the environment variable ROLEGATE_API_KEY, an empty one none."""
    ca: Path | str | bytes | None
    """The signer of the gateway's certificate."""
    certificate: Path | str | bytes | None
    """The client's own, where the gateway wants one."""
    key: Path | str | bytes | None
    """The key of `certificate`."""
    insecure: bool
    """Send a key to another machine although nothing is encrypted."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An address with what is shown to it; encrypted where there are certificates."""

    address: str
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...] = field(repr=False)
    """Metadata that every call sends along."""

    @classmethod
    @checked
    def to(cls, address: str, **access: Unpack[Access]) -> "Connection":
        """To host:port. Raises `ValueError` for what must not be sent, or does not go together,
        and `OSError`.
        """
        given = access.get("api_key")
        api_key = (os.environ.get(API_KEY, "") if given is None else given).strip()
        if not (api_key.isascii() and api_key.isprintable()):
            raise ValueError(
                "the key has characters that no key has; see that it is whole, and "
                "nothing but the key."
            )
        ca, certificate, key = (_pem(access.get(part)) for part in ("ca", "certificate", "key"))
        if (certificate is None) != (key is None):
            raise ValueError("certificate and key belong together; give both, or neither.")
        encrypted = ca is not None or certificate is not None
        if (
            api_key
            and not encrypted
            and not access.get("insecure")
            and not _on_this_machine(address)
        ):
            raise ValueError(
                f"the key would be sent to {address} for everybody on the way to read; "
                "give the certificate of whoever "
                "signed the gateway's (`ca`)."
            )
        credentials = grpc.ssl_channel_credentials(ca, key, certificate) if encrypted else None
        return cls(
            address, credentials, (("authorization", f"Bearer {api_key}"),) if api_key else ()
        )

    def channel(self) -> grpc.Channel:
        """A channel for programs that wait."""
        if self.credentials is None:
            return grpc.insecure_channel(self.address, _OPTIONS)
        return grpc.secure_channel(self.address, self.credentials, _OPTIONS)

    def aio_channel(self) -> grpc.aio.Channel:
        """A channel for the running event loop."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.address, _OPTIONS)
        return grpc.aio.secure_channel(self.address, self.credentials, _OPTIONS)


def _pem(given: object) -> bytes | None:
    if isinstance(given, Path | str):
        return Path(given).read_bytes()
    return given if isinstance(given, bytes) else None


def _on_this_machine(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return (
            host == "localhost"
            or address.startswith("unix:")
            or ipaddress.ip_address(host).is_loopback
        )
    except ValueError:
        return False
