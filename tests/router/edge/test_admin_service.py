"""`AdminService` over real channels and a real store."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from rolegate.v1 import admin_service_pb2 as pb
from rolegate.v1.admin_service_pb2_grpc import AdminServiceStub
from rolegate.v1.run_service_pb2 import ListRunsRequest
from rolegate.v1.run_service_pb2_grpc import RunServiceStub
from structlog.testing import capture_logs

from router.access import CLOCK_SKEW_S, Key, Tenant
from router.edge.grpc.convert import WIRE_NAMES
from router.store import Database
from tests.router.edge.administered import Gateway, gateway, stored_key
from tests.router.edge.pages.world import browsing
from tests.router.edge.wire import refusal
from tests.router.store.conftest import home, postgres, url
from tests.router.store.entries import change

__all__ = ["home", "postgres", "url"]

METHODS = pb.DESCRIPTOR.services_by_name["AdminService"].methods
HOSTILE = ["", "a/b", "a b", "-a", "a" * 65, "<b>", "a\x00", "a\u202eb", "é", "../x", "shadow"]
"""Names that no tenant with keys may have."""


def bearer(text: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata in which a key is sent."""
    return (("authorization", f"Bearer {text}"),)


def made(tenant: pb.Tenant, *settings: str) -> dict[str, Any]:
    """Return the fields of a request that creates a tenant with these settings."""
    return {"tenant": tenant, "update_mask": FieldMask(paths=settings), "allow_missing": True}


class Operator:
    """The methods of a gateway, called with a key."""

    def __init__(self, where: Gateway, key: str) -> None:
        self.where = where
        self.key = key

    def __getattr__(self, method: str) -> Callable[..., Any]:
        stub: Any = AdminServiceStub(self.where.channel)
        request = getattr(pb, f"{method}Request")
        return lambda **fields: getattr(stub, method)(request(**fields), metadata=bearer(self.key))


@pytest.fixture
async def operator(url: str) -> AsyncIterator[Operator]:
    """The operator of a gateway whose store has one key."""
    text, _ = await stored_key(url)
    async with gateway(url) as where:
        yield Operator(where, text)


async def admits(where: Gateway, key: str) -> bool:
    """Return whether the gateway serves a request with this key."""
    stub: Any = RunServiceStub(where.channel)
    try:
        await stub.ListRuns(ListRunsRequest(), metadata=bearer(key))
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        return False
    return True


async def until_refused(where: Gateway, key: str) -> None:
    """Return when the gateway refuses the key; fail if it goes on admitting it."""
    async with asyncio.timeout(10):
        while await admits(where, key):
            pass


async def test_a_created_key_is_valid_at_once(operator: Operator) -> None:
    """Its text is in this response alone; the list has its tenant, scopes and label."""
    created = await operator.CreateKey(tenant="acme", label="[mine] <b>")
    assert created.key_text.startswith(f"rg_{created.key.key_id}_")
    assert (created.key.tenant, created.key.scopes, created.first) == ("acme", ["ask"], False)
    assert not created.key.HasField("revoke_time")
    assert await admits(operator.where, created.key_text)
    _, listed = (await operator.ListKeys()).keys
    assert listed == created.key
    assert created.key_text.split("_", 2)[2] not in str(await operator.ListKeys())
    assert "acme" in [tenant.name for tenant in (await operator.ListTenants()).tenants]


async def test_an_operator_s_key_has_every_scope_by_default(operator: Operator) -> None:
    created = await operator.CreateKey()
    assert not created.key.HasField("tenant")
    assert created.key.scopes == ["ask", "documents", "operate", "train"]


async def test_the_first_key_is_reported(tmp_path: Path) -> None:
    """Until then, everybody on this machine is the operator."""
    async with gateway(f"sqlite:///{tmp_path}/runs.db") as where:
        created = await Operator(where, "none").CreateKey()
        assert created.first
        assert not await admits(where, "none")
        assert await admits(where, created.key_text)


