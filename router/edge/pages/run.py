"""The page of a run: its answer, the way to it, what is thought of it; live while it runs."""

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
from router.edge.pages.frame import Frame, field, identity, redirect
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
"""Passages that a search for a right answer finds."""
_GOLDS = 3
"""Right answers that are looked for: those told last."""
_LANES = 100
"""Lanes of a page, as that of a run that goes on is made anew each second; without a choice,
the newest.
"""
_FOLLOWED = ("answer", "table")
"""Kinds of runs that tell what happens."""


class RunPages:
    """A run, its agents, another run beside it, and what is to be done about it."""

    def __init__(
        self,
        frame: Frame,
        runs: Runs,
        asking: Asking,
        retriever: Retriever | None = None,
        limits: Limits | None = None,
        *,
        files_not_read: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        """`retriever`: to look whether the documents have an answer that was not found; None to
        leave it open. `files_not_read`: the number of files that the index does not hold, by
        suffix; None where that is not known.
        """
        self._files_not_read = files_not_read
        self._frame = frame
        self._runs = runs
        self._asking = asking
        self._retriever = retriever
        self._reading_s = (limits or Limits()).reading_s
        self._views: LRUCache[object, dict[str, Any]] = LRUCache(4)
        frame.get("/runs/{run}", partial(self._page, page="run.html", part="run_body.html"))
        frame.get("/ask/{run}", partial(self._page, page="asked.html", part="asked.html"))
        frame.get("/runs/{run}/events", self._events)
        frame.get("/runs/{run}/agents/{agent}", self._agent)
        frame.get("/runs/{run}/beside/{other}", self._beside)
        frame.post("/runs/{run}/feedback", self._feedback)
        frame.post("/runs/{run}/again", self._again)
        frame.post("/runs/{run}/cancel", self._cancel)
        TablePages(frame, self.run, asking)

    async def run(self, request: web.Request, name: str = "run") -> Run:
        """The run of an address, as whoever looks may see it. Raises `NotFound`."""
        found = await self._runs.get(request.match_info[name], identity(request))
        run = await in_viewer(as_seen_by, found, identity(request))
        return (
            replace(run, duration_s=time.time() - run.started_at)
            if run.status == "running"
            else run
        )

    async def _page(self, request: web.Request, *, page: str, part: str) -> web.Response:
        """The page, or for htmx its part that changes while the run goes on; once it has ended,
        the page anew.
        """
        run = await self.run(request)
        part_alone = "HX-Request" in request.headers
        running = run.status == "running"  # whose page shows nothing of what is read for others
        if part_alone and not running:
            return web.Response(status=204, headers={"HX-Refresh": "true"})
        said = () if running else await self._runs.feedback_on(run)
        golds = right_answers(said)[-_GOLDS:]
        return await self._frame.render(
            request,
            part if part_alone else page,
            **await self._view(run, request),
            feedback=said,
            golds=golds,
            attribution=await self._attribution(run, golds) if golds else None,
            files_not_read=self._files_not_read,
            live=running and run.kind in _FOLLOWED,
            topologies=self._asking.topologies,
            executors=() if running else await self._asking.versions(),
        )

    async def _attribution(self, run: Run, golds: tuple[str, ...]) -> Attribution | None:
        """The trace of a wrong answer; the documents are searched where nothing in the run
        tells.
        """
        found = await in_viewer(attribute, run, golds)
        if (
            found is None
            or found.lost_by not in (None, "execution")
            or found.right
            or self._retriever is None
        ):
            return found
        queries = [*golds, *(f"{run.request} {gold}" for gold in golds)]
        known = list[Passage]()
        try:
            for passages in await self._retriever.search(queries, _LOOKED_AT):
                known.extend(passages)
        except UpstreamError:  # it stays open
            return found
        return await in_viewer(attribute, run, golds, list({one.id: one for one in known}.values()))

    async def _agent(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        path = request.match_info["agent"]
        lanes = await in_viewer(timeline.lanes, run)
        lane = next((each for each in lanes if each.agent.path == path), None)
        if lane is None:
            raise web.HTTPNotFound(text="This run has no such agent.")
        execution = lane.execution
        cited = await in_viewer(execution.citations, execution.report.evidence) if execution else []
        passages = await in_viewer(timeline.passages_of, run)
        return await self._frame.part(
            request,
            "agent.html",
            title=f"{lane.name}: {lane.sub_query}" if lane.sub_query else lane.name,
            run=run,
            lane=lane,
            evidence=[timeline.sources(each, passages) for each in cited],
            turns=timeline.turns(lane.conversation, [bar.call for bar in lane.bars]),
        )

    async def _beside(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        pair = [await self._view(each, request) for each in (run, await self.run(request, "other"))]
        return await self._frame.part(
            request, "beside.html", title="Side by side", run=run, pair=pair
        )

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: `line`, an item of the list of what happened; `changed`, after
        it; `done`, at the end.
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
                    await response.write(_told(at, item).encode())
        except Exception as error:
            if not response.prepared or isinstance(
                error, ClientConnectionResetError | TimeoutError
            ):
                raise
            logged_failure(error)
        return response

    async def _view(self, run: Run, request: web.Request) -> dict[str, Any]:
        """A view of the run, for a template, made once for all who see the same."""
        finished = run.status == "finished" and not run.redacted
        cited = (
            await cited_answer(run)
            if finished and isinstance(run.result, Trajectory | Execution)
            else None
        )
        seen = (
            run.id,
            run.status,
            len(run.events),
            len(run.calls),
            identity(request).tenant,
            request.query_string,
        )

        def view() -> dict[str, Any]:
            if seen not in self._views:
                self._views[seen] = _view(run, cited, request.query)
            return self._views[seen]

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
                "This run cannot be made again: it is no answer, or its texts are not kept."
            )
        other = await self._asking.again(
            run.request, field(request, "topology"), field(request, "executor")
        )
        return redirect(f"/runs/{run.id}/beside/{other}")

    async def _cancel(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        await self._runs.cancel(run.id, identity(request))
        return redirect(f"/runs/{run.id}")


def _view(run: Run, cited: CitedAnswer | None, query: Mapping[str, str]) -> dict[str, Any]:
    """A run with its answer, its lanes, and what it has spent, for a template."""
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


def _told(number: int, item: Event | Run) -> str:
    if isinstance(item, Run):
        return f"id: {number}\nevent: done\ndata: {item.status}\n\n"
    line = " ".join((progress_line(item) or "").split())
    told = f"event: line\ndata: <li>{escape(visible(line))}</li>\n\n" if line else ""
    return f"{told}id: {number}\nevent: changed\ndata: {number}\n\n"
