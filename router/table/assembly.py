"""Assembly of a table from executors' reports. The result does not depend on the order in which the
reports arrive.

1. `read_report` reads one report into `RowClaims`: for each row that it names, a key, and a claim
   (value, canonical form and support) for each column.
2. Keys are grouped into rows. Two keys belong to the same row if they are equal, or if two
   documents state that their names mean the same ("A, also known as B": a *tie*). Keys are ordered
   by the rank of the ask (a piece of work for an executor) whose report named them. The first key
   of a row is the row's home.
3. A cell is computed from all claims in its column. Claims with equal canonical forms state one
   value. The best supported value wins. If two values are supported equally well, the cell is in
   conflict. A value that no passage contains fills no cell, and a name that no passage contains
   makes no row.

Ranks depend only on the asks, not on the time of arrival, so the same reports give the same table
in any order. `Assembly` works incrementally: a report changes only the cells that it is about. All
keys are grouped again only if a report brings a tie between known names, or a new key that may
match an existing tie.
"""

import sys
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, get_args

from msgspec.structs import replace

from router.folding import fold, sought
from router.frozen import Frozen
from router.table.cell_value import canonical, is_blank, is_mistyped, row_key
from router.table.conditions import state_of
from router.table.plain_text import plain
from router.table.support import Shown, Tie, support_of, tied
from router.table.table_text import read_rows, read_values
from router.trace import Execution
from router.trace.table import (
    Ask,
    Cell,
    Check,
    CheckState,
    Claim,
    Column,
    Row,
    RowKey,
    Schema,
    Support,
)

_Place = tuple[tuple[Any, ...], int]
"""Place of a row in the order of rows: the rank of the ask whose report names the row, and the
row's number in that report.
"""
_SUPPORTS: tuple[Support, ...] = get_args(Support)
"""Kinds of support of a value by passages, best first."""


class Table(Frozen):
    """A table: its columns and its rows. Rows that the client gave come first. The other rows are
    ordered by the rank of the ask (a piece of work for an executor) whose report first names the
    row.
    """

    schema: Schema
    """The columns, without hidden ones, and the conditions."""
    rows: tuple[Row, ...]
    excluded: tuple[Row, ...] = ()
    """Rows left out of the table because of a condition (see `Row.excluded`), in the same order."""

    @classmethod
    def of(cls, schema: Schema, rows: Collection[Row]) -> "Table":
        """Return the table of `rows`. Rows with `Row.excluded` become `Table.excluded`."""
        excluded = tuple(row for row in rows if row.excluded)
        return cls(schema, tuple(row for row in rows if not row.excluded), excluded)

    @property
    def every_row(self) -> tuple[Row, ...]:
        """The rows of the table, then the excluded rows."""
        return self.rows + self.excluded


class RowClaims(NamedTuple):
    """Statements of one report about one row."""

    ask: Ask
    key: RowKey
    claims: tuple[Claim | None, ...]
    """A claim for each column, or None if the report has no value for it."""
    looked: bool
    """True if the ask is about this row only, and its executor completed the search without
    failing.
    """


class ReportRows(NamedTuple):
    """The rows of one report, and the ties in its passages: statements that two names belong to the
    same thing.
    """

    rows: tuple[RowClaims, ...]
    ties: tuple[Tie, ...]
    lost: int
    """Number of rows that are cut off or omitted in the report. If there are such rows, the
    question should be asked again.
    """
    unsupported: int
    """Number of rows that `rows` lacks because the executor's passages do not name them."""


def read_report(
    schema: Schema,
    ask: Ask,
    execution: Execution,
    max_rows: int = sys.maxsize,
) -> ReportRows:
    """Return the rows and values in the report of `execution`, with the support of each value by
    the executor's passages. `ask`: the piece of work that led to the report.

    `max_rows`: max rows of a table. If the report has more, one row above the limit is kept, so
    that the caller can see that there are too many.
    """
    answer = "" if execution.failed and not execution.report.evidence else execution.report.answer
    shown = Shown(chain.from_iterable(search.shown for search in execution.every_search))
    columns = [
        column
        for column in schema.columns
        if column.name in ask.columns or (column.key and ask.row is None)
    ]
    lost = execution.report.lost_lines
    unsupported = 0
    if ask.row is None:
        listed, cut = read_rows(answer, columns)
        lost += cut
        asked = fold(execution.sub_query)
        rows = []
        keys = set[RowKey]()
        for row in listed:
            key = row_key(Schema(tuple(columns)), row)
            if not _is_named(columns, row, shown, asked):
                unsupported += 1
            elif key in keys or len(keys) <= max_rows:
                keys.add(key)
                rows.append((key, row))
    else:
        rows = [(ask.row, read_values(answer, schema, columns, ask.row))]

    looked = ask.row is not None and execution.looked
    evidence = cache(lambda: execution.citations(execution.report.evidence))
    row_claims = list[RowClaims]()
    for key, row in rows:
        names = shown.also_named(names_of(schema, key))
        claims = dict[str, Claim]()
        for column, value in zip(columns, map(plain, row), strict=True):
            if not is_blank(value, column):
                form = canonical(column, value)
                support, citations = shown.support(column, value, form, names)
                if column.type == "boolean" or (column.type == "choice" and not citations):
                    support, citations = support_of(chain.from_iterable(evidence()), names)
                claims[column.name] = Claim(
                    value,
                    form,
                    ask,
                    support,
                    citations,
                )
        in_order = tuple(claims.get(column.name) for column in schema.columns)
        row_claims.append(RowClaims(ask, key, in_order, looked))
    return ReportRows(tuple(row_claims), shown.ties, lost, unsupported)


