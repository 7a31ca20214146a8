"""Each tenant has uploaded a document of the same name: nothing of it reaches another tenant, at
any door, by any RPC, on any page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import grpc
import pytest
from google.protobuf.json_format import MessageToJson
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1.document_service_pb2 import DESCRIPTOR
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from serving.retrieval.manifest import MANIFEST
from tests.router.edge.pages.world import browsing, token
from tests.serving.test_indexes import ABSENT, DOORS, QUESTION, Address, Caller, _page, tried
from tests.serving.uploads.world import DEFAULT_WORD, World, archive, world_of

WORDS = {"acme": "Amaranth", "beta": "Belladonna", "operator": "Oleander"}
"""The secret word in the document of each caller; the operator's is of the tenant `default`."""
MARK = "only-{}.pdf"
"""Name of a document that each caller has uploaded, and that cannot be read."""


def words(text: str) -> set[str]:
    """Return the callers whose secret words, or names of documents, are in a text."""
    secrets = {"default": (DEFAULT_WORD,)} | {
        name: (word, MARK.format(name)) for name, word in WORDS.items()
    }
    return {name for name, marks in secrets.items() if any(mark in text for mark in marks)}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path) as world, world.running():
        for name, word in WORDS.items():
            async with world.client(name) as client:
                await client.upload(b"%PDF-1.7 damaged", MARK.format(name))
                await client.upload(archive(word), "archive.txt", wait=True)
        yield world


async def _open_documents(caller: Caller, index: tuple[str, ...]) -> str:
    """Open the document of the same name by every name that it might have."""
    texts = ""
    async with grpc.aio.insecure_channel(caller.address) as channel:
        for place in ("", "uploads:", *(f"uploads/{name}:" for name in (*WORDS, "default"))):
            document = f"{place}archive.txt"
            request = retrieval_pb.SearchRequest(queries=["?"], document=document, index=index)
            stub = RetrievalServiceStub(channel)
            found = await stub.Search(request, metadata=tuple(caller.headers.items()))
            texts += MessageToJson(found)
    return texts


ALL_DOORS = {**DOORS, "search a document": _open_documents}
OWN = {name: {name, "default"} for name in WORDS}
"""Whose words each caller may see: its own, and those of the index of the config."""


async def test_every_door_shows_the_uploads_of_the_tenant_only(world: World) -> None:
    """Each is asked twice, so that no cache mixes them up either."""
    for door, ask in ALL_DOORS.items():
        for _ in range(2):
            for name, own in OWN.items():
                assert words(await tried(ask, world.callers[name])) == own, (door, name)


async def test_a_request_names_the_tenant_s_own_uploads(world: World) -> None:
    """Those of another tenant are like an index that does not exist. Only the operator may name
    them, those of one tenant at a time.
    """
    for door, ask in ALL_DOORS.items():
        for name in WORDS:
            assert words(await tried(ask, world.callers[name], "uploads")) == {name}, door
        absent = await tried(ask, world.callers["acme"], ABSENT)
        assert "does not exist, or you may not use it" in absent
        foreign = await tried(ask, world.callers["acme"], "uploads/beta")
        assert foreign.replace("uploads/beta", ABSENT) == absent
    operator = world.callers["operator"]
    assert words(await tried(DOORS["search"], operator, "uploads/beta")) == {"beta"}
    both = await tried(DOORS["search"], operator, "uploads/beta", "uploads/acme")
    assert "name one" in both


async def _listed(client: AsyncClient) -> str:
    return "".join([MessageToJson(document) async for document in client.list_documents()])


async def _uploaded(client: AsyncClient) -> str:
    return MessageToJson(await client.upload(b"text", "new.txt"))


async def _built(client: AsyncClient) -> str:
    return MessageToJson(await client.get_build())


async def _deleted(client: AsyncClient) -> str:
    texts = ""
    for name in WORDS:
        try:
            await client.delete_document(MARK.format(name))
        except GatewayError as error:
            texts += str(error).replace(MARK.format(name), "")
    return texts


RPCS: dict[str, Callable[[AsyncClient], Awaitable[str]]] = {
    "ListDocuments": _listed,
    "UploadDocument": _uploaded,
    "GetBuild": _built,
    "DeleteDocument": _deleted,
}


