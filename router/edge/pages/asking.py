"""Questions asked on pages: each starts a detached run, and the run's page follows it."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from aiohttp import web

from router.access import Access, caller, check_scope
from router.edge.asked_table import Tables, asked_table
from router.edge.pages.site import Site, field, redirect
from router.edge.running import Detached
from router.errors import BadRequest
from router.runs import Gateway, RequestOptions
from router.table import TableRequest
from router.trace import Run
from router.trace.values import OnEvent, TopologyName
from router.versions import VersionRouting, Versions


class Asking:
    """Starts runs for the users of pages."""

    def __init__(
        self,
        gateway: Gateway,
        access: Access | None = None,
        tables: Tables | None = None,
        versions: Versions | None = None,
        executors: VersionRouting | None = None,
    ) -> None:
        """`access`: cancels runs whose key is revoked. `tables`: None for the gateway. `versions`
        and `executors`: executor versions to choose from; None for no choice.
        """
        self._gateway = gateway
        self._access = access
        self._tables = tables or gateway
        self._versions = versions
        self._executors = executors
        self.detached = Detached()

    @property
    def topologies(self) -> Sequence[TopologyName]:
        """Topologies that are set up."""
        return self._gateway.topologies

    async def versions(self) -> list[str]:
        """Return the executor versions that the caller may choose: all for operators, else none."""
        if self._versions is None or caller().tenant is not None:
            return []
        return [version.version for version, _ in await self._versions.list()]

    async def ask(self, question: str) -> str:
        """Start a run that answers a question. Return its identifier. Raises as `Gateway`."""
        options = RequestOptions(identity=caller())
        return await self._start(lambda emit: self._gateway.answer(question, options, emit))

    async def again(self, question: str, topology: str, version: str) -> str:
        """Start a run for the same question that shares no reports. `version`: an executor version;
        empty for the one that routing picks. Raises `AccessDenied`, `BadRequest`, `BadVersion`, and
        as `Gateway`.
        """
        chosen = next((name for name in self.topologies if name == topology), None)
        if chosen is None:
            allowed = ", ".join(self.topologies)
            raise BadRequest(f"topology {topology!r} is not set up here; use one of {allowed}.")
        if version:
            check_scope(caller(), "operate")
            if chosen not in ("factorized", "host"):
                raise BadRequest(
                    f"topology {topology!r} has no executor versions; use factorized or host."
                )
            if self._executors is None or version not in await self.versions():
                raise BadRequest(f"executor version {version!r} is not registered.")
            await self._executors.require(version)
        options = RequestOptions(identity=caller(), no_cache=True, executor=version)
        return await self._start(lambda emit: self._gateway.answer(question, options, emit, chosen))

    async def fill(self, table: TableRequest) -> str:
        """Start a run that fills a table. Return its identifier. Raises as `Gateway`."""
        options = RequestOptions(identity=caller())
        return await self._start(lambda emit: self._tables.fill_table(table, options, emit))

    async def _start(self, work: Callable[[OnEvent], Coroutine[Any, Any, Run]]) -> str:
        identity = caller()

        async def guarded(emit: OnEvent) -> Run:
            with self._access.serving(identity) if self._access else nullcontext():
                return await work(emit)

        return await self.detached.start(guarded)


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

    site.get("/ask", form, section="Ask")
    site.post("/ask", ask)