def _is_named(
    columns: Sequence[Column],
    row: Sequence[str],
    shown: Shown,
    asked: str,
) -> bool:
    """Return whether the passages name a row. If the row's key has several names, the passages must
    contain one of them; the others may come from the folded sub-query `asked`. Example: the country
    in a key of country and city.
    """
    parts = [
        (column, value)
        for column, value in zip(columns, map(plain, row), strict=True)
        if column.key and sought(value)
    ]
    names = [(column, value) for column, value in parts if column.type == "text"] or parts
    unknown = [sought(value) for column, value in names if not shown.holds(column, value)]
    return not unknown or (len(unknown) < len(names) and all(name in asked for name in unknown))


def names_of(schema: Schema, key: RowKey) -> list[str]:
    """Return the folded parts of a key that are names, which means values of text columns. If the
    key has no text columns, return all parts.
    """
    texts = [
        sought(part) for column, part in zip(schema.keys, key, strict=True) if column.type == "text"
    ]
    return [name for name in texts or map(sought, key) if name.strip()]


class Assembly:
    """Assembles a table incrementally, one report at a time.

    Each row has a place in the order of rows. Given rows come first. Any other row is placed by the
    lowest rank of an ask whose report names the row, and then by the row's number in that report.
    Rows beyond `max_rows` have a place too, but their cells are not computed.
    """

    def __init__(
        self,
        schema: Schema,
        given: Iterable[Sequence[str]] = (),
        *,
        asks_per_cell: int = 2,
        max_rows: int = sys.maxsize,
    ) -> None:
        """`given`: rows that the client gave, with a value for each column that is not hidden.
        Empty values are looked up. `asks_per_cell`: a cell becomes `not_found` after this many
        executors found no value for it. `max_rows`: max rows, including excluded ones.
        """
        self._schema = schema
        self._asks_per_cell = asks_per_cell
        self._max_rows = max_rows
        self._given = {row_key(schema, values): tuple(values) for values in given}
        self._places: dict[RowKey, _Place] = {
            key: ((-1,), number) for number, key in enumerate(self._given)
        }
        """Place of each key; the first place, if several reports name the key."""
        self._order = list[tuple[_Place, RowKey]]()
        """Place of each row and its home (the first of its keys), in the order of the rows."""
        self._claims: dict[RowKey, list[tuple[_Place, RowClaims]]] = {
            key: [] for key in self._given
        }
        """Statements of all reports about each key, in the order of their places."""
        self._parts = dict[RowKey, tuple[str, ...]]()
        """Parts of each key, folded for searches in folded texts."""
        self._names = set[str]()
        """Folded names in all keys (see `names_of`)."""
        self._ties = set[Tie]()
        self._groups = dict[RowKey, list[RowKey]]()
        """All keys of each row, by the row's home (its first key)."""
        self._homes = dict[RowKey, RowKey]()
        """For each key, the home of its row."""
        self._rows = dict[RowKey, Row]()
        """Rows as last computed, by their homes (first keys)."""
        self._changed = dict[RowKey, set[str]]()
        """Rows to compute again: maps the home (first key) of each row to the columns that new
        reports are about.
        """
        self._know(self._given)
        self._group()

    @property
    def overflows(self) -> bool:
        """True if more rows were found than `max_rows`."""
        return len(self._order) > self._max_rows

    def add(self, ask: Ask, execution: Execution) -> ReportRows:
        """Add the report of `execution`, which worked on `ask`, and return its rows. Each ask may
        be added once.
        """
        reading = read_report(self._schema, ask, execution, self._max_rows)
        rank = ask.rank
        moved = dict[RowKey, _Place | None]()
        for number, row in enumerate(reading.rows):
            place = (rank, number)
            insort(self._claims.setdefault(row.key, []), (place, row), key=itemgetter(0))
            before = self._places.get(row.key)
            if before is None or place < before:
                self._places[row.key] = place
                moved[row.key] = before
        self._know(moved)

        ties = {*reading.ties} - self._ties
        self._ties |= ties
        parts = set(chain.from_iterable(self._parts[key] for key in moved))
        # A tie is about a key if one of its names may be a part of the key.
        about_moved = parts and any(
            not parts.isdisjoint(tie.before + tie.after) for tie in self._ties
        )
        if about_moved or any(tied(ties, self._names, 1)):
            self._group()
        else:
            for key, before in moved.items():
                self._move(key, before)

        for row in reading.rows:
            self._changed.setdefault(self._homes[row.key], set()).update(ask.columns)
        return reading

    def take_changed(self) -> Iterator[Row]:
        """Yield the rows that have changed since the last call, in the order of the rows."""
        changed = self._changed
        self._changed = {}
        last = self._order[self._max_rows - 1][0] if self.overflows else None
        for home in sorted(changed.keys() & self._groups.keys(), key=self._places.__getitem__):
            before = self._rows.pop(home, None)
            if last is None or self._places[home] <= last:
                placed = chain.from_iterable(self._claims[key] for key in self._groups[home])
                members = [row_claims for _, row_claims in sorted(placed, key=itemgetter(0))]
                self._rows[home] = row = self._row(home, members, before, changed[home])
                yield row

    def table(self) -> Table:
        """Return the table that results from the reports so far."""
        deque(self.take_changed(), 0)
        return Table.of(
            replace(self._schema, columns=self._schema.shown),
            [self._rows[home] for _, home in self._order[: self._max_rows]],
        )

    def check_states(self, key: RowKey) -> set[CheckState]:
        """Return the states of all conditions for the row `key`, according to the reports of asks
        about this key alone. Reports on questions for rows are not considered, so the states depend
        on no other key. The set is empty if there are no conditions.
        """
        if not self._schema.conditions:
            return set()
        members = [row for _, row in self._claims.get(key, ()) if row.ask.row is not None]
        row = self._row(
            key,
            members,
            None,
            (),
        )
        return {check.state for check in row.checks}

    def _know(self, keys: Iterable[RowKey]) -> None:
        """Store the folded parts and names of new keys."""
        for key in keys:
            self._parts[key] = tuple(map(sought, key))
            self._names.update(names_of(self._schema, key))

    def _move(self, key: RowKey, before: _Place | None) -> None:
        """Put a row with only one key at its place in the order. `before`: the row's earlier place;
        None for a new row.
        """
        if before is not None:
            del self._order[bisect_left(self._order, (before, key))]
        insort(self._order, (self._places[key], key))
        self._homes[key] = key
        self._groups[key] = [key]

    def _group(self) -> None:
        """Group all keys into rows. Equal keys make one row, and so do keys whose names belong to
        the same thing according to two documents. Rows that the client gave are never joined with
        each other.
        """
        same = dict[str, frozenset[str]]()
        for name, other in tied(self._ties, self._names):
            names = same.get(name, frozenset((name,)))
            if other not in names:
                names |= same.get(other, {other})
                same |= dict.fromkeys(names, names)

        before = self._groups
        first = dict[tuple[str | frozenset[str], ...], RowKey]()
        self._groups = {}
        for key in sorted(self._places, key=self._places.__getitem__):
            form = tuple(
                same.get(name, part) for name, part in zip(self._parts[key], key, strict=True)
            )
            self._homes[key] = home = key if key in self._given else first.get(form, key)
            first.setdefault(form, key)
            self._groups.setdefault(home, []).append(key)

        self._order = [(self._places[home], home) for home in self._groups]
        for home, keys in self._groups.items():
            if before.get(home) != keys:
                self._rows.pop(home, None)
            if home not in self._rows:
                self._changed.setdefault(home, set())

    def _row(
        self,
        home: RowKey,
        members: Sequence[RowClaims],
        before: Row | None,
        columns: Collection[str],
    ) -> Row:
        """Compute the row with the key `home`. `members`: the statements of all reports about the
        row. `before`: the row as last computed; None to compute all cells. Its key cells, its
        hidden cells and its cells in `columns` are computed again; its other cells are kept.
        """
        given = self._given.get(home)
        cells = list[Cell]()
        parts = iter(home)
        for at, column in enumerate(self._schema.columns):
            is_other = not (column.key or column.hidden or column.name in columns)
            if before and is_other:
                cells.append(before.cells[at])
                continue
            claims = dict[tuple[Ask, str], Claim]()
            all_claims = filter(None, (row_claims.claims[at] for row_claims in members))
            for claim in sorted(all_claims, key=_grade):
                claims.setdefault((claim.ask, claim.canonical), claim)
            looked = sum(row.looked and column.name in row.ask.columns for row in members)
            value = given[at] if given and not column.hidden else ""
            cell = _cell(column, value, list(claims.values()), looked >= self._asks_per_cell)
            # A key cell without a claim shows the row's key, which is in canonical form. If the key
            # is the title of a cited passage, the title is shown instead: "Old Bel" for the key
            # "old bel", but not "1943 in film" for the key 1943.
            part = next(parts) if column.key else ""
            if part and not cell.value:
                titles = {
                    canonical(column, cited.title): cited.title
                    for row_claims in members
                    for claim in filter(None, row_claims.claims)
                    for cited in claim.citations
                    if column.type == "text"
                }
                cell = replace(cell, value=titles.get(part, part))
            cells.append(cell)

        asks = dict.fromkeys(row.ask for row in members if row.ask.row is None)
        aliases = dict.fromkeys(row.key for row in members if row.key != home)
        names = [column.name for column in self._schema.columns]
        checks = list[Check]()
        for condition in self._schema.conditions:
            cell = cells[names.index(condition.column.name)]
            checks.append(Check(state_of(condition, cell), cell))
        return Row(
            home,
            tuple(cells[: len(self._schema.shown)]),
            tuple(asks),
            tuple(aliases),
            given is not None,
            tuple(checks),
        )