async def test_no_rpc_shows_or_changes_documents_of_another_tenant(world: World) -> None:
    service = DESCRIPTOR.services_by_name["DocumentService"]
    assert RPCS.keys() == {method.name for method in service.methods}
    for rpc, call in RPCS.items():
        for name in WORDS:
            async with world.client(name) as client:
                assert words(await call(client)) <= {name}, rpc
    for name in WORDS:
        async with world.client(name) as client:
            assert words(await _listed(client)) == set()  # each has deleted its own
            assert "archive.txt" in await _listed(client)


async def test_the_page_of_documents_is_the_tenant_s(world: World) -> None:
    """It names what was not read, and shows no folder of the gateway. Keys without the scope do not
    get it, nor a link to it.
    """
    for name in WORDS:
        page = await _page(world.callers[name], "/documents")
        assert words(page) == {name}
        assert "archive.txt" in page
        assert "1 not read" in page
        assert 'href="/documents" aria-current="page"' in page
        assert str(world.folder) not in page
        assert "rolegate documents upload FILE" in page
        assert "<code>default</code>: 1 passage" in page
    refused = await _page(world.callers["acme asks"], "/documents")
    assert "needs a key with the scope `documents`" in refused
    assert 'href="/documents"' not in refused


async def test_without_uploads_the_page_says_what_to_set(tmp_path: Path) -> None:
    """It has the frame of the site, and the indexes of the config."""
    async with world_of(tmp_path, "") as world, world.running():
        page = await _page(world.callers["operator"], "/documents")
    assert 'href="/documents" aria-current="page"' in page
    assert "<code>uploads.folder</code> is not set" in page
    assert "<code>default</code>: 1 passage" in page
    assert "rolegate index build" in page


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_an_index_that_cannot_be_read_is_named_beside_the_uploads(
    damage: str, tmp_path: Path
) -> None:
    async with world_of(tmp_path) as world, world.running():
        manifest = tmp_path / "index" / MANIFEST
        if damage == "missing":
            manifest.unlink()
        else:
            manifest.write_bytes(b"{")
        page = await _page(world.callers["acme"], "/documents")
    assert "<code>default</code>: cannot be read" in page
    assert "Documents of acme" in page
    assert "None yet." in page


async def test_pages_of_runs_search_the_uploads_of_the_run(world: World) -> None:
    """A right answer that only another tenant's uploads have is in no document of the run, also
    when the operator looks at it.
    """
    acme = world.callers["acme"]
    for right, lost_by in ((WORDS["beta"], "documents"), (WORDS["operator"], "documents")):
        async with acme.client() as client:
            run_id = (await client.ask(QUESTION, index="uploads", no_cache=True)).run_id
            await client.feedback(run_id, accepted=False, right_answer=right)
        for caller in (acme, world.callers["operator"]):
            page = await _page(caller, f"/runs/{run_id}")
            assert f"The right answer was lost by <b>the {lost_by}</b>" in page
            assert f"archive is {right}" not in page
        assert words(await _page(world.callers["beta"], f"/runs/{run_id}")) == set()


async def test_a_page_asks_the_uploads_of_its_user(world: World) -> None:
    acme = world.callers["acme"]
    address = Address(acme.door.removeprefix("http://"))
    async with browsing(address, acme.key) as session:
        form = {"question": QUESTION, "csrf": await token(session, "/ask")}
        async with session.post("/ask", data=form, allow_redirects=False) as response:
            run_id = response.headers["Location"].rpartition("/")[2]
        async with acme.client() as client:
            async for _event in client.watch(run_id):
                pass
        async with session.get(f"/runs/{run_id}") as response:
            assert words(await response.text()) == {"acme", "default"}


async def test_no_list_or_export_shows_another_tenant_s_uploads(world: World) -> None:
    for name in ("acme", "beta"):
        await tried(DOORS["ask"], world.callers[name])
    for name in ("acme", "beta"):
        async with world.client(name) as client:
            listed = "".join([MessageToJson(run) async for run in client.runs()])
            async for run in client.runs():
                listed += (await client.run(run.run_id, trace=True)).trace_json
        assert words(listed) == OWN[name]


async def test_models_are_listed_with_the_uploads(world: World) -> None:
    caller = world.callers["acme"]
    async with (
        aiohttp.ClientSession(headers=caller.headers) as session,
        session.get(f"{caller.door}/v1/models") as response,
    ):
        listed = [model["id"] for model in (await response.json())["data"]]
    assert "rolegate:uploads" in listed
    assert not [name for name in listed if "/" in name]
