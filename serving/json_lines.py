"""Write JSON lines that Hugging Face's `datasets.load_dataset("json", …)` can read.

`load_dataset` infers the types of all columns from the first ten megabytes. If a column, or a field
inside a column, is null, empty or absent there, loading fails at the first later row with a value.
Loading also fails at the first fraction in a column of integers. So if a later row has a type that
its column or field did not have before, the row is moved to the top of the file. The moved rows are
sorted by length, shortest first. All other rows keep their order. A text that Arrow would parse as
a time gets a trailing space, so that it stays a text.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec

from serving.files import replacing

Write = Callable[[Any], None]
"""Function that writes one row, a struct, to a file."""
_FIRST_BYTES = 2 << 20
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T][\d:.]*(Z|[+-][\d:]+)?)?")


@contextmanager
def json_lines(path: Path) -> Iterator[Write]:
    """Create the file `path`, or empty it, and yield a function that writes a row (a struct) to it.
    The file is complete when the context ends.
    """
    known = set[tuple[str, type]]()
    late = list[bytes]()
    with path.open("w+b") as file:

        def write(row: object) -> None:
            types = set[tuple[str, type]]()
            line = msgspec.json.encode(_loadable(msgspec.to_builtins(row), "", types)) + b"\n"
            if file.tell() > _FIRST_BYTES and not types <= known:
                late.append(line)
            else:
                file.write(line)
            known.update(types)

        yield write
        if late:
            file.seek(0)
            with TemporaryFile(dir=path.parent) as rest:
                shutil.copyfileobj(file, rest)
                rest.seek(0)
                file.seek(0)
                late.sort(key=len)
                file.writelines(late)
                shutil.copyfileobj(rest, file)


def write_json_lines(path: Path, rows: Iterable[object]) -> None:
    """Write rows (structs) to the file `path`. If an error is raised, `path` is unchanged."""
    with replacing(path) as unfinished, json_lines(unfinished) as write:
        for row in rows:
            write(row)


def _loadable(value: Any, place: str, types: set[tuple[str, type]]) -> Any:
    """Return a JSON value with a space after each text that Arrow would parse as a time. For
    `value` and each value inside it, add a pair to `types`: the value's place and its type.
    `place`: path of `value` in its row, such as `.run.id`.
    """
    if value is not None:
        types.add((place, type(value)))
    if isinstance(value, str):
        return f"{value} " if _MOMENT.fullmatch(value) else value
    if isinstance(value, dict):
        return {name: _loadable(item, f"{place}.{name}", types) for name, item in value.items()}
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds <= {int, float, bool}:
            types.update((f"{place}[]", kind) for kind in kinds)
            return value
        return [_loadable(item, f"{place}[]", types) for item in value]
    return value