def assemble(
    schema: Schema,
    given: Iterable[Sequence[str]],
    reports: Iterable[tuple[Ask, Execution]],
    **limits: int,
) -> Table:
    """Return the table that results from `reports`, one per ask, in any order. `limits`: the
    keyword arguments `asks_per_cell` and `max_rows` of `Assembly`.
    """
    assembly = Assembly(schema, given, **limits)
    for ask, execution in reports:
        assembly.add(ask, execution)
    return assembly.table()


def _cell(
    column: Column,
    given: str,
    claims: Sequence[Claim],
    exhausted: bool,
) -> Cell:
    """Return the cell that results from `claims`. They are sorted by support, best first, then by
    rank. Claims without support give a cell no value, except in a key column, because a key names
    the row.

    `given`: the client's value, or empty. `exhausted`: whether `asks_per_cell` executors have
    looked for the cell.
    """
    supported = [claim for claim in claims if column.key or claim.support != "unsupported"]
    finer = _finer({claim.canonical for claim in supported}) if column.type == "date" else {}
    groups = dict[str, list[Claim]]()
    for claim in supported:
        form = finer.get(claim.canonical, claim.canonical)
        groups.setdefault("" if column.key else form, []).append(claim)
    for members in groups.values():
        members.sort(key=lambda claim: (_grade(claim), claim.canonical in finer))
    values = sorted(groups.values(), key=lambda members: _worth(column, members))
    # Claims without support are last, as `claims` is sorted by support.
    shown = (*chain.from_iterable(values), *claims[len(supported) :])
    if given:
        return Cell(given, "given", shown)
    if not values:
        return Cell("", "not_found" if exhausted and not shown else "missing", shown)
    best = _best(values[0])
    if len(values) > 1 and best[0].support == values[1][0].support:
        return Cell(shown[0].value, "conflict", shown)
    agreed = len({claim.ask for claim in best}) > 1 and len(_documents(best)) > 1
    return Cell(shown[0].value, "agreed" if agreed else "single", shown)


