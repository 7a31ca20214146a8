"""Pages over a real store, with a key for each of two tenants and for the operator."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from re import findall
from typing import Protocol

import aiohttp

from router.access import Access, new_key
from router.administration import Auditor
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.pages import Site
from router.edge.pages.asking import add_asking
from router.edge.pages.run import RunPages
from router.edge.pages.runs import add_runs
from router.edge.pages.usage import add_usage
from router.edge.pages.versions import add_versions
from router.edge.running import Detached
from router.runs import Runs
from router.runs.live import LiveRuns
from router.store import Database, SQLAccounts, SQLArchive, SQLUsages, SQLVersionBook
from router.trace.identity import KeyScope
from router.versions import GateRule, Versions
from tests.router.deployment import Deployment

ASKS: frozenset[KeyScope] = frozenset(("ask",))

GATE = GateRule(margin=0.1, error=0.05, max_tokens_ratio=1.0, max_trials=1000)


async def _load(name: str) -> str:
    return f'{{"name": "{name}"}}'


@dataclass
class World:
    """A server of pages over a real store."""

    address: str
    database: Database
    site: Site
    versions: Versions
    now: float = field(default_factory=time.time)
    keys: dict[str, str] = field(default_factory=dict)
    """Keys by tenant; the operator's has an empty name."""


@asynccontextmanager
async def pages(store: Path | str, *tenants: str) -> AsyncIterator[World]:
    """Serve pages; with `tenants`, each of them has a key.

    `store` is a folder for a database, or a database's address.
    """
    async with AsyncExitStack() as stack:
        database = await Database.open(
            store if isinstance(store, str) else f"sqlite:///{store}/runs.db"
        )
        stack.push_async_callback(database.close)
        accounts = SQLAccounts(database)
        keys = dict[str, str]()
        for tenant in tenants:
            scopes: frozenset[KeyScope] = ASKS if tenant else frozenset(("ask", "operate"))
            keys[tenant], key = new_key(tenant or None, scopes)
            await accounts.add_key(key)
        access = Access(accounts)
        site = Site(access)
        runs = Runs(SQLArchive(database), LiveRuns())
        gateway = Deployment().gateway()
        stack.push_async_callback(gateway.settled)
        stack.callback(gateway.lifecycle.live.stop, 0)
        add_runs(site, runs)
        add_asking(site, gateway, Detached(access), runs=runs)
        RunPages(site, runs)
        add_usage(site, SQLUsages(database), accounts, runs)
        versions = Versions(SQLVersionBook(database), _load, GATE)
        add_versions(site, versions, Auditor(accounts, "page"))
        server = HTTPServer(openai_app(gateway, access, pages=site), 0.0, access=access)
        stack.push_async_callback(server.drain)
        address = await server.start("127.0.0.1:0", "server.http")
        yield World(address, database, site, versions, keys=keys)


class Addressed(Protocol):
    """Any server of pages."""

    @property
    def address(self) -> str:
        """Return its address, host:port."""


@asynccontextmanager
async def browsing(
    world: Addressed, key: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a browser's session, signed in with a key."""
    jar = aiohttp.CookieJar(unsafe=True)  # keeps cookies of IP addresses
    async with aiohttp.ClientSession(f"http://{world.address}", cookie_jar=jar) as session:
        if key:
            form = {"key": key, "csrf": await token(session, "/sign-in")}
            async with session.post("/sign-in", data=form, allow_redirects=False) as response:
                assert response.status == 303, await response.text()
        yield session


async def token(session: aiohttp.ClientSession, path: str) -> str:
    """Return the token of a page's forms."""
    async with session.get(path) as response:
        return str(findall('name="csrf" value="([0-9a-f]+)"', await response.text())[0])
