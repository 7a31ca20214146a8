"""The table on the page of a run, the pages of its cells with their sources, and its exports."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any

from aiohttp import web
from cachetools import LRUCache
from rolegate.client import Table

from router.background import in_viewer
from router.edge.grpc.convert_table import table_to_proto
from router.edge.pages import timeline
from router.edge.pages.site import Site
from router.edge.run_table import is_contradicted, is_of, run_table
from router.errors import BadRequest
from router.trace import Run

_PAGE_ROWS = 100
_PAGE_CELLS = 2000
"""`_PAGE_ROWS`: max rows on a page. `_PAGE_CELLS`: approximate max number of cells on a page."""
_TYPES = {
    "md": "text/markdown",
    "csv": "text/csv",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "json": "application/json",
}


class TablePages:
    """The pages of a table's cells, and the exports of a table as a file."""

    def __init__(self, site: Site, run: Callable[[web.Request], Awaitable[Run]]) -> None:
        """Add the pages to `site`. `run`: loads the run that is named in the URL of a request,
        without texts that the user may not see.
        """
        self._site = site
        self._run = run
        self._files = LRUCache[object, bytes](2)
        self._exporting = asyncio.Lock()
        site.get("/runs/{run}/cells/{row}/{column}", self._cell)
        site.get("/runs/{run}/table.{format}", self._export)

    @staticmethod
    def view(run: Run, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the variables for the template that shows a page of the table. `query`: the query
        of the URL. Its parameter `only` is a list of cell states, separated by commas; if it is
        given, only rows with a cell in one of these states are shown. `row` is the position of the
        first row to show; 0 is the first row that `only` admits.
        """
        filled = run_table(run)
        table = filled.table
        known = filled.completeness
        columns = table.schema.columns
        rows = min(_PAGE_ROWS, 1 + _PAGE_CELLS // max(1, len(columns)))
        first = max(0, number(query.get("row", "0")))
        only = query.get("only", "")
        states = set(only.split(","))
        numbered = [
            (number, row)
            for number, row in enumerate(table.rows)
            if not only or any(cell.state in states for cell in row.cells)
        ]
        return {
            "is_contradicted": is_contradicted,
            "columns": columns,
            "only": only,
            "matching": len(numbered),
            "rows": numbered[first : first + rows],
            "conditions": table.schema.conditions,
            "excluded": table.excluded,
            "ignored": getattr(run.result, "ignored", ()),
            "first": first,
            "previous": max(0, first - rows),
            "known": known,
        }

    async def _cell(self, request: web.Request) -> web.Response:
        run = await self._run(request)
        row = number(request.match_info["row"])
        column = number(request.match_info["column"])
        cell = await in_viewer(_cell_of, run, row, column)
        return await self._site.part(request, "cell.html", run=run, **cell)

    async def _export(self, request: web.Request) -> web.Response:
        run = await self._run(request)
        kind = request.match_info["format"]
        if kind not in _TYPES or run.kind != "table" or run.redacted:
            raise web.HTTPNotFound(
                text="The run stores no table, or the format is unknown; use md, csv, xlsx or json."
            )
        sources = "sources" in request.query
        excluded = "excluded" in request.query
        key = run.id, run.status, len(run.events), len(run.calls), kind, sources, excluded
        async with self._exporting:  # concurrent requests for the same file build it only once
            if key not in self._files:
                table = Table(await table_to_proto(run))
                self._files[key] = await in_viewer(
                    partial(table.to_file, f".{kind}", sources=sources, excluded=excluded)
                )
            body = self._files[key]
        headers = {"Content-Disposition": f'attachment; filename="{run.id}.{kind}"'}
        return web.Response(
            body=BytesIO(body),
            content_type=_TYPES[kind],
            charset="utf-8",
            headers=headers,
        )


def _cell_of(run: Run, row_index: int, column_index: int) -> dict[str, Any]:
    """Return the variables for the template that shows a cell: the values that reports state for
    the cell, with their sources. Raises 404 if the table has no cell at this place, or if the run's
    texts are not stored.
    """
    filled = run_table(run)
    table = filled.table
    exists = row_index < len(table.rows) and column_index < len(table.schema.columns)
    if not exists or run.redacted:
        raise web.HTTPNotFound(
            text="No stored cell has this row and column; open a cell from the page of its table."
        )

    row = table.rows[row_index]
    column = table.schema.columns[column_index]
    cell = row.cells[column_index]
    passages = timeline.passages_of(run)
    numbers = {ask: number for number, ask in enumerate(filled.asks)}
    claims = [
        (
            claim,
            is_of(claim, cell.value, column),
            numbers[claim.ask],
            timeline.sources(claim.citations, passages),
        )
        for claim in cell.claims
    ]
    asked = {number: execution.sub_query for number, execution in filled.executions.items()}
    title = f"{column.name} of {', '.join(row.key)}: {cell.value or '–'}"
    return {"title": title, "claims": claims, "asked": asked}


def number(text: str) -> int:
    """Convert a number in a URL. Raises `BadRequest` if `text` is not a number of one to nine
    digits.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadRequest(
            f"{text[:20]!r} is not the number of a row, column or agent; write 1 to 9 digits."
        )
    return int(text)