def _grade(claim: Claim) -> int:
    return _SUPPORTS.index(claim.support)


def _worth(column: Column, claims: Sequence[Claim]) -> tuple[int, bool, int, int]:
    """Return the sort key of a value that `claims` state; the best value has the smallest sort key.
    Values are sorted by support; then values of the right type come first. After that, only the
    claims with the best support count: values whose claims cite more documents come first, then
    values with more claims.
    """
    best = _best(claims)
    return (
        _grade(best[0]),
        is_mistyped(column, best[0].canonical),
        -len(_documents(best)),
        -len(best),
    )


def _best(claims: Sequence[Claim]) -> Sequence[Claim]:
    """Return the claims whose support equals that of the first claim. `claims`: sorted, best
    supported first.
    """
    return [claim for claim in claims if claim.support == claims[0].support]


def _documents(claims: Iterable[Claim]) -> set[str]:
    citations = chain.from_iterable(claim.citations for claim in claims)
    return {citation.document or citation.passage_id for citation in citations}


def _finer(forms: Iterable[str]) -> dict[str, str]:
    """Map each date in `forms` to the most precise date that agrees with it, such as 1943 to
    1943-05-02. A date is left out if more precise dates contradict each other.
    """
    dates = sorted((form for form in forms if len(form) in (4, 7, 10)), key=len)
    finer = dict[str, str]()
    for form in dates:
        longer = [other for other in dates if other.startswith(f"{form}-")]
        if longer and all(longer[-1].startswith(other) for other in longer):
            finer[form] = longer[-1]
    return finer
