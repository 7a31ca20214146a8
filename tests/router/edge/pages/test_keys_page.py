"""The page with keys and tenants, over a real store."""

import html
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rolegate.v1 import admin_service_pb2 as pb
from rolegate.v1.admin_service_pb2_grpc import AdminServiceStub
from structlog.testing import capture_logs

from tests.router.edge.administered import Gateway, gateway, stored_key
from tests.router.edge.pages.world import browsing, token

FORMS = ("create", "rotate", "expire", "limit", "revoke", "update")
HOSTILE = '<script>alert("x")</script> \u202e ’'


@dataclass
class Site:
    """The server of a gateway's pages."""

    address: str


class Browser:
    """An operator who has signed in."""

    def __init__(self, where: Gateway, key: str, session: aiohttp.ClientSession) -> None:
        self.where = where
        self.key = key
        self.key_id = key.split("_")[1]
        self.session = session

    async def read(self) -> str:
        """Return the page as text."""
        async with self.session.get("/keys") as response:
            assert response.status == 200
            return html.unescape(await response.text())

    async def send(self, form: str, status: int = 200, **fields: str) -> str:
        """Send a form, and return the page that follows."""
        fields["csrf"] = await token(self.session, "/keys")
        async with self.session.post(f"/keys/{form}", data=fields) as response:
            assert response.status == status
            return html.unescape(await response.text())

    async def created(self, **fields: str) -> str:
        """Create a key on the page, and return its text."""
        return shown_once(await self.send("create", 200, **fields))

    async def keys(self) -> dict[str, Any]:
        """Return the keys by their identifiers, as `AdminService` lists them."""
        stub: Any = AdminServiceStub(self.where.channel)
        metadata = (("authorization", f"Bearer {self.key}"),)
        listed = await stub.ListKeys(pb.ListKeysRequest(), metadata=metadata)
        return {key.key_id: key for key in listed.keys}


def shown_once(page: str) -> str:
    """Return the text of the only new key on a page."""
    (text,) = re.findall(r"rg_[0-9a-f]{8}_[\w-]+", page)
    return str(text)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    store = f"sqlite:///{tmp_path}/runs.db"
    text, _ = await stored_key(store)
    async with gateway(store) as where, browsing(Site(where.http), text) as session:
        yield Browser(where, text, session)


async def test_a_new_key_is_shown_once(browser: Browser) -> None:
    """Its response is not cached, and the page later has the key without its secret."""
    text = await browser.created(tenant="acme", label="mine", train="on", ask="on")
    key = (await browser.keys())[text.split("_")[1]]
    assert (key.tenant, key.scopes, key.label) == ("acme", ["ask", "train"], "mine")
    page = await browser.read()
    assert key.key_id in page and "mine" in page and "rg_" not in page
    async with (
        browsing(Site(browser.where.http), text) as session,
        session.get("/runs") as response,
    ):
        assert (response.status, response.headers["Cache-Control"]) == (200, "no-store")


async def test_keys_are_rotated_expired_and_revoked(browser: Browser) -> None:
    old = (await browser.created(tenant="acme")).split("_")[1]
    page = await browser.send("rotate", key_id=old, hours="24")
    new = shown_once(page).split("_")[1]
    assert f"It replaces {old}" in re.sub("<[^>]*>", "", page)
    keys = await browser.keys()
    ends = keys[old].revoke_time.ToSeconds() - keys[new].create_time.ToSeconds()
    assert ends == pytest.approx(24 * 3600, abs=60)
    await browser.send("expire", key_id=new, hours="48")
    assert (await browser.keys())[new].HasField("revoke_time")
    await browser.send("expire", key_id=new, hours="")
    assert not (await browser.keys())[new].HasField("revoke_time")
    page = await browser.send("revoke", key_id=new)
    assert (await browser.keys())[new].HasField("revoke_time")
    assert f"Revoke {new}" not in page and f"Revoke {old}" in page


async def test_a_key_is_limited(browser: Browser) -> None:
    """The form has the stored values; an empty field removes a limit."""
    key_id = (await browser.created(tenant="acme")).split("_")[1]
    await browser.send("limit", key_id=key_id, requests_per_minute="60", tokens_per_minute="9000")
    page = await browser.read()
    assert "requests per minute 60, tokens per minute 9,000" in page and 'value="9000"' in page
    await browser.send("limit", key_id=key_id, requests_per_minute="60")
    assert not (await browser.keys())[key_id].HasField("tokens_per_minute")


async def test_a_tenant_is_created_and_changed(browser: Browser) -> None:
    """The form has the stored values; an empty field removes a limit."""
    await browser.send(
        "update", name="acme", tokens_per_day="1000", nano_usd_per_month="1234.5", redact="on"
    )
    page = await browser.read()
    assert 'value="1000"' in page and 'value="1234.50"' in page
    assert "tokens per day 1,000, dollars per month 1,234.50" in page
    assert "stored without texts, not trained on" in page
    await browser.send("update", name="acme", training="on", indexes="shared, default")
    page = await browser.read()
    assert "1,234.50" not in page and "default, shared" in page


