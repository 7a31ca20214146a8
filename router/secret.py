"""Values that must not be shown, in logs, errors and traces."""

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

_USERINFO = re.compile(r"(?<=://)[^/\s]*@")
_SHORTEST_NESTED = 16
"""Characters; what is shorter is rather a setting, such as `low`."""


def without_userinfo(text: str) -> str:
    """The same with user and password left out of every address in it."""
    return _USERINFO.sub("", text)


class Secrets:
    """Keeps a key, and what a table of settings holds, out of texts."""

    def __init__(self, key: str | None, settings: Mapping[str, object] | None = None, address: str = "") -> None:
        """`address`: what is asked, perhaps with user and password in it."""
        nested = (text for text in _strings(settings or {}) if len(text) >= _SHORTEST_NESTED)
        self._words = sorted({*filter(None, [key]), *nested, *_passwords(address)}, key=len, reverse=True)

    def hidden(self, text: str) -> str:
        """`text` without them, and without users and passwords in addresses."""
        for word in self._words:
            text = text.replace(word, "***")
        return without_userinfo(text)


def _passwords(address: str) -> Iterator[str]:
    """As they stand in an address, and as they are sent."""
    for userinfo in _USERINFO.findall(address):
        pair = unquote(userinfo.removesuffix("@"))
        yield from filter(None, [pair.partition(":")[2]])
        yield b64encode((pair if ":" in pair else f"{pair}:").encode()).decode()


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, Sequence):
        for child in value:
            yield from _strings(child)
