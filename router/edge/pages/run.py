"""The page of a run: answer, agents, feedback; live while it runs."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import ClientConnectionResetError, web
from cachetools import LRUCache
from markupsafe import escape
from msgspec.structs import replace
from rolegate.client.text import visible

from router.background import in_viewer
from router.edge.limits import Limits
from router.edge.pages import timeline
from router.edge.pages.asking import Asking
from router.edge.pages.site import Site, field, identity, redirect
from router.edge.pages.table import TablePages, number
from router.edge.rendering import CitedAnswer, cited_answer, progress_line
from router.edge.status import as_seen_by, logged_failure
from router.errors import BadRequest, UpstreamError
from router.protocol import Passage
from router.runs import Runs
from router.search import Retriever
from router.trace import Event, Execution, Run, Trajectory
from router.trace.attribution import Attribution, attribute
from router.trace.call import UsageSums, sums_of
from router.trace.export import outcome_of
from router.trace.run import Feedback, right_answers
from router.trace.turns import tool_sums

_LOOKED_AT = 50
"""Passages to retrieve when searching for a right answer."""
_GOLDS = 3
"""Max right answers to search for, the most recent ones."""
_LANES = 100
"""Max lanes on a page, which is rendered every second while the run is running."""
_FOLLOWED = ("answer", "table")
"""Kinds of runs with events."""


class RunPages:
    """Pages of a run and its agents, comparison with another run, and forms."""

    def __init__(
        self,
        site: Site,
        runs: Runs,
        asking: Asking,
        retriever: Retriever | None = None,
        limits: Limits | None = None,
        *,
        files_not_read: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        """`retriever`: searches the documents for a right answer that was not found; None to skip
        that. `files_not_read`: number of files missing in the index, by suffix; None if unknown.
        """
        self._files_not_read = files_not_read
        self._site = site
        self._runs = runs
        self._asking = asking
        self._retriever = retriever
        self._reading_s = (limits or Limits()).reading_s
        self._views: LRUCache[object, dict[str, Any]] = LRUCache(4)
        site.get("/runs/{run}", partial(self._page, page="run.html", part="run_body.html"))
        site.get("/ask/{run}", partial(self._page, page="asked.html", part="asked.html"))
        site.get("/runs/{run}/events", self._events)
        site.get("/runs/{run}/agents/{agent}", self._agent)
        site.get("/runs/{run}/compare/{other}", self._compare)
        site.post("/runs/{run}/feedback", self._feedback)
        site.post("/runs/{run}/again", self._again)
        site.post("/runs/{run}/cancel", self._cancel)
        TablePages(site, self.run, asking)

    async def run(self, request: web.Request, name: str = "run") -> Run:
        """Return the run of a URL as the user may see it. Raises `NotFound`."""
        stored = await self._runs.get(request.match_info[name], identity(request))
        run = await in_viewer(as_seen_by, stored, identity(request))
        if run.status == "running":
            return replace(run, duration_s=time.time() - run.started_at)
        return run

    async def _page(self, request: web.Request, *, page: str, part: str) -> web.Response:
        """Render the page, or for htmx the part that changes while the run is running; a full
        reload once it has ended.
        """
        run = await self.run(request)
        part_alone = "HX-Request" in request.headers
        running = run.status == "running"
        if part_alone and not running:
            return web.Response(status=204, headers={"HX-Refresh": "true"})
        feedback = () if running else await self._runs.feedback_on(run)
        golds = right_answers(feedback)[-_GOLDS:]
        return await self._site.render(
            request,
            part if part_alone else page,
            **await self._view(run, request),
            feedback=feedback,
            golds=golds,
            attribution=await self._attribution(run, golds) if golds else None,
            files_not_read=self._files_not_read,
            live=running and run.kind in _FOLLOWED,
            topologies=self._asking.topologies,
            executors=() if running else await self._asking.versions(),
        )

    async def _attribution(self, run: Run, golds: tuple[str, ...]) -> Attribution | None:
        """Attribute a wrong answer; searches the documents if the run itself does not show who lost
        it.
        """
        attribution = await in_viewer(attribute, run, golds)
        if (
            attribution is None
            or attribution.lost_by not in (None, "execution")
            or attribution.right
            or self._retriever is None
        ):
            return attribution

        queries = [*golds, *(f"{run.request} {gold}" for gold in golds)]
        by_id: dict[str, Passage] = {}
        try:
            for passages in await self._retriever.search(queries, _LOOKED_AT):
                by_id.update((passage.id, passage) for passage in passages)
        except UpstreamError:  # the question stays open
            return attribution
        return await in_viewer(attribute, run, golds, list(by_id.values()))

    async def _agent(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        path = request.match_info["agent"]
        lanes = await in_viewer(timeline.lanes, run)
        lane = next((lane for lane in lanes if lane.agent.path == path), None)
        if lane is None:
            raise web.HTTPNotFound(text="This run has no such agent.")
        execution = lane.execution
        cited = await in_viewer(execution.citations, execution.report.evidence) if execution else []
        passages = await in_viewer(timeline.passages_of, run)
        return await self._site.part(
            request,
            "agent.html",
            title=f"{lane.name}: {lane.sub_query}" if lane.sub_query else lane.name,
            run=run,
            lane=lane,
            evidence=[timeline.sources(citations, passages) for citations in cited],
            turns=timeline.turns(lane.conversation, [bar.call for bar in lane.bars]),
        )

    async def _compare(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        other = await self.run(request, "other")
        pair = [await self._view(run, request), await self._view(other, request)]
        return await self._site.part(
            request, "compare.html", title="Side by side", run=run, pair=pair
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Stream server-sent events: `line`, an item of the progress list; `changed`, after each
        event; `done`, at the end.
        """
        after = number(request.headers.get("Last-Event-ID", "0"))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        )
        try:
            async for at, item in self._runs.watch(
                request.match_info["run"], after, identity(request)
            ):
                if not response.prepared:
                    await response.prepare(request)
                async with asyncio.timeout(self._reading_s):
                    await response.write(_server_sent(at, item).encode())
        except Exception as error:
            if not response.prepared or isinstance(
                error, ClientConnectionResetError | TimeoutError
            ):
                raise
            logged_failure(error)
        return response

    async def _view(self, run: Run, request: web.Request) -> dict[str, Any]:
        """Return the template's values for a run, cached for users who see the same."""
        finished = run.status == "finished" and not run.redacted
        cited = (
            await cited_answer(run)
            if finished and isinstance(run.result, Trajectory | Execution)
            else None
        )
        key = (
            run.id,
            run.status,
            len(run.events),
            len(run.calls),
            identity(request).tenant,
            request.query_string,
        )

        def view() -> dict[str, Any]:
            if key not in self._views:
                self._views[key] = _view(run, cited, request.query)
            return self._views[key]

        return await in_viewer(view)

    async def _feedback(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        verdict = {"right": True, "wrong": False}.get(field(request, "verdict"))
        gold, comment = (field(request, name).strip() for name in ("right_answer", "comment"))
        await self._runs.feedback(Feedback(run.id, verdict, None, gold, comment), identity(request))
        return redirect(f"/runs/{run.id}#feedback")

    async def _again(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        if run.kind != "answer" or run.redacted:
            raise BadRequest(
                "This run cannot be repeated: it is not an answer, or its texts are not stored."
            )
        other = await self._asking.again(
            run.request, field(request, "topology"), field(request, "executor")
        )
        return redirect(f"/runs/{run.id}/compare/{other}")

    async def _cancel(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        await self._runs.cancel(run.id, identity(request))
        return redirect(f"/runs/{run.id}")


def _view(run: Run, cited: CitedAnswer | None, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the template's values for a run: answer, lanes and usage."""
    lanes = timeline.lanes(run)
    newest = max(0, len(lanes) - _LANES)
    first = min(number(query.get("lane", str(newest))), newest)
    tabular = (
        run.kind == "table"
        and not run.redacted
        and (run.result is not None or run.status == "running")
    )
    return {
        "run": run,
        "outcome": outcome_of(run) or run.status,
        "topology": getattr(run.result, "topology", ""),
        "cited": cited,
        "sources": timeline.sources(cited.citations, timeline.passages_of(run)) if cited else (),
        "lanes": lanes,
        "shown": lanes[first : first + _LANES],
        "before": max(0, first - _LANES) if first else None,
        "after": first + _LANES if first < newest else None,
        "lane_of": {lane.agent: lane for lane in lanes},
        "ticks": timeline.ticks(run),
        "spent": UsageSums(**sums_of(run.calls)),
        "tools": tool_sums(run),
        "versions": sorted(
            {
                lane.execution.executor
                for lane in lanes
                if lane.execution and lane.execution.executor
            }
        ),
        "table": TablePages.view(run, query) if tabular else None,
    }


def _server_sent(number: int, item: Event | Run) -> str:
    """Return the server-sent events for an event of the run, or for its end."""
    if isinstance(item, Run):
        return f"id: {number}\nevent: done\ndata: {item.status}\n\n"
    line = " ".join((progress_line(item) or "").split())
    item_event = f"event: line\ndata: <li>{escape(visible(line))}</li>\n\n" if line else ""
    return f"{item_event}id: {number}\nevent: changed\ndata: {number}\n\n"
