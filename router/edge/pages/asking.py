"""Questions asked on pages: each starts a detached run, and the run's page follows it."""

from aiohttp import web

from router.access import Access, caller
from router.edge.asked_table import Tables, asked_table
from router.edge.pages.site import Site, field, redirect
from router.edge.running import Detached
from router.runs import Gateway, RequestOptions
from router.table import TableRequest


class Asking:
    """Starts runs for the users of pages."""

    def __init__(
        self, gateway: Gateway, access: Access | None = None, tables: Tables | None = None
    ) -> None:
        """`access`: cancels runs whose key is revoked. `tables`: None for the gateway."""
        self._gateway = gateway
        self._tables = tables or gateway
        self.detached = Detached(access)

    async def ask(self, question: str) -> str:
        """Start a run that answers a question. Return its identifier. Raises as `Gateway`."""
        options = RequestOptions(caller())
        return await self.detached.start(lambda emit: self._gateway.answer(question, options, emit))

    async def fill(self, table: TableRequest) -> str:
        """Start a run that fills a table. Return its identifier. Raises as `Gateway`."""
        options = RequestOptions(caller())
        return await self.detached.start(lambda emit: self._tables.fill_table(table, options, emit))


def add_asking(site: Site, asking: Asking) -> None:
    """Add the form; the page of the run shows the answer."""

    async def form(request: web.Request) -> web.Response:
        return await site.render(request, "ask.html")

    async def ask(request: web.Request) -> web.Response:
        question = field(request, "question")
        if columns := field(request, "columns").strip():
            run_id = await asking.fill(asked_table(question, columns))
        else:
            run_id = await asking.ask(question)
        return redirect(f"/ask/{run_id}")

    site.get("/ask", form)
    site.post("/ask", ask)
