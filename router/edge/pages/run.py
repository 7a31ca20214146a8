"""The page of a run with its answer, agents and feedback. While the run is under way, the page
updates itself.
"""

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
from router.edge.pages.asking import earlier_runs, with_run
from router.edge.pages.site import Site, field, redirect
from router.edge.pages.table import TablePages, number
from router.edge.rendering import cited_answer, progress_line
from router.edge.status import as_seen_by
from router.errors import NotFound, UpstreamError
from router.protocol import Passage
from router.runs import Runs
from router.search.indexes import Indexes
from router.search.retrieval import IndexRetriever
from router.trace import Execution, Run, Trajectory
from router.trace.attribution import Attribution, attribute
from router.trace.call import UsageSums, sums_of
from router.trace.export import outcome_of
from router.trace.run import Feedback, right_answers
from router.trace.scope import DEFAULT_INDEX
from router.trace.values import AnswerDelta

_LOOKED_AT = 50
"""Number of passages to retrieve for each query, when the index is searched for a right answer that
the run did not find.
"""
_GOLDS = 3
"""Max number of right answers to search for: the most recent ones in the feedback."""
_LANES = 100
"""Max number of agents on a page. The page is rendered every second while the run is under way."""
_LINES = 50
"""Max number of progress lines on a page: the most recent ones."""


