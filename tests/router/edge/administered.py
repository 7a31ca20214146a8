"""Gateways on a real store whose keys and tenants are administered over the wire."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from router.access import Access, Key, new_key
from router.administration import Administration, Auditor
from router.edge.grpc.admin_service import AdminServicer
from router.edge.grpc.server import Server
from router.edge.grpc.services import RunServicer
from router.edge.http.openai_server import openai_app
from router.edge.http.server import HTTPServer
from router.edge.pages import Site
from router.edge.pages.keys import add_keys
from router.edge.pages.runs import add_runs
from router.runs import Runs
from router.runs.live import LiveRuns
from router.store import Database, SQLAccounts, SQLArchive
from router.trace.identity import SCOPES
from tests.router.deployment import Deployment

INDEXES = ("default", "shared")


async def unpriced() -> Sequence[str]:
    """Return the only model without a price."""
    return ["m"]


@dataclass
class Gateway:
    """A gateway with every door."""

    address: str
    """Address of the gRPC server, host:port."""
    channel: grpc.aio.Channel
    http: str
    """Address of the HTTP server, host:port."""


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[Gateway]:
    """Serve a gateway on the store at `url`, which other gateways may use too."""
    async with AsyncExitStack() as stack:
        database = await Database.open(url)
        stack.push_async_callback(database.close)
        accounts = SQLAccounts(database)
        access = Access(accounts)
        administered = partial(
            Administration,
            indexes=INDEXES,
            unpriced=unpriced,
        )
        by_grpc, by_page = (Auditor(accounts, door, access.outdate) for door in ("grpc", "page"))
        archive = SQLArchive(database)
        runs = Runs(archive, LiveRuns())
        asked = Deployment().gateway()
        stack.push_async_callback(asked.settled)
        server = Server(
            asked, RunServicer(runs), AdminServicer(administered(by_grpc)), access=access
        )
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        stack.push_async_callback(server.drain, 0)
        site = Site(access)
        add_runs(site, runs)
        add_keys(site, administered(by_page))
        pages = HTTPServer(openai_app(asked, access, pages=site), 0.0, access=access)
        http = await pages.start("127.0.0.1:0", "server.http")
        stack.push_async_callback(pages.drain)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield Gateway(address, channel, http)


async def stored_key(
    url: str, tenant: str | None = None, *scopes: Any, label: str = "first"
) -> tuple[str, Key]:
    """Store a key, and return its text and the key."""
    text, key = new_key(tenant, scopes or SCOPES, label)
    database = await Database.open(url)
    await SQLAccounts(database).add_key(key)
    await database.close()
    return text, key
