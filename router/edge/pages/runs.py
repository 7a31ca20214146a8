"""Runs, newest first, as a page that follows them; its filters stand in its address."""

import hashlib
from typing import get_args
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from router.edge.pages.frame import Frame, identity
from router.errors import BadRequest
from router.runs import RunFilter, Runs
from router.trace.run import RunKind, RunStatus

_PAGE = 50
_CHOICES = {"status": get_args(RunStatus), "kind": get_args(RunKind)}


def add_runs(frame: Frame, runs: Runs) -> None:
    """Add the list to the frame; the first page of all."""

    async def first(_request: web.Request) -> web.Response:
        return web.Response(status=303, headers={"Location": "/runs"})

    async def listed(request: web.Request) -> web.Response:
        """The page, or for htmx its list alone, and nothing where that is what it shows already."""
        asked = {name: value for name, value in request.query.items() if value and name not in ("page", "seen")}
        page = await runs.list(_wanted(asked), _PAGE, request.query.get("page", ""), identity(request))
        seen = hashlib.sha256(msgspec.json.encode(page)).hexdigest()[:16]
        if seen == request.query.get("seen"):
            return web.Response(status=204)
        part = "HX-Request" in request.headers
        return await frame.render(
            request,
            "runs_list.html" if part else "runs.html",
            found=page,
            asked=asked,
            address=urlencode(asked),
            seen=seen,
            part=part,
            choices=_CHOICES,
        )

    frame.get("/", first)
    frame.get("/runs", listed, section="Runs")


def _wanted(asked: dict[str, str]) -> RunFilter:
    """Raises `BadRequest`."""
    try:
        return msgspec.convert(asked, RunFilter, strict=False)
    except msgspec.ValidationError as error:
        raise BadRequest(f"This cannot be looked for: {error}.") from None
