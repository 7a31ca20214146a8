"""Questions asked on pages: each starts a detached run, and the run's page follows it."""

from aiohttp import web

from router.access import caller
from router.edge.asked_table import Tables, asked_table
from router.edge.pages.site import Site, field, redirect
from router.edge.running import Detached
from router.runs import Gateway, RequestOptions


def add_asking(
    site: Site,
    gateway: Gateway,
    detached: Detached,
    tables: Tables | None = None,
) -> None:
    """Add the form; the page of the run shows the answer. `detached`: holds the runs. `tables`:
    fills tables; None for the gateway.
    """

    async def form(request: web.Request) -> web.Response:
        return await site.render(request, "ask.html")

    async def ask(request: web.Request) -> web.Response:
        question = field(request, "question")
        options = RequestOptions(caller())
        if columns := field(request, "columns").strip():
            table = asked_table(question, columns)
            run_id = await detached.start(
                lambda emit: (tables or gateway).fill_table(table, options, emit)
            )
        else:
            run_id = await detached.start(lambda emit: gateway.answer(question, options, emit))
        return redirect(f"/ask/{run_id}")

    site.get("/ask", form)
    site.post("/ask", ask)
