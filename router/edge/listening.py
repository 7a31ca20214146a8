"""Where a server may listen."""

import ipaddress
import re
from collections.abc import Collection

import structlog

from router.access import Access
from router.edge.tls import TLS
from router.errors import BadConfig

_log = structlog.get_logger("edge")
_LAST_PORT = 65_535


def is_address(text: str) -> bool:
    """Whether it is host:port; a port that is too high would be cut to another one."""
    host, _, port = text.rpartition(":")
    return bool(host) and re.fullmatch("[0-9]{1,5}", port) is not None and int(port) <= _LAST_PORT


def is_loopback(address: str) -> bool:
    """Whether a host, with or without a port, is this machine alone."""
    host = re.sub(r":\d*$", "", address).strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(text: str) -> str:
    """The name or IP address in a `Host` header or an address, in lower case; empty where there is none."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(:[0-9]*)?", text)
    return found[1].lower().strip("[]").removesuffix(".") if found else ""


def is_named(header: str, names: Collection[str]) -> bool:
    """Tell whether a `Host` header holds one of `names` or, as no web page can have a name of its own made to be one,
    an IP address or localhost.
    """
    host = host_of(header)
    try:
        return bool(host) and (host in names or host == "localhost" or bool(ipaddress.ip_address(host)))
    except ValueError:
        return False


async def check_listening(address: str, setting: str, access: Access) -> None:
    """See that without keys nobody but this machine gets in. Raises `BadConfig`, naming `setting`; `StoreFailed`."""
    if not is_loopback(address) and not await access.required():
        raise BadConfig(
            f"{setting}: {address} can be reached from other machines, and nobody needs a key yet; make one with "
            "`rolegate keys create`, or listen on 127.0.0.1:PORT."
        )


def warn_unencrypted(address: str, tls: TLS | None) -> None:
    """Log where questions, answers and keys can be read on their way."""
    if tls is None and not is_loopback(address):
        _log.warning("serve.unencrypted", address=address, advice="set server.tls, or put a proxy in front")
