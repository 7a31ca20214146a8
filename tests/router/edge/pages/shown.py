"""Pages over a store in memory, with a gateway of scripted models that may be held."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp

from router.access import Access, new_key
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.pages import Site
from router.edge.pages.asking import add_asking
from router.edge.pages.run import RunPages
from router.edge.pages.runs import add_runs
from router.edge.running import Detached
from router.ledger import RunStart
from router.runs import RunLifecycle, Runs
from router.runs.live import LiveRuns
from router.trace import Run
from tests.router.accounts import KeptAccounts
from tests.router.deployment import Deployment, Kept
from tests.router.edge.pages.world import ASKS
from tests.router.scripted_tables import ScriptedTables
from tests.router.unfiltered import PlainRetriever, Unfiltered


@dataclass
class Shown:
    """A server of pages, with its store and services."""

    address: str
    store: Kept
    keys: Mapping[str, str]
    """Keys by tenant; the operator's has an empty name."""
    site: Site
    tables: ScriptedTables
    accounts: KeptAccounts


@asynccontextmanager
async def shown(
    deployment: Deployment | None = None,
    runs: Sequence[Run] = (),
    *,
    tenants: Sequence[str] = (),
    retriever: PlainRetriever | None = None,
    files_not_read: Mapping[str, int] | None = None,
) -> AsyncIterator[Shown]:
    """Serve pages that show `runs`; with `tenants`, each of them has a key."""
    new_keys = {
        tenant: new_key(tenant or None, ASKS if tenant else frozenset(("ask", "operate")))
        for tenant in tenants
    }
    accounts = KeptAccounts(*(key for _, key in new_keys.values()))
    access = Access(accounts)
    store = Kept()
    live = LiveRuns()
    for run in runs:
        keep(store, run)
    gateway = (deployment or Deployment()).gateway(store, live=live)
    tables = ScriptedTables(RunLifecycle(store, store, live, {}, 60.0))
    run_service = Runs(store, live)
    site = Site(access)
    add_runs(site, run_service)
    add_asking(site, gateway, Detached(access), tables, runs=run_service)
    searched = Unfiltered(retriever) if retriever else None
    RunPages(site, run_service, searched, files_not_read=lambda: files_not_read)
    server = HTTPServer(openai_app(gateway, access, pages=site), 0.0, access=access)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(gateway.settled)
        stack.callback(live.stop, 0)
        stack.push_async_callback(server.drain)
        address = await server.start("127.0.0.1:0", "server.http")
        keys = {tenant: key_text for tenant, (key_text, _) in new_keys.items()}
        yield Shown(address, store, keys, site, tables, accounts)


def keep(store: Kept, run: Run) -> None:
    """Put a run into a store as if it had run there."""
    store.starts[run.id] = RunStart(
        id=run.id,
        kind=run.kind,
        tenant=run.tenant,
        key_id=run.key_id,
        request_id="",
        request=run.request,
        fingerprint="",
        started_at=run.started_at,
    )
    store.runs.append(run)


async def read(session: aiohttp.ClientSession, path: str, status: int = 200) -> str:
    """Read a page and return its text."""
    async with session.get(path) as response:
        text = await response.text()
        assert response.status == status, (path, response.status, text[:2000])
        return text
