"""The page of a run: answer, agents, feedback; live while it runs."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from cachetools import LRUCache
from msgspec.structs import replace

from router.access import caller
from router.background import in_viewer
from router.edge.pages import timeline
from router.edge.pages.site import Site, field, redirect
from router.edge.pages.table import TablePages, number
from router.edge.rendering import CitedAnswer, cited_answer, progress_line
from router.edge.status import as_seen_by
from router.errors import UpstreamError
from router.protocol import Passage
from router.runs import Runs
from router.search import Retriever
from router.trace import Execution, Run, Trajectory
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
_LINES = 50
"""Max lines of progress on a page, the most recent ones."""


class RunPages:
    """Pages of a run and its agents, and forms."""

    def __init__(
        self,
        site: Site,
        runs: Runs,
        retriever: Retriever | None = None,
        *,
        files_not_read: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        """`retriever`: searches the documents for a right answer that was not found; None to skip
        that. `files_not_read`: number of files missing in the index, by suffix; None if unknown.
        """
        self._files_not_read = files_not_read
        self._site = site
        self._runs = runs
        self._retriever = retriever
        self._views: LRUCache[object, dict[str, Any]] = LRUCache(4)
        site.get("/runs/{run}", partial(self._page, page="run.html", part="run_body.html"))
        site.get("/ask/{run}", partial(self._page, page="asked.html", part="asked_body.html"))
        site.get("/runs/{run}/agents/{agent}", self._agent)
        site.post("/runs/{run}/feedback", self._feedback)
        site.post("/runs/{run}/cancel", self._cancel)
        TablePages(site, self.run)

    async def run(self, request: web.Request) -> Run:
        """Return the run of a URL as the user may see it. Raises `NotFound`."""
        stored = await self._runs.get(request.match_info["run"], caller())
        run = await in_viewer(as_seen_by, stored, caller())
        if run.status == "running":
            return replace(run, duration_s=time.time() - run.started_at)
        return run

    async def _page(self, request: web.Request, *, page: str, part: str) -> web.Response:
        """Render the page, or for htmx the part that changes while the run is running: nothing if
        it has not changed, and a full reload once the run has ended.
        """
        run = await self.run(request)
        part_alone = "HX-Request" in request.headers
        running = run.status == "running"
        seen = str(len(run.events))
        if part_alone and not running:
            return web.Response(status=204, headers={"HX-Refresh": "true"})
        if part_alone and request.query.get("seen") == seen:
            return web.Response(status=204)
        feedback = () if running else await self._runs.feedback_on(run)
        golds = right_answers(feedback)[-_GOLDS:]
        return await self._site.render(
            request,
            "followed.html" if part_alone else page,
            part=part,
            **await self._view(run, request),
            feedback=feedback,
            golds=golds,
            attribution=await self._attribution(run, golds) if golds else None,
            files_not_read=self._files_not_read,
            live=str(request.rel_url.update_query(seen=seen)) if running else "",
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
        )

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
            caller().tenant,
            request.query.get("lane"),
            request.query.get("row"),
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
        await self._runs.feedback(
            Feedback(
                run.id,
                verdict,
                None,
                gold,
                comment,
            ),
            caller(),
        )
        return redirect(f"/runs/{run.id}#feedback")

    async def _cancel(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        await self._runs.cancel(run.id, caller())
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
        "cited": cited,
        "sources": timeline.sources(cited.citations, timeline.passages_of(run)) if cited else (),
        "lanes": lanes,
        "shown": lanes[first : first + _LANES],
        "first": first,
        "newest": newest,
        "lane_of": {lane.agent: lane for lane in lanes},
        "lines": list(filter(None, map(progress_line, run.events[: -_LINES - 1 : -1]))),
        "length_s": timeline.length_s(run),
        "spent": UsageSums(**sums_of(run.calls)),
        "tools": tool_sums(run),
        "table": TablePages.view(run, query) if tabular else None,
    }
