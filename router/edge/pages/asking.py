"""Questions that pages ask: each is worked on in a task of its own, and its page follows the
run.
"""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from aiohttp import web

from router.access import Access, caller, check_scope
from router.edge.asked_table import table_asked_for
from router.edge.grpc.table_service import Tables
from router.edge.pages.frame import Frame, field, redirect
from router.edge.running import Detached
from router.errors import BadRequest
from router.runs import Gateway, RequestOptions
from router.table import TableRequest
from router.trace import Run
from router.trace.values import OnEvent, TopologyName
from router.versions import VersionRouting, Versions


class Asking:
    """Begins runs for those who look at pages."""

    def __init__(
        self,
        gateway: Gateway,
        access: Access | None = None,
        tables: Tables | None = None,
        versions: Versions | None = None,
        executors: VersionRouting | None = None,
    ) -> None:
        """`access`: where keys may be revoked meanwhile. `tables`: who fills them; None for the
        gateway. `versions` and `executors`: those to choose from; without them, there is no choice.
        """
        self._gateway = gateway
        self._access = access
        self._tables = tables or gateway
        self._versions = versions
        self._executors = executors
        self.detached = Detached()

    @property
    def topologies(self) -> Sequence[TopologyName]:
        """The ways to answer that there are."""
        return self._gateway.topologies

    async def versions(self) -> list[str]:
        """The versions that the caller may choose from: the operator, from all."""
        if self._versions is None or caller().tenant is not None:
            return []
        return [version.version for version, _ in await self._versions.list()]

    async def ask(self, question: str) -> str:
        """Begin with a question, or with the table that it asks for; the run's identifier.
        Raises as `Gateway`.
        """
        options = RequestOptions(identity=caller())
        if table := table_asked_for(self._gateway.readable("question", question)):
            return await self._start(lambda emit: self._tables.fill_table(table, options, emit))
        return await self._start(lambda emit: self._gateway.answer(question, options, emit))

    async def again(self, question: str, topology: str, version: str) -> str:
        """Begin anew, with nothing of other runs. `version`: of the executor; empty for the one
        whose turn it is. Raises `AccessDenied`, `BadRequest`, `BadVersion`, and as `Gateway`.
        """
        chosen = next((name for name in self.topologies if name == topology), None)
        if chosen is None:
            raise BadRequest(f"topology {topology!r}: is not set up here.")
        if version:
            check_scope(caller(), "operate")
            if chosen not in ("factorized", "host"):
                raise BadRequest(f"topology {topology!r}: no version of the executor works in it.")
            if self._executors is None or version not in await self.versions():
                raise BadRequest(f"executor version {version!r}: is not on record.")
            await self._executors.require(version)
        options = RequestOptions(identity=caller(), no_cache=True, executor=version)
        return await self._start(lambda emit: self._gateway.answer(question, options, emit, chosen))

    async def fill(self, table: TableRequest) -> str:
        """Begin with a table; the run's identifier. Raises as `Gateway`."""
        options = RequestOptions(identity=caller())
        return await self._start(lambda emit: self._tables.fill_table(table, options, emit))

    async def _start(self, work: Callable[[OnEvent], Coroutine[Any, Any, Run]]) -> str:
        identity = caller()

        async def guarded(emit: OnEvent) -> Run:
            with self._access.serving(identity) if self._access else nullcontext():
                return await work(emit)

        return await self.detached.start(guarded)


def add_asking(frame: Frame, asking: Asking) -> None:
    """Add the page with the box; the run's page answers."""

    async def box(request: web.Request) -> web.Response:
        return await frame.render(request, "ask.html")

    async def ask(request: web.Request) -> web.Response:
        run_id = await asking.ask(field(request, "question"))
        return redirect(f"/ask/{run_id}")

    frame.get("/ask", box, section="Ask")
    frame.post("/ask", ask)