@pytest.mark.parametrize("method", [method.name for method in METHODS])
async def test_a_tenant_s_key_is_refused_by_every_method(method: str, tmp_path: Path) -> None:
    """Even one that lists the scope `operate`; and so is an operator's key without it."""
    store = f"sqlite:///{tmp_path}/runs.db"
    keys = [
        await stored_key(store, "acme", "ask", "documents", "train"),
        await stored_key(store, "acme", "ask", "operate"),
        await stored_key(store, None, "ask", "documents", "train"),
    ]
    async with gateway(store) as where:
        for text, _ in keys:
            denied = await refusal(getattr(Operator(where, text), method)())
            assert denied == ("PERMISSION_DENIED", "ACCESS_DENIED")
        unknown = await refusal(getattr(Operator(where, "rg_00_x"), method)())
        assert unknown == ("UNAUTHENTICATED", "NO_KEY")


async def test_a_revoked_key_is_refused_at_every_door_of_every_gateway(
    operator: Operator, url: str
) -> None:
    """The gateway that revokes it refuses the next request; the other one follows."""
    created = await operator.CreateKey(tenant="acme")
    key = created.key_text
    async with gateway(url) as other:
        async with browsing(_site(other), key) as session:
            assert await admits(other, key)
            revoked = await operator.RevokeKey(key_id=created.key.key_id)
            assert revoked.key.HasField("revoke_time") and not revoked.last
            assert not await admits(operator.where, key)
            await until_refused(other, key)
            async with session.get("/runs") as response:
                assert response.url.path == "/sign-in"
        for where in (operator.where, other):
            assert await _models(where, key) == 401
    again = await operator.RevokeKey(key_id=key)
    assert again.key == revoked.key


async def _models(where: Gateway, key: str) -> int:
    """Return the status of a request to the OpenAI-compatible server."""
    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{where.http}/v1/models", headers=headers) as response,
    ):
        return response.status


def _site(where: Gateway) -> Any:
    """Return the server of a gateway's pages."""

    class Addressed:
        address = where.http

    return Addressed()


async def test_revoking_the_last_valid_key_is_reported(operator: Operator) -> None:
    """The response arrives, although the operator's own key is revoked by it."""
    assert (await operator.RevokeKey(key_id=operator.key)).last
    assert await refusal(operator.ListKeys()) == ("UNAUTHENTICATED", "NO_KEY")


async def test_a_rotated_key_stays_valid_for_its_grace(operator: Operator) -> None:
    """The new key has the same tenant, scopes and label."""
    old = await operator.CreateKey(tenant="acme", scopes=["train", "ask"], label="mine")
    rotated = await operator.RotateKey(key_id=old.key.key_id, grace=timedelta(hours=1))
    new = rotated.key
    assert (new.tenant, new.scopes, new.label) == ("acme", ["ask", "train"], "mine")
    assert not new.HasField("revoke_time")
    left_s = rotated.replaced.revoke_time.ToNanoseconds() / 1e9 - time.time()
    assert 3500 < left_s <= 3600
    assert await admits(operator.where, old.key_text)
    assert await admits(operator.where, rotated.key_text)
    rotated = await operator.RotateKey(key_id=new.key_id)
    assert not await admits(operator.where, old.key_text.replace(old.key.key_id, new.key_id))
    assert await admits(operator.where, rotated.key_text)


async def test_a_rotation_makes_no_key_valid_for_longer(operator: Operator) -> None:
    """The new key expires with the old one, whose grace ends no later."""
    old = await operator.CreateKey(tenant="acme")
    end = datetime.now(UTC) + timedelta(minutes=10)
    await operator.ExpireKey(key_id=old.key.key_id, expire_time=end)
    rotated = await operator.RotateKey(key_id=old.key.key_id, grace=timedelta(days=1))
    ends = {key.revoke_time.ToDatetime(UTC) for key in (rotated.key, rotated.replaced)}
    assert all(abs(found - end) < timedelta(milliseconds=1) for found in ends)


