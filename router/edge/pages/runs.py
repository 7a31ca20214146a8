"""The page with the list of runs, newest first, and the figures of today's runs. The list updates
itself. The filters are part of the URL.
"""

import hashlib
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from cachetools import LRUCache, TTLCache

from router.access import caller
from router.edge.pages.site import Site, redirect
from router.edge.status import error_as_seen_by
from router.errors import BadRequest, NotFound, StoreFailed, explained
from router.runs import RunFilter, Runs
from router.runs.archive import MAX_LISTED_CHARS, RunFigures, shortened
from router.trace.run import RunKind, RunStatus
from router.trace.table import TableOutcome
from router.trace.values import AnswerOutcome, TopologyName

_PAGE = 50
_DAY_S = 86400
_FIGURES_S = 10.0
"""Seconds for which the figures of a day are cached, because an open page requests them every three
seconds.
"""
_CHOICES: dict[str, tuple[str, ...]] = {
    "status": get_args(RunStatus),
    "outcome": tuple(dict.fromkeys((*get_args(AnswerOutcome), *get_args(TableOutcome)))),
    "kind": get_args(RunKind),
    "topology": get_args(TopologyName),
    "feedback": ("right", "wrong", "any"),
}
_OTHERS = (
    "unsupported",
    "text",
    "tenant",
    "key_id",
    "executor_version",
    "since",
    "until",
)
"""Names of the other fields of the filter form. `unsupported` has a single choice. The other fields
are texts, or times in UTC.
"""


def add_runs(site: Site, runs: Runs) -> None:
    """Add the page with the list of runs to `site`. It is also the home page."""
    figures: TTLCache[object, RunFigures] = TTLCache(1000, _FIGURES_S)

    async def figures_since(start: float, tenant: str | None) -> RunFigures:
        """Return the figures of the runs since the Unix time `start`. `tenant`: None for all
        tenants that the user may see.
        """
        key = start, tenant, caller().tenant
        if (shown := figures.get(key)) is None:
            (shown,) = await runs.figures(RunFilter(tenant, start=start), [start], caller())
            figures[key] = shown
        return shown

    errors = LRUCache[str, str](10_000)

    async def error_of(run_id: str) -> str:
        """Return the error of a failed run; empty if the run cannot be loaded. Errors are cached,
        because the list does not contain them, and loading a run takes longer than reading the
        list.
        """
        if run_id not in errors:
            with suppress(NotFound, StoreFailed):
                failed = await runs.get(run_id, caller())
                errors[run_id] = shortened(failed.error, MAX_LISTED_CHARS)
        return error_as_seen_by(errors.get(run_id, ""), caller())

    async def first(_request: web.Request) -> web.Response:
        return redirect("/runs")

    async def listed(request: web.Request) -> web.Response:
        """Render the page. For a request by htmx, render only the list, or return an empty response
        if the list has not changed.
        """
        asked = {
            name: value
            for name in (*_CHOICES, *_OTHERS)
            if (value := request.query.get(name, "").strip())
        }
        page = request.query.get("page", "")
        listed_runs = await runs.list(run_filter(asked), _PAGE, page, caller())
        today = time.time() // _DAY_S * _DAY_S
        since_today = await figures_since(today, asked.get("tenant"))
        seen = hashlib.sha256(msgspec.json.encode((listed_runs, since_today))).hexdigest()[:16]
        if seen == request.query.get("seen"):
            return web.Response(status=204)
        part = "HX-Request" in request.headers
        return await site.render(
            request,
            "runs_list.html" if part else "runs.html",
            choices=_CHOICES,
            listed=listed_runs,
            today=today,
            figures=since_today,
            errors={
                run.id: await error_of(run.id) for run in listed_runs.runs if run.status == "failed"
            },
            asked=asked,
            address=urlencode(asked),
            page=page,
            seen=seen,
            part=part,
        )

    site.get("/", first)
    site.get("/runs", listed)


def run_filter(asked: dict[str, str]) -> RunFilter:
    """Convert the fields of the form to a filter. Raises `BadRequest` if a field is invalid."""
    fields: dict[str, Any] = {
        name: value for name, value in asked.items() if name in RunFilter.__struct_fields__
    }
    try:
        fields["unsupported"] = "unsupported" in asked
        spans = (("since", "start"), ("until", "end"))
        fields |= {field: unix_time(asked[name]) for name, field in spans if name in asked}
        return msgspec.convert(fields, RunFilter)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f"Invalid filter: {explained(error)}; choose a value that the form offers."
        ) from None


def unix_time(text: str) -> float:
    """Return the Unix time of a date or time in ISO format. A text without an offset is taken as
    UTC. Raises `BadRequest` for other texts.
    """
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{text!r} is not a time; write it as 2026-11-25T08:00.") from None
