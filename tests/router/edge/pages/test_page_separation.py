"""No page shows data of another tenant, and texts of models stay text."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from yarl import URL

from router.access import Tenant
from router.store import SQLAccounts, SQLArchive
from router.trace.run import Feedback
from tests.router.edge.pages.traffic import HOSTILE, fill
from tests.router.edge.pages.world import World, browsing, pages, token
from tests.router.store.stored import ANSWER, call, put, run

MARK = "Rumpelstiltskin"
"""A mark in all data of the first tenant, and in nothing else."""
OPEN = {"/static/{name}", "/sign-in", "/sign-out", "/", "/ask"}
"""Paths that show no tenant's data."""
ADDRESSES: dict[tuple[str, str], list[str]] = {
    ("GET", "/runs"): [
        "/runs",
        f"/runs?text={MARK}",
        "/runs?tenant=first",
        "/runs?tenant=second",
        "/runs?kind=shadow",
        f"/runs?executor_version={MARK}",
        "/runs?feedback=any",
        "/runs?page={page}",
        "/runs?status=running",
        "/runs?seen=x",
    ],
    ("GET", "/usage"): [
        *(f"/usage?by={by}" for by in ("role", "model", "tenant", "executor_version")),
        *(f"/usage?span={span}" for span in ("day", "week", "month", "year")),
        "/usage?tenant=first",
        "/usage?tenant=first&by=model",
    ],
    ("GET", "/versions"): ["/versions"],
    ("POST", "/versions/promote"): ["/versions/promote"],
    ("POST", "/versions/roll-back"): ["/versions/roll-back"],
}
"""Addresses of each route that shows or changes something, as the other tenant may request them."""
OPERATOR_ONLY = {"/versions", "/versions/promote", "/versions/roll-back"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Pages whose first tenant has runs and limits, and whose second tenant has a run."""
    async with pages(tmp_path, "", "first", "second") as world:
        await fill(world.database, ("first",))
        marked = call(
            "run-m",
            tenant="first",
            model=MARK,
            executor_version=MARK,
            started_at=world.now,
            nano_usd=1,
        )
        answer = msgspec.structs.replace(ANSWER, answer=MARK)
        await put(
            world.database,
            run("run-m", world.now, [marked], tenant="first", request=MARK, result=answer),
            run(
                f"run-{MARK}",
                world.now,
                tenant="first",
                request=MARK,
                result=None,
                status="running",
            ),
            run("run-second", world.now, tenant="second", request="Who am I?"),
        )
        await SQLArchive(world.database).add_feedback(
            Feedback("run-m", accepted=True, comment=MARK, tenant="first")
        )
        await SQLAccounts(world.database).set_tenant(Tenant("first", tokens_per_day=4242))
        yield world


async def test_every_route_is_tested_here(world: World) -> None:
    """A new page needs its addresses above. Pages of a run are tested in
    `test_nothing_gets_out`.
    """
    routes = [
        route for route in world.site.routes if route.path not in OPEN and "{run}" not in route.path
    ]
    methods_and_paths = {(route.method, route.path) for route in routes}
    assert methods_and_paths == set(ADDRESSES)


async def shown(
    session: aiohttp.ClientSession, method: str, path: str, *, part: bool
) -> tuple[int, str]:
    """Return status and text of an address; a form has the session's own token."""
    headers = {"HX-Request": "true"} if part else {}
    form = (
        {"csrf": await token(session, "/runs"), "version": "executor-000002"}
        if method == "POST"
        else None
    )
    address = URL(path.format(page="kstBWvTyYAAAAKJ6eg=="), encoded=True)
    async with session.request(
        method, address, headers=headers, data=form, allow_redirects=False
    ) as response:
        return response.status, await response.text()


@pytest.mark.parametrize("part", [False, True])
async def test_a_tenant_sees_no_data_of_another_on_any_page(world: World, part: bool) -> None:
    """It sees its own data, and the operator sees all, so the marks are effective."""
    texts = dict[str, str]()
    for reader in ("second", "first", ""):
        async with browsing(world, world.keys[reader]) as session:
            for (method, route), addresses in ADDRESSES.items():
                for path in addresses if method == "GET" or reader else ():
                    status, text = await shown(session, method, path, part=part)
                    texts[reader] = texts.get(reader, "") + text
                    assert status == (403 if route in OPERATOR_ONLY and reader else 200), path
                    if reader == "second":
                        for sign in (
                            MARK,
                            "run-m",
                            "4,242",
                            "executor-00000",
                            "first</td>",
                            "backbone-large",
                        ):
                            assert sign not in text.replace(f'value="{MARK}"', "").replace(
                                f"text={MARK}", ""
                            ).replace(f"executor_version={MARK}", ""), path
    assert "Who am I?" in texts["second"]
    for reader in ("first", ""):
        assert texts[reader].count(MARK) > 5
        assert "backbone-large" in texts[reader]
        assert "4,242" in texts[reader]
        assert ("Who am I?" in texts[reader]) is (reader == "")


async def test_texts_of_models_and_addresses_stay_text(world: World) -> None:
    """No tag takes effect, and no control character changes the direction of writing."""
    async with browsing(world, world.keys[""]) as session:
        for path, name in [
            *(("/runs", name) for name in ("", "text", "kind", "page", "tenant")),
            *(("/usage", name) for name in ("tenant", "span")),
            *(("/versions", ""), ("/sign-in", "next"), (f"/{HOSTILE.replace('/', '')}", "")),
        ]:
            address = (
                URL(f"http://{world.address}")
                .with_path(path)
                .with_query({name: HOSTILE} if name else {})
            )
            async with session.get(address) as response:
                text = await response.text()
            assert "<script>alert" not in text
            assert "<img" not in text
            assert not set("\u202e\u202c\u2066\x1b") & set(text)
            assert "49" not in text.split("<main")[1].split("7*7")[-1][:9]
            if path == "/versions" or (path, name) in (("/runs", ""), ("/runs", "text")):
                assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
                assert "\\u202egnorw" in text


async def test_a_version_is_promoted_and_rolled_back(world: World) -> None:
    """The operator does so with our own form."""
    async with browsing(world, world.keys[""]) as session:
        form = {"csrf": await token(session, "/versions"), "version": "executor-000002"}
        for path, state in (
            ("/versions/promote", "active"),
            ("/versions/roll-back", "rolled_back"),
        ):
            async with session.post(path, data={**form, "csrf": "no"}) as response:
                assert response.status == 403
            async with session.post(path, data=form) as response:
                assert response.url.path == "/versions"
            versions = {
                version.version: version.state for version, _ in await world.versions.list()
            }
            assert versions["executor-000002"] == state
        async with session.post(
            "/versions/promote", data={**form, "version": "nobody"}
        ) as response:
            assert response.status == 400
