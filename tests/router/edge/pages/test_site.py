"""What stands around all pages: keys, headers, forms, errors."""

import asyncio
import html
from pathlib import Path

import pytest
from yarl import URL

from router.access import Access, new_key
from router.edge.pages.sessions import Sessions
from router.edge.pages.site import HEADERS
from router.errors import NoKey
from router.store import SQLAccounts
from tests.router.accounts import KeptAccounts
from tests.router.edge.pages.world import ASKS, browsing, pages, token
from tests.router.edge.stalls import multipart
from tests.router.store.stored import put, run


async def test_without_keys_nobody_signs_in(tmp_path: Path) -> None:
    """The first page leads to the runs."""
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, run("run-1", tenant="acme"))
        async with session.get("/") as response:
            text = await response.text()
        assert (response.status, response.url.path) == (200, "/runs")
        assert "Who directed Heat?" in text
        assert "Sign out" not in text


async def test_a_key_shows_its_tenant_s_runs(tmp_path: Path) -> None:
    """Without one, a page leads to the sign-in, and from there to where one wanted to go, also
    after a wrong key.
    """
    async with pages(tmp_path, "", "acme", "other") as world:
        await put(
            world.database,
            run("run-1", tenant="acme"),
            run("run-2", tenant="other", request="Who else?"),
        )
        async with browsing(world) as session:
            async with session.get("/runs?kind=answer") as response:
                assert (response.url.path, response.url.query["next"]) == (
                    "/sign-in",
                    "/runs?kind=answer",
                )
                page = await response.text()
                assert "Who" not in page
            action = html.unescape(page.partition('action="')[2].partition('"')[0])
            form = {"key": "rg_wrong", "csrf": await token(session, "/sign-in")}
            async with session.post(URL(action, encoded=True), data=form) as response:
                page = await response.text()
                assert response.status == 401
            action = html.unescape(page.partition('action="')[2].partition('"')[0])
            form = {"key": f" {world.keys['acme']}\n", "csrf": await token(session, "/sign-in")}
            async with session.post(URL(action, encoded=True), data=form) as response:
                text = await response.text()
                assert response.url.path_qs == "/runs?kind=answer"
            assert "Who directed Heat?" in text
            assert "Who else?" not in text
        async with browsing(world, world.keys[""]) as session, session.get("/runs") as response:
            text = await response.text()
            assert "Who directed Heat?" in text
            assert "Who else?" in text


@pytest.mark.parametrize(
    "away", ["//evil.example", "https://evil.example", "/\\evil.example", "", "/\n/evil"]
)
async def test_signing_in_leads_nowhere_else(tmp_path: Path, away: str) -> None:
    async with pages(tmp_path, "") as world, browsing(world) as session:
        form = {"key": world.keys[""], "csrf": await token(session, "/sign-in")}
        async with session.post(
            "/sign-in", params={"next": away}, data=form, allow_redirects=False
        ) as response:
            assert (response.status, response.headers["Location"]) == (303, "/")


@pytest.mark.parametrize(
    ("origin", "secure"), [(None, False), ("http://{}", False), ("https://{}", True)]
)
async def test_the_cookie(tmp_path: Path, origin: str | None, secure: bool) -> None:
    """No script reads it, no other site sends it, it is no key, and behind TLS it stays there."""
    async with pages(tmp_path, "") as world, browsing(world) as session:
        form = {"key": world.keys[""], "csrf": await token(session, "/sign-in")}
        headers = {"Origin": origin.format(world.address)} if origin else {}
        async with session.post(
            "/sign-in", data=form, headers=headers, allow_redirects=False
        ) as response:
            cookie = response.cookies["rolegate_session"]
        assert (cookie["httponly"], cookie["samesite"], bool(cookie["secure"])) == (
            True,
            "Strict",
            secure,
        )
        assert int(cookie["max-age"]) == 12 * 3600
        assert world.keys[""] not in cookie.value
        assert world.keys[""].rsplit("_", maxsplit=1)[1] not in cookie.value


async def test_sessions_end_with_their_key_and_by_signing_out(tmp_path: Path) -> None:
    async with pages(tmp_path, "", "acme") as world, browsing(world, world.keys["acme"]) as session:
        async with browsing(world, world.keys[""]) as other:
            form = {"csrf": await token(other, "/runs")}
            before = {cookie.key: cookie.value for cookie in other.cookie_jar}
            async with other.post("/sign-out", data=form) as response:
                assert response.url.path == "/sign-in"
            async with other.get("/runs", cookies=before) as response:
                assert response.url.path == "/sign-in"
        await SQLAccounts(world.database).revoke_key(world.keys["acme"].split("_")[1])
        async with asyncio.timeout(10):
            while response.status != 401:
                async with session.get("/runs", headers={"HX-Request": "true"}) as response:
                    pass
        assert response.headers["HX-Refresh"] == "true"