class RunPages:
    """The pages of a run and of its agents, with the forms for feedback and cancellation."""

    def __init__(
        self,
        site: Site,
        runs: Runs,
        retriever: IndexRetriever | Indexes | None = None,
        *,
        files_not_read: Callable[[], Mapping[str, int] | None] = lambda: None,
    ) -> None:
        """Add the pages to `site`.

        `retriever`: searches the documents for a right answer that the run did not find; None to
        omit this search. `files_not_read`: function that counts, by file suffix, the files
        that could not be read into the default index; it returns None if the counts are unknown.
        """
        self._files_not_read = files_not_read
        self._site = site
        self._runs = runs
        self._indexes = Indexes.of(retriever) if retriever else None
        self._views = LRUCache[object, dict[str, Any]](4)
        site.get("/runs/{run}", partial(self._page, page="run.html", part="run_body.html"))
        site.get("/ask/{run}", partial(self._page, page="asked.html", part="asked_body.html"))
        site.get("/runs/{run}/agents/{agent}", self._agent)
        site.post("/runs/{run}/feedback", self._feedback)
        site.post("/runs/{run}/cancel", self._cancel)
        site.post("/ask/{run}/cancel", self._cancel)
        TablePages(site, self.run)

    async def run(self, request: web.Request) -> Run:
        """Load the run that is named in the URL of a request, without texts that the user may not
        see. Raises `NotFound` if the run does not exist or the user may not see it.
        """
        stored = await self._runs.get(request.match_info["run"], caller())
        run = await in_viewer(as_seen_by, stored, caller())
        if run.status == "running":
            return replace(run, duration_s=time.time() - run.started_at)
        return run

    async def _page(self, request: web.Request, *, page: str, part: str) -> web.Response:
        """Render the page of a run from the template `page`. For a request by htmx, render only the
        template `part`, whose content changes while the run is under way.

        If the part has not changed, htmx gets only the clock, which shows the duration so far. Once
        the run has ended, htmx is asked to reload the whole page.
        """
        run = await self.run(request)
        part_alone = "HX-Request" in request.headers
        running = run.status == "running"
        seen = str(len(run.events))
        before = request.query.get("before", "")
        if part_alone and not running:
            return web.Response(status=204, headers={"HX-Refresh": "true"})
        if part_alone and request.query.get("seen") == seen:
            clock = await self._site.render(request, "clock.html", run=run)
            clock.headers["HX-Reswap"] = "none"
            return clock
        earlier = [] if part_alone else await earlier_runs(self._runs, before)
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
            files_not_read=self._files_not_read if DEFAULT_INDEX in run.scope.indexes else dict,
            earlier=[await _answer_of(each) for each in earlier],
            before=with_run(before, run.id),
            live=str(request.rel_url.update_query(seen=seen)) if running else "",
        )

    async def _attribution(self, run: Run, golds: tuple[str, ...]) -> Attribution | None:
        """Attribute a wrong answer to the responsible role. If the run itself does not show this
        role, search the documents for the right answers `golds`.
        """
        attribution = await in_viewer(attribute, run, golds)
        if (
            attribution is None
            or attribution.lost_by not in (None, "execution")
            or attribution.right
            or self._indexes is None
        ):
            return attribution

        queries = [*golds, *(f"{run.question} {gold}" for gold in golds)]
        by_id = dict[str, Passage]()
        try:
            scope = caller().scope(run.scope.indexes, run.scope.filter)
            for passages in await self._indexes.search(scope, queries, _LOOKED_AT):
                by_id.update((passage.id, passage) for passage in passages)
        # If the search fails, the responsible role stays unknown
        except (UpstreamError, NotFound):
            return attribution
        return await in_viewer(attribute, run, golds, list(by_id.values()))

    async def _agent(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        path = request.match_info["agent"]
        agents = await in_viewer(timeline.Agents, run)
        agent = next((agent for agent in agents.ids if agent.path == path), None)
        if agent is None:
            raise web.HTTPNotFound(
                text="The run has no agent with this name; open an agent from the run's page."
            )
        lane = agents.lane(agent)
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
        """Return the values of a run for the template. All values except the answer are cached,
        separately for each tenant and for operators.
        """
        key = (
            run.id,
            run.status,
            len(run.events),
            len(run.calls),
            caller().tenant,
            request.query.get("lane"),
            request.query.get("row"),
            request.query.get("only"),
        )

        def view() -> dict[str, Any]:
            if key not in self._views:
                self._views[key] = _view(run, request.query)
            return self._views[key]

        return {**await _answer_of(run), **await in_viewer(view)}

    async def _feedback(self, request: web.Request) -> web.Response:
        run = await self.run(request)
        verdict = {"right": True, "wrong": False}.get(field(request, "verdict"))
        gold, comment = (field(request, name).strip() for name in ("right_answer", "comment"))
        await self._runs.feedback(
            Feedback(run.id, verdict, None, gold, comment),
            caller(),
        )
        return redirect(f"/runs/{run.id}#feedback")

    async def _cancel(self, request: web.Request) -> web.Response:
        await self._runs.cancel(request.match_info["run"], caller())
        return redirect(request.path_qs.replace("/cancel", "", 1))


async def _answer_of(run: Run) -> dict[str, Any]:
    """Return the answer, sources and outcome of a run for the template. The page also shows these
    values for the earlier runs of a conversation.
    """
    answer = dict[str, Any](cited=None, sources=())
    finished = run.status == "finished" and not run.redacted
    if finished and isinstance(run.result, Trajectory | Execution):
        cited = await cited_answer(run)
        passages = await in_viewer(timeline.passages_of, run)
        answer = {"cited": cited, "sources": timeline.sources(cited.citations, passages)}
    return {"run": run, "outcome": outcome_of(run) or run.status, **answer}


def _view(run: Run, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a run for the template: agents, table and usage. `query`: the query of
    the URL. It may contain the number of the first agent or row to show.
    """
    agents = timeline.Agents(run)
    newest = max(0, len(agents.ids) - _LANES)
    first = min(number(query.get("lane", str(newest))), newest)
    tabular = (
        run.kind == "table"
        and not run.redacted
        and (run.result is not None or run.status == "running")
    )
    return {
        "agents": agents,
        "lanes": list(map(agents.lane, agents.ids[first : first + _LANES])),
        "first": first,
        "newest": newest,
        "lines": list(filter(None, map(progress_line, run.events[: -_LINES - 1 : -1]))),
        "so_far": _answer_so_far(run),
        "spent": UsageSums(**sums_of(run.calls)),
        "table": TablePages.view(run, query) if tabular else None,
    }


def _answer_so_far(run: Run) -> str:
    """Return the part of the answer that a run has written so far; empty for an ended run."""
    answer = ""
    for event in run.events if run.status == "running" else ():
        if isinstance(event, AnswerDelta):
            answer = answer[: event.kept_chars] + event.text
    return answer
