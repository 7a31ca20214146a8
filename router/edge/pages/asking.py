"""The page with a form for questions. Each question starts a detached run, and the browser is
redirected to the page of the run.
"""

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
    """Add the page with the form to `site`. `detached`: starts the runs. `tables`: fills tables;
    None to fill them by the gateway.
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
