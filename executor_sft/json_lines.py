"""Files of JSON lines that a finished step left."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from router.errors import BadConfig

_Line = TypeVar("_Line")


def decoded_lines(path: Path, name: str, kind: type[_Line], maker: str) -> Iterator[_Line]:
    """The lines of the file `path`, or of `name` in the folder `path`.

    Raises `BadConfig` naming a line that is not of this kind, and `maker`, the command that writes such a file.
    """
    file = path / name if path.is_dir() else path
    decoder = msgspec.json.Decoder(kind)
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadConfig(
                        f"{file}, line {number}: {error}. It was cut off, or another release wrote it; remove the "
                        f"line, or run `{maker}` again into another folder."
                    ) from None
    except OSError as error:
        raise BadConfig(f"{file}: cannot be read ({error.strerror}); name the folder of `{maker}`.") from None