async def test_an_expired_key_is_refused_by_every_gateway(operator: Operator, url: str) -> None:
    """It is not valid again, but another key may expire later or never."""
    short, long = [await operator.CreateKey(tenant="acme") for _ in range(2)]
    async with gateway(url) as other:
        assert await admits(other, short.key_text)
        soon = datetime.now(UTC) + timedelta(seconds=CLOCK_SKEW_S + 1)
        for key, end in ((short, soon), (long, soon + timedelta(days=1))):
            expiring = await operator.ExpireKey(key_id=key.key.key_id, expire_time=end)
            assert expiring.key.HasField("revoke_time")
        assert await admits(operator.where, short.key_text)
        for where in (operator.where, other):
            await until_refused(where, short.key_text)
            assert await admits(where, long.key_text)
    unlimited = await operator.ExpireKey(key_id=long.key.key_id)
    assert not unlimited.key.HasField("revoke_time")
    for method in (operator.ExpireKey, operator.RotateKey):
        refused = await refusal(method(key_id=short.key.key_id), "revoked or expired")
        assert refused == ("INVALID_ARGUMENT", "BAD_REQUEST")
    assert len((await operator.ListKeys()).keys) == 3


@pytest.mark.parametrize(
    ("method", "fields", "message"),
    [
        *(("CreateKey", {"tenant": name}, "tenant ") for name in HOSTILE),
        ("CreateKey", {"scopes": ["everything"]}, "scope 'everything': must be one of"),
        ("CreateKey", {"tenant": "acme", "scopes": ["operate"]}, "scope operate"),
        ("CreateKey", {"label": "x" * 201}, "has 201 characters; a label must have at most 200"),
        (
            "CreateKey",
            {"label": "a\nb"},
            "has 3 characters; a label must have at most 200, and all must",
        ),
        (
            "CreateKey",
            {"label": "a\x00b"},
            "has 3 characters; a label must have at most 200, and all must",
        ),
        ("ListKeys", {"page_token": "x"}, "page_token: is unknown"),
        ("ListAuditEvents", {"page_token": "x"}, "page_token: is unknown"),
        ("ListAuditEvents", {"page_size": -1}, "page_size is -1"),
        ("ListTenants", {"page_size": -1}, "page_size is -1"),
        (
            "ExpireKey",
            {"expire_time": datetime(2001, 1, 1, tzinfo=UTC)},
            "expire_time: the Unix time 978307200 is not in the future; give a time",
        ),
        ("ExpireKey", {"expire_time": Timestamp(seconds=2**62)}, "expire_time: "),
        ("RotateKey", {"grace": timedelta(seconds=-1)}, "grace: must be from 0"),
        ("RotateKey", {"grace": timedelta(days=367)}, "grace: must be from 0"),
        *(
            ("UpdateTenant", {"tenant": pb.Tenant(name=name), "allow_missing": True}, "tenant ")
            for name in HOSTILE
            if name != "shadow"
        ),
        ("UpdateTenant", {}, "tenant ''"),
        (
            "UpdateTenant",
            made(pb.Tenant(name="a", tokens_per_day=-1), "tokens_per_day"),
            "tokens_per_day: must be from 0 to 20000000000000000, got -1",
        ),
        (
            "UpdateKey",
            {"update_mask": FieldMask(paths=["label"])},
            "update_mask: 'label' is not a setting; use requests_per_minute, tokens",
        ),
        (
            "UpdateKey",
            {
                "key": pb.Key(tokens_per_minute=-1),
                "update_mask": FieldMask(paths=["tokens_per_minute"]),
            },
            "tokens_per_minute: must be from 0 to",
        ),
        (
            "UpdateTenant",
            made(pb.Tenant(name="a", indexes=["uploads/b"]), "indexes"),
            "index 'uploads/b': is not in the config; use one of default, shared.",
        ),
        (
            "UpdateTenant",
            {"tenant": pb.Tenant(name="default"), "update_mask": FieldMask(paths=["name"])},
            "update_mask: 'name' is not a setting; use tokens_per_day",
        ),
    ],
)
async def test_an_invalid_request_changes_nothing(
    method: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The message names the field."""
    store = f"sqlite:///{tmp_path}/runs.db"
    text, key = await stored_key(store)
    if method in ("ExpireKey", "RotateKey"):
        fields = {"key_id": key.key_id, **fields}
    async with gateway(store) as where:
        operator = Operator(where, text)
        refused = await refusal(getattr(operator, method)(**fields), message)
        assert refused == ("INVALID_ARGUMENT", "BAD_REQUEST")
        assert len((await operator.ListKeys()).keys) == 1
        assert [tenant.name for tenant in (await operator.ListTenants()).tenants] == ["default"]


@pytest.mark.parametrize("key_id", ["0badf00d", "", "rg_", "x" * 1000, "a\x00b", "'; drop"])
async def test_an_unknown_key_is_not_found(key_id: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    text, _ = await stored_key(store)
    async with gateway(store) as where:
        operator = Operator(where, text)
        for change in (
            operator.ExpireKey(key_id=key_id),
            operator.RotateKey(key_id=key_id),
            operator.RevokeKey(key_id=key_id),
            operator.UpdateKey(key=pb.Key(key_id=key_id)),
        ):
            refused = await refusal(change, "no key has the identifier")
            assert refused == ("NOT_FOUND", "KEY_NOT_FOUND")
        for change in (
            operator.GetTenant(name=key_id[:80]),
            operator.UpdateTenant(tenant=pb.Tenant(name="nobody")),
        ):
            refused = await refusal(change, "no tenant")
            assert refused == ("NOT_FOUND", "TENANT_NOT_FOUND")


async def test_the_secret_of_a_key_is_never_in_a_message(tmp_path: Path) -> None:
    """Not even if a whole key is sent where its identifier belongs."""
    store = f"sqlite:///{tmp_path}/runs.db"
    text, _ = await stored_key(store)
    async with gateway(store) as where:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Operator(where, text).RevokeKey(key_id="rg_0badf00d_topsecret")
    assert "topsecret" not in str(caught.value)


async def test_a_tenant_is_created_and_changed(operator: Operator) -> None:
    """Settings that the mask does not name are kept; a limit is removed by its absence."""
    wanted = pb.Tenant(name="acme", tokens_per_day=1000, nano_usd_per_month=7, redact=True)
    created = await operator.UpdateTenant(
        **made(wanted, "tokens_per_day", "nano_usd_per_month", "redact")
    )
    assert created.unpriced_models == ["m"]
    wanted.training = True
    wanted.indexes.append("default")
    assert created.tenant == wanted
    changes = pb.Tenant(name="acme", runs_in_flight=3, training=False, indexes=["shared"])
    paths = ["runs_in_flight", "training", "indexes", "tokens_per_day"]
    changed = await operator.UpdateTenant(tenant=changes, update_mask=FieldMask(paths=paths))
    assert changed.unpriced_models == []
    changes.nano_usd_per_month = 7
    changes.redact = True
    assert changed.tenant == changes
    shown = await operator.GetTenant(name="acme")
    assert shown.tenant == changes
    now = datetime.now(UTC)
    assert [spent.period for spent in shown.spent] == [f"{now:%Y-%m-%d}", f"{now:%Y-%m}"]
    bare = await operator.UpdateTenant(tenant=pb.Tenant(name="other"), allow_missing=True)
    assert bare.tenant == pb.Tenant(name="other", training=True, indexes=["default"])


async def test_a_key_is_limited(operator: Operator) -> None:
    """Limits that the mask does not name are kept; a limit is removed by its absence. A rotated key
    keeps its limits.
    """
    key = (await operator.CreateKey(tenant="acme")).key
    limits = pb.Key(key_id=key.key_id, requests_per_minute=3, tokens_per_minute=1000)
    names = ["requests_per_minute", "tokens_per_minute"]
    changed = await operator.UpdateKey(key=limits, update_mask=FieldMask(paths=names))
    key.requests_per_minute = 3
    key.tokens_per_minute = 1000
    assert changed.key == key
    assert (await operator.ListKeys()).keys[1] == key
    rotated = await operator.RotateKey(key_id=key.key_id)
    new = rotated.key
    assert (new.requests_per_minute, new.tokens_per_minute) == (3, 1000)
    none = pb.Key(key_id=new.key_id)
    mask = FieldMask(paths=["tokens_per_minute"])
    changed = await operator.UpdateKey(key=none, update_mask=mask)
    assert not changed.key.HasField("tokens_per_minute")
    assert changed.key.requests_per_minute == 3
    refused = await refusal(operator.UpdateKey(key=limits, update_mask=mask), "revoked or expired")
    assert refused == ("INVALID_ARGUMENT", "BAD_REQUEST")
    assert (await operator.ListAuditEvents(page_size=2)).events[1].act == "update_key"


async def test_changes_of_different_settings_on_two_gateways_are_both_kept(
    operator: Operator, url: str
) -> None:
    async with gateway(url) as where:
        other = Operator(where, operator.key)
        await operator.UpdateTenant(**made(pb.Tenant(name="acme")))
        calls = []
        for number in range(1, 6):
            for caller, name in ((operator, "tokens_per_day"), (other, "requests_per_day")):
                tenant = pb.Tenant(name="acme")
                setattr(tenant, name, number)
                mask = FieldMask(paths=[name])
                calls.append(caller.UpdateTenant(tenant=tenant, update_mask=mask))
        await asyncio.gather(*calls)
        tenant = (await operator.GetTenant(name="acme")).tenant
        assert tenant.tokens_per_day > 0 and tenant.requests_per_day > 0


async def test_lists_are_read_page_by_page(operator: Operator) -> None:
    """Each key and each tenant is on exactly one page."""
    for number in range(4):
        await operator.CreateKey(tenant=f"t{number}")
    for method, items in ((operator.ListKeys, "keys"), (operator.ListTenants, "tenants")):
        whole = getattr(await method(), items)
        token = ""
        pages: list[Any] = []
        while not pages or token:
            page = await method(page_size=2, page_token=token)
            token = page.next_page_token
            pages.append(getattr(page, items))
        assert [len(page) for page in pages] == [2, 2, 1]
        assert [item for page in pages for item in page] == list(whole)


async def test_every_act_is_in_the_log(operator: Operator) -> None:
    """With the key of who did it, the target and the door, and without any secret. What is refused
    is not logged as done.
    """
    with capture_logs() as logged:
        created = await operator.CreateKey(tenant="acme")
        key_id = created.key.key_id
        end = datetime.now(UTC) + timedelta(days=1)
        await operator.ExpireKey(key_id=key_id, expire_time=end)
        rotated = await operator.RotateKey(key_id=key_id, grace=timedelta(hours=1))
        await operator.RevokeKey(key_id=key_id)
        other = pb.Tenant(name="other", tokens_per_day=5)
        await operator.UpdateTenant(**made(other, "tokens_per_day"))
        await refusal(operator.UpdateTenant(tenant=pb.Tenant(name="absent")))
        await refusal(operator.ExpireKey(key_id=key_id))
        await operator.ListKeys()
    acts = [entry for entry in logged if entry["event"].startswith("admin.")]
    assert [(act["event"], act["target"]) for act in acts] == [
        ("admin.create_key", key_id),
        ("admin.expire_key", key_id),
        ("admin.rotate_key", key_id),
        ("admin.revoke_key", key_id),
        ("admin.update_tenant", "other"),
    ]
    assert {(act["by"], act["door"]) for act in acts} == {(operator.key.split("_")[1], "grpc")}
    assert acts[2]["new_key"] == rotated.key.key_id
    assert acts[4]["tokens_per_day"] == 5
    secrets = [key.split("_", 2)[2] for key in (created.key_text, rotated.key_text)]
    assert not any(secret in str(logged) for secret in secrets)


async def test_every_act_is_in_the_audit_log(operator: Operator, url: str) -> None:
    """With the operator's key, the tenant, time, address and values; newest first, at every
    gateway. What is refused has its error; what was never begun is not there.
    """
    began = time.time()
    created = await operator.CreateKey(tenant="acme", label="mine")
    key_id = created.key.key_id
    await operator.RotateKey(key_id=key_id)
    assert await refusal(operator.ExpireKey(key_id=key_id)) == ("INVALID_ARGUMENT", "BAD_REQUEST")
    other = pb.Tenant(name="other", tokens_per_day=5)
    await operator.UpdateTenant(**made(other, "tokens_per_day"))
    await refusal(operator.RevokeKey(key_id="00000000"))
    async with gateway(url) as second:
        events = (await Operator(second, operator.key).ListAuditEvents()).events
    assert [(event.act, event.target, event.tenant, event.result) for event in events] == [
        ("update_tenant", "other", "other", "done"),
        ("expire_key", key_id, "acme", "BadRequest"),
        ("rotate_key", key_id, "acme", "done"),
        ("create_key", key_id, "acme", "done"),
    ]
    assert {event.key_id for event in events} == {operator.key.split("_")[1]}
    assert {event.door for event in events} == {"grpc"}
    assert all(event.address.startswith("ipv4:127.0.0.1:") for event in events)
    assert all(began <= event.time.ToNanoseconds() / 1e9 <= time.time() for event in events)
    assert json.loads(events[0].details_json) == {"tokens_per_day": 5}
    assert created.key_text.split("_", 2)[2] not in str(events)


async def test_the_audit_log_is_read_page_by_page(operator: Operator) -> None:
    """Acts during the reading move nothing to another page."""
    for number in range(4):
        await operator.CreateKey(tenant=f"t{number}")
    first = await operator.ListAuditEvents(page_size=3)
    await operator.CreateKey(tenant="late")
    rest = await operator.ListAuditEvents(page_size=3, page_token=first.next_page_token)
    pages = [[event.tenant for event in page.events] for page in (first, rest)]
    assert pages == [["t3", "t2", "t1"], ["t0"]]
    assert rest.next_page_token == ""


async def test_an_act_that_cannot_be_noted_is_not_done(operator: Operator, url: str) -> None:
    """Both are in one transaction."""
    database = await Database.open(url)
    await change(database, "DROP TABLE audit")
    await database.close()
    failed = ("UNAVAILABLE", "STORE_FAILED")
    assert await refusal(operator.CreateKey(tenant="acme")) == failed
    assert await refusal(operator.RevokeKey(key_id=operator.key)) == failed
    assert await refusal(operator.UpdateTenant(**made(pb.Tenant(name="acme")))) == failed
    (key,) = (await operator.ListKeys()).keys
    assert not key.HasField("revoke_time")
    assert [tenant.name for tenant in (await operator.ListTenants()).tenants] == ["default"]


async def test_acts_at_two_gateways_at_the_same_time_are_all_noted(
    operator: Operator, url: str
) -> None:
    """Each event has its own number."""
    async with gateway(url) as second:
        both = (operator, Operator(second, operator.key))
        await asyncio.gather(*(each.CreateKey(tenant="t") for each in both for _ in range(10)))
    events = (await operator.ListAuditEvents()).events
    assert [event.number for event in events] == list(range(20, 0, -1))


async def test_no_file_of_the_store_has_a_secret(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    text, _ = await stored_key(store)
    async with gateway(store) as where:
        operator = Operator(where, text)
        created = await operator.CreateKey(tenant="acme")
        rotated = await operator.RotateKey(key_id=created.key.key_id)
    files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    for key in (created.key_text, rotated.key_text):
        assert not any(key.split("_", 2)[2].encode() in content for content in files)


def test_the_wire_has_every_setting_of_a_tenant() -> None:
    """And every field of a key except the hash of its secret."""
    assert set(pb.Tenant.DESCRIPTOR.fields_by_name) == set(Tenant.__struct_fields__)
    names = {WIRE_NAMES.get(name, name) for name in pb.Key.DESCRIPTOR.fields_by_name}
    assert names == {*Key.__struct_fields__} - {"secret_sha256"}
