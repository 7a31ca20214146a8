"""Runs, newest first, as a page that follows them; its filters stand in its address."""

import hashlib
from datetime import UTC, datetime
from typing import Any, get_args
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from router.edge.pages.frame import Frame, identity
from router.errors import BadRequest
from router.runs import RunFilter, Runs
from router.trace.run import RunKind, RunStatus
from router.trace.table import TableOutcome, TableTopologyName
from router.trace.values import AnswerOutcome, TopologyName

_PAGE = 50
_MOST_NANO_USD = 2**63 - 1
_CHOICES: dict[str, tuple[str, ...]] = {
    "status": get_args(RunStatus),
    "outcome": tuple(dict.fromkeys((*get_args(AnswerOutcome), *get_args(TableOutcome)))),
    "kind": get_args(RunKind),
    "topology": (*get_args(TopologyName), *get_args(TableTopologyName)),
    "feedback": ("good", "bad", "any"),
}
_OTHERS = "unsupported", "text", "tenant", "executor_version", "least", "most", "since", "until"
"""Fields of the form beside those with choices: costs in dollars, times in UTC."""


def add_runs(frame: Frame, runs: Runs) -> None:
    """Add the list to the frame, which begins with it."""

    async def first(_request: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": "/runs"})

    async def listed(request: web.Request) -> web.Response:
        """The page, or for htmx its list alone, and nothing where that is what it shows already."""
        asked = {
            name: value
            for name in (*_CHOICES, *_OTHERS)
            if (value := request.query.get(name, "").strip())
        }
        page = request.query.get("page", "")
        found = await runs.list(run_filter(asked), _PAGE, page, identity(request))
        seen = hashlib.sha256(msgspec.json.encode(found)).hexdigest()[:16]
        if seen == request.query.get("seen"):
            return web.Response(status=204)
        part = "HX-Request" in request.headers
        return await frame.render(
            request,
            "runs_list.html" if part else "runs.html",
            choices=_CHOICES,
            found=found,
            asked=asked,
            address=urlencode(asked),
            page=page,
            seen=seen,
            part=part,
        )

    frame.get("/", first)
    frame.get("/runs", listed, section="Runs")


def run_filter(asked: dict[str, str]) -> RunFilter:
    """The runs that the fields of the form choose. Raises `BadRequest`."""
    fields: dict[str, Any] = {
        name: value for name, value in asked.items() if name in RunFilter.__struct_fields__
    }
    try:
        fields["unsupported"] = "unsupported" in asked
        fields |= {
            f"{name}_nano_usd": _nano_usd(asked[name])
            for name in ("least", "most")
            if name in asked
        }
        spans = (("since", "start"), ("until", "end"))
        fields |= {field: unix_time(asked[name]) for name, field in spans if name in asked}
        return msgspec.convert(fields, RunFilter)
    except (ValueError, OverflowError, msgspec.ValidationError) as error:
        raise BadRequest(f"This cannot be looked for: {error}.") from None


def _nano_usd(dollars: str) -> int:
    """Billionths, as far as a store has them. Raises `ValueError` and `OverflowError`."""
    return max(-_MOST_NANO_USD, min(round(float(dollars) * 1e9), _MOST_NANO_USD))


def unix_time(text: str) -> float:
    """The Unix time of an ISO date, with or without a time, in UTC unless it says otherwise.
    Raises `BadRequest`.
    """
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BadRequest(f"{text!r} is no time; write it as 2026-11-25T08:00.") from None
