"""Connections to endpoints are used again, and left before the other side closes them."""

from aiohttp import web
from aiohttp.test_utils import TestServer

from router.models.session import upstream_session


async def test_a_connection_is_used_again() -> None:
    """By calls one after another."""
    peers: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, upstream_session() as session:
        for _ in range(2):
            async with session.get(server.make_url("/")) as reply:
                await reply.read()
    assert len(peers) == 2
    assert len(set(peers)) == 1
