"""Common parts of all pages: keys, headers, forms, errors."""

import asyncio
import html
import time
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


async def test_without_keys_no_sign_in_is_needed(tmp_path: Path) -> None:
    """The first page leads to the runs."""
    async with pages(tmp_path) as world, browsing(world) as session:
        await put(world.database, run("run-1", tenant="acme"))
        async with session.get("/") as response:
            text = await response.text()
        assert (response.status, response.url.path) == (200, "/runs")
        assert "Who directed Heat?" in text
        assert "Sign out" not in text


async def test_a_key_shows_its_tenant_s_runs(tmp_path: Path) -> None:
    """Without a key, a page leads to the sign-in, and from there to the requested page, even
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
async def test_signing_in_leads_to_this_site_only(tmp_path: Path, away: str) -> None:
    async with pages(tmp_path, "") as world, browsing(world) as session:
        form = {"key": world.keys[""], "csrf": await token(session, "/sign-in")}
        async with session.post(
            "/sign-in", params={"next": away}, data=form, allow_redirects=False
        ) as response:
            assert (response.status, response.headers["Location"]) == (303, "/")


@pytest.mark.parametrize(
    ("origin", "secure"), [(None, False), ("http://{}", False), ("https://{}", True)]
)
async def test_the_session_cookie_is_protected(
    tmp_path: Path, origin: str | None, secure: bool
) -> None:
    """No script reads it, no other site sends it, it contains no key, and behind TLS it is
    secure.
    """
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
        assert world.keys[""].split("_", 2)[2] not in cookie.value


async def test_sessions_end_with_their_key_and_by_signing_out(tmp_path: Path) -> None:
    async with pages(tmp_path, "", "acme") as world, browsing(world, world.keys["acme"]) as session:
        async with browsing(world, world.keys[""]) as operator_session:
            form = {"csrf": await token(operator_session, "/runs")}
            cookies = {cookie.key: cookie.value for cookie in operator_session.cookie_jar}
            async with operator_session.post("/sign-out", data=form) as response:
                assert response.url.path == "/sign-in"
            async with operator_session.get("/runs", cookies=cookies) as response:
                assert response.url.path == "/sign-in"
        key_id = world.keys["acme"].split("_")[1]
        await SQLAccounts(world.database).change_key(key_id, {"revoked_at": time.time()})
        async with asyncio.timeout(10):
            while response.status != 401:
                async with session.get("/runs", headers={"HX-Request": "true"}) as response:
                    pass
        assert response.headers["HX-Refresh"] == "true"


async def test_wrong_keys_are_limited(tmp_path: Path) -> None:
    """No page repeats them. After ten, further attempts wait, except with the right key."""
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


async def test_a_key_has_a_limited_number_of_sessions() -> None:
    """Its oldest session ends for a new one; sessions of other keys stay."""
    (key_text, key), (other_text, other_key) = (new_key(None, ASKS) for _ in range(2))
    sessions = Sessions(Access(KeptAccounts(key, other_key)))
    other_session = await sessions.open(other_text, "")
    own_sessions = [await sessions.open(key_text, "") for _ in range(21)]
    with pytest.raises(NoKey):
        await sessions.identify(own_sessions[0])
    for name, expected_key in (
        (other_session, other_key),
        (own_sessions[1], key),
        (own_sessions[-1], key),
    ):
        assert (await sessions.identify(name)).key_id == expected_key.key_id


async def test_a_form_without_its_token_is_refused(tmp_path: Path) -> None:
    """Tokens of another session, and requests from another site, are refused too."""
    async with pages(tmp_path, "") as world, browsing(world, world.keys[""]) as session:
        valid_token = await token(session, "/runs")
        async with browsing(world, world.keys[""]) as other_session:
            other_token = await token(other_session, "/runs")
        for form, headers in (
            ({}, {}),
            ({"csrf": ""}, {}),
            ({"csrf": other_token}, {}),
            ({"csrf": "é"}, {}),
            ({"csrf": valid_token}, {"Origin": "https://evil.example"}),
            ({"csrf": valid_token}, {"Origin": "null"}),
        ):
            async with session.post("/sign-out", data=form, headers=headers) as response:
                assert response.status == 403
        async with session.get("/runs") as response:
            assert response.url.path == "/runs"
        async with session.post("/sign-out", headers={"X-CSRF-Token": valid_token}) as response:
            assert response.url.path == "/sign-in"


@pytest.mark.parametrize(
    ("origin", "shown"), [("http://{}", True), ("https://evil.example", False), ("null", False)]
)
async def test_only_a_form_of_this_site_is_shown_again_as_it_was_filled_in(
    origin: str, shown: bool, tmp_path: Path
) -> None:
    """The form gets a valid token, with which another site's text could be submitted."""
    async with pages(tmp_path) as world, browsing(world) as session:
        form = {"csrf": "expired", "question": "Who paid?", "columns": "payer", "before": "run-1"}
        headers = {"Origin": origin.format(world.address)}
        async with session.post("/ask", data=form, headers=headers) as response:
            assert response.status == 403
            page = await response.text()
        assert all((text in page) == shown for text in ("Who paid?", "payer", "run-1"))


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
            (415, f"This content type is not supported; send the form as {ENCODING}."),
        ),
        (
            "text/plain",
            "csrf=x",
            (415, f"This content type is not supported; send the form as {ENCODING}."),
        ),
        (
            ENCODING,
            "&".join("a=b" for _ in range(17)),
            (400, "The form has more than 16 fields; send fewer."),
        ),
        (ENCODING, "question=" + "%41" * 50_000, (413, "body size")),
    ],
)
async def test_a_form_that_no_page_sends_is_refused(
    path: str, kind: str, body: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    """Its type and its size are checked before any key."""
    status, message = expected
    async with (
        pages(tmp_path, "") as world,
        browsing(world) as session,
        session.post(path, data=body, headers={"Content-Type": kind}) as response,
    ):
        assert (response.status, message in await response.text()) == (status, True)


async def test_each_response_has_its_security_headers(tmp_path: Path) -> None:
    """Scripts and styles are from this server alone, pages are in no frame, and nothing is
    cached. Errors and files have the headers too.
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
                headers = {name: response.headers[name] for name in HEADERS}
            assert headers == HEADERS | (
                {"Cache-Control": headers["Cache-Control"]} if path.endswith(".css") else {}
            )
            assert ("no-store" in headers["Cache-Control"]) is not path.endswith(".css")


async def test_a_page_that_does_not_exist_has_links_to_the_others(tmp_path: Path) -> None:
    """Without a key, there are none, because nothing else may be seen."""
    async with pages(tmp_path, "", "acme") as world, browsing(world) as session:
        async with session.get("/nothing") as response:
            text = await response.text()
        assert response.status == 404
        assert 'href="/runs"' not in text
        form = {"key": world.keys["acme"], "csrf": await token(session, "/sign-in")}
        await session.post("/sign-in", data=form)
        async with session.get("/nothing") as response:
            text = await response.text()
        assert response.status == 404
        assert 'href="/runs"' in text


async def test_errors_of_pages_are_pages(tmp_path: Path) -> None:
    """Errors of the API stay JSON."""
    async with pages(tmp_path) as world, browsing(world) as session:
        for path, status in (("/nothing", 404), ("/runs?kind=x", 400), ("/runs?page=x", 400)):
            async with session.get(path) as response:
                assert (response.status, response.content_type) == (status, "text/html")
        async with session.get("/v1/nothing") as response:
            assert (response.status, response.content_type) == (404, "application/json")
        async with session.put("/runs") as response:
            assert (response.status, response.content_type) == (405, "text/html")
        headers = {"Host": "evil.example"}
        async with session.get("/runs", headers=headers) as response:
            assert (response.status, response.content_type) == (421, "text/html")