async def test_a_form_that_asks_for_the_impossible_changes_nothing(browser: Browser) -> None:
    """The error page says which field is wrong."""
    before = await browser.keys()
    for form, fields, message in (
        ("create", {"tenant": HOSTILE}, "must be 1 to 64 letters"),
        ("create", {"tenant": "acme", "operate": "on"}, "scope operate: only keys without"),
        ("create", {"label": "x" * 201}, "has 201 characters; a label must have at most 200"),
        ("create", {"label": HOSTILE}, "at most 200, and all must be printable"),
        ("rotate", {"key_id": browser.key_id, "hours": "-1"}, "hours: must be a whole number"),
        ("rotate", {"key_id": browser.key_id, "hours": "9" * 9}, "grace: must be from 0"),
        ("expire", {"key_id": browser.key_id, "hours": "0"}, "is not in the future"),
        ("expire", {"key_id": browser.key_id, "hours": "9" * 15}, "is after the year 9999"),
        ("limit", {"key_id": browser.key_id, "tokens_per_minute": "x"}, "tokens_per_minute: must"),
        ("update", {"name": "a/b"}, "must be 1 to 64 letters"),
        ("update", {"name": "acme", "tokens_per_day": "much"}, "tokens_per_day: must be"),
        ("update", {"name": "acme", "nano_usd_per_day": "nan"}, "nano_usd_per_day: must be"),
        (
            "update",
            {"name": "acme", "indexes": "other"},
            "index 'other': is not in the config; use one of",
        ),
    ):
        assert message in await browser.send(form, 400, **fields)
    for form in ("rotate", "expire", "limit", "revoke"):
        page = await browser.send(form, 404, key_id=f"rg_0badf00d_{HOSTILE}", hours="1")
        assert "no key has the identifier" in page and "alert(" not in page
    assert await browser.keys() == before


async def test_a_label_is_shown_as_text(browser: Browser) -> None:
    await browser.created(label="<script>alert(1)</script>")
    async with browser.session.get("/keys") as response:
        page = await response.text()
    assert "&lt;script&gt;alert(1)" in page and "<script>alert" not in page


@pytest.mark.parametrize(
    ("tenant", "scopes"), [("acme", ("ask", "operate")), (None, ("ask", "train"))]
)
async def test_the_page_is_for_operators_alone(
    tenant: str | None, scopes: tuple[str, ...], tmp_path: Path
) -> None:
    """Others get neither the page nor its forms, and no link to it."""
    store = f"sqlite:///{tmp_path}/runs.db"
    text, key = await stored_key(store, tenant, *scopes)
    async with gateway(store) as where, browsing(Site(where.http), text) as session:
        async with session.get("/runs") as response:
            assert 'href="/keys"' not in await response.text()
        async with session.get("/keys") as response:
            assert response.status == 403
        csrf = await token(session, "/runs")
        for form in FORMS:
            fields = {"csrf": csrf, "key_id": key.key_id, "name": "acme"}
            async with session.post(f"/keys/{form}", data=fields) as response:
                assert response.status == 403
                assert "rg_" not in await response.text()


async def test_a_form_without_its_token_is_refused(browser: Browser) -> None:
    before = await browser.keys()
    for form in FORMS:
        fields = {"key_id": browser.key_id, "name": "acme", "csrf": "0" * 64}
        async with browser.session.post(f"/keys/{form}", data=fields) as response:
            assert response.status == 403
    assert await browser.keys() == before


async def test_an_operator_may_revoke_the_own_key(browser: Browser) -> None:
    """The page says so before, and leads to the sign-in after."""
    assert "It is the key with which you are signed in" in await browser.read()
    page = await browser.send("revoke", key_id=browser.key_id)
    assert "Sign in" in page
    async with browser.session.get("/keys") as response:
        assert response.url.path == "/sign-in"


async def test_every_act_is_in_the_log(browser: Browser) -> None:
    """With the operator's key, the door and the target, and without any secret."""
    with capture_logs() as logged:
        text = await browser.created(tenant="acme")
        key_id = text.split("_")[1]
        await browser.send("expire", key_id=key_id, hours="1")
        await browser.send("revoke", key_id=key_id)
        await browser.send("update", name="acme", tokens_per_day="5")
    acts = [entry for entry in logged if entry["event"].startswith("admin.")]
    assert [(act["event"], act["target"]) for act in acts] == [
        ("admin.create_key", key_id),
        ("admin.expire_key", key_id),
        ("admin.revoke_key", key_id),
        ("admin.update_tenant", "acme"),
    ]
    assert {(act["by"], act["door"]) for act in acts} == {(browser.key_id, "page")}
    assert text.split("_", 2)[2] not in str(logged)


async def test_the_page_has_the_audit_log(browser: Browser) -> None:
    """With the label of the operator's key, and without any secret."""
    text = await browser.created(tenant="acme")
    await browser.send("revoke", key_id=text.split("_")[1])
    page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", await browser.read()))
    log = page.partition("Audit log")[2]
    assert "The last 2 administrative acts" in log
    assert log.index("revoke key") < log.index("create key")
    assert f"{browser.key_id} first page 127.0.0.1 done" in log
    assert text.split("_", 2)[2] not in page


async def test_every_field_has_a_label_and_every_table_a_caption(browser: Browser) -> None:
    await browser.created(tenant="acme")
    page = await browser.read()
    inputs = re.findall(r"<input (?![^>]*hidden)", page)
    labelled = re.findall(r"<label>[^<]*<input", page)
    assert len(inputs) == len(labelled) > 20
    assert page.count("<table") == page.count("<caption") == 3
    assert page.count("<th ") == page.count('<th scope="col"')