async def test_wrong_keys(tmp_path: Path) -> None:
    """Nothing repeats them, and after ten of them one waits, but not with the right one."""
    async with pages(tmp_path, "") as world, browsing(world) as session:
        form = {"key": "rg_00000000_wrong", "csrf": await token(session, "/sign-in")}
        for status, wait in [(401, None)] * 10 + [(429, "60")] * 2:
            async with session.post("/sign-in", data=form) as response:
                assert (response.status, response.headers.get("Retry-After")) == (status, wait)
                assert "wrong" not in (await response.text()).replace('class="wrong"', "").replace(
                    "wrong keys", ""
                )
        async with session.post("/sign-in", data={**form, "key": world.keys[""]}) as response:
            assert (response.status, response.url.path) == (200, "/runs")


async def test_a_key_has_some_sessions() -> None:
    """Its oldest ends for another one; those of other keys stay."""
    (sent, key), (others, other) = (new_key(None, ASKS) for _ in range(2))
    sessions = Sessions(Access(KeptAccounts(key, other)))
    foreign = await sessions.open(others, "")
    own = [await sessions.open(sent, "") for _ in range(21)]
    with pytest.raises(NoKey):
        await sessions.identify(own[0])
    for name, one in ((foreign, other), (own[1], key), (own[-1], key)):
        assert (await sessions.identify(name)).key_id == one.key_id


async def test_forms_of_others_are_refused(tmp_path: Path) -> None:
    """Without a token, with another session's, and from a page of elsewhere, whatever it has."""
    async with pages(tmp_path, "") as world, browsing(world, world.keys[""]) as session:
        good = await token(session, "/runs")
        async with browsing(world, world.keys[""]) as other:
            foreign = await token(other, "/runs")
        for form, headers in (
            ({}, {}),
            ({"csrf": ""}, {}),
            ({"csrf": foreign}, {}),
            ({"csrf": "é"}, {}),
            ({"csrf": good}, {"Origin": "https://evil.example"}),
            ({"csrf": good}, {"Origin": "null"}),
        ):
            async with session.post("/sign-out", data=form, headers=headers) as response:
                assert response.status == 403
        async with session.get("/runs") as response:
            assert response.url.path == "/runs"
        async with session.post("/sign-out", headers={"X-CSRF-Token": good}) as response:
            assert response.url.path == "/sign-in"


ENCODING = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    "path", ["/sign-in", "/sign-out", "/ask", "/runs/run-1/feedback", "/versions/promote"]
)
@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (
            "multipart/form-data; boundary=x",
            multipart(1000),
            (415, f"Send the form as {ENCODING}."),
        ),
        ("text/plain", "csrf=x", (415, f"Send the form as {ENCODING}.")),
        (ENCODING, "&".join("a=b" for _ in range(17)), (400, "The form has more than 16 fields.")),
        (ENCODING, "question=" + "%41" * 50_000, (413, "body size")),
    ],
)
async def test_forms_that_no_page_sends(
    path: str, kind: str, body: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    """They are refused by their kind and their size, before anybody has to show a key."""
    status, said = expected
    async with (
        pages(tmp_path, "") as world,
        browsing(world) as session,
        session.post(path, data=body, headers={"Content-Type": kind}) as response,
    ):
        assert (response.status, said in await response.text()) == (status, True)


async def test_each_response_says_what_a_page_may_do(tmp_path: Path) -> None:
    """Scripts and styles of this server alone, no frame, nothing kept; of errors and of what is
    no page, too.
    """
    paths = (
        "/",
        "/runs",
        "/sign-in",
        "/nothing",
        "/static/pages.css",
        "/static/nothing",
        "/runs?kind=x",
        "/v1/models",
    )
    async with pages(tmp_path) as world, browsing(world) as session:
        for path in paths:
            async with session.get(path, allow_redirects=False) as response:
                told = {name: response.headers[name] for name in HEADERS}
            assert told == HEADERS | (
                {"Cache-Control": told["Cache-Control"]} if path.endswith(".css") else {}
            )
            assert ("no-store" in told["Cache-Control"]) is not path.endswith(".css")


async def test_errors_are_pages(tmp_path: Path) -> None:
    """And the API's stay what they were."""
    async with pages(tmp_path) as world, browsing(world) as session:
        for path, status in (("/nothing", 404), ("/runs?kind=x", 400), ("/runs?page=x", 400)):
            async with session.get(path) as response:
                assert (response.status, response.content_type) == (status, "text/html")
        async with session.get("/runs?min_cost=1e12&max_cost=-1e12") as response:
            assert response.status == 200
        async with session.get("/v1/nothing") as response:
            assert (response.status, response.content_type) == (404, "application/json")
        async with session.put("/runs") as response:
            assert (response.status, response.content_type) == (405, "text/html")
        headers = {"Host": "evil.example"}
        async with session.get("/runs", headers=headers) as response:
            assert (response.status, response.content_type) == (421, "text/html")
