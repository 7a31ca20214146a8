"""The rows of a sweep: a file that grows, and that a kill at any time leaves usable."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.study.provenance import SHARED, Provenance
from benchmarks.study.result_row import ResultRow, Scored, Sourced
from executor_sft.jsonl import JsonlFile
from router.errors import BadConfig

RESULTS = "results.jsonl"
Row = TypeVar("Row", Scored, ResultRow, Sourced)
Key = tuple[str, str, int]
"""A cell, a question and a rollout."""


class Results:
    """Rows that are done, and more of them."""

    def __init__(self, file: JsonlFile) -> None:
        """Raises `BadConfig` for a line that is not a row."""
        self._file = file
        self._made_by: dict[str, Provenance] = {}
        self.done: set[Key] = set()
        self.booked: set[str] = set()
        """Keys of all calls that rows have under `checking`."""
        for row in read_rows(file.path, ResultRow):
            self._note(row)

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator["Results"]:
        """Those of a folder; a line that was torn is cut off. Raises `BadConfig`."""
        file = JsonlFile(folder / RESULTS)
        try:
            yield cls(file)
        finally:
            file.close()

    def append(self, row: ResultRow) -> None:
        """Keep a row. Raises `StoreFailed`."""
        self._file.append(msgspec.json.encode(row))
        self._note(row)

    def check(self, cell: str, made_by: Provenance) -> None:
        """Raise `BadConfig` where rows of this cell were made by something else, such as another release, or those of
        another cell with something else that all share, such as another index.
        """
        for name, kept in self._made_by.items():
            for field in Provenance.__struct_fields__ if name == cell else SHARED:
                before, now = getattr(kept, field), getattr(made_by, field)
                if before != now and field != "seed":
                    raise BadConfig(
                        f"{self._file.path}: rows of {name!r} were made with {field} {before!r}, and now it is "
                        f"{now!r}; go on with what made them, or begin in a new folder."
                    )

    def rows(self) -> Iterator[Scored]:
        """All of them, in the order in which they ended."""
        return read_rows(self._file.path, Scored)

    def _note(self, row: ResultRow) -> None:
        self.done.add((row.cell, row.question_id, row.rollout))
        self.booked.update(row.checked)
        self._made_by.setdefault(row.cell, row.provenance)


def read_rows(path: Path, kind: type[Row]) -> Iterator[Row]:
    """The rows of a file, one in memory at a time, without a last line that is still being written, or was torn. Raises
    `BadConfig`, naming file and line.
    """
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decoder.decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise BadConfig(
                        f"{path}:{number}: {error}; remove this line, and the same sweep makes it again."
                    ) from None
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name the folder of a sweep.") from None
