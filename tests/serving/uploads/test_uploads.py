"""Uploads of a tenant: stored, indexed, found, replaced, deleted; within limits; named if they
cannot be read.
"""

import asyncio
import gzip
import io
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToJson
from rolegate.client import AsyncClient, Client, GatewayError
from rolegate.v1 import document_service_pb2 as pb
from rolegate.v1.document_service_pb2_grpc import DocumentServiceStub

from tests.serving.documents.compound import compound_file
from tests.serving.test_indexes import QUESTION
from tests.serving.uploads.world import DEFAULT_WORD, FOLDER, World, archive, world_of

FILES = Path(__file__).parents[1] / "documents/files"
WAITING = pb.DOCUMENT_STATE_WAITING
INDEXED = pb.DOCUMENT_STATE_INDEXED
SKIPPED = pb.DOCUMENT_STATE_SKIPPED


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(tmp_path) as world, world.running():
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncClient]:
    async with world.client() as client:
        yield client


async def up_to_date(client: AsyncClient) -> pb.GetBuildResponse:
    """Ask until all changes are in the index."""
    async with asyncio.timeout(60):
        while not (build := await client.get_build()).up_to_date:
            pass
    return build


async def names(client: AsyncClient) -> list[str]:
    return [document.name async for document in client.list_documents()]


async def test_an_upload_is_found_and_cited(client: AsyncClient) -> None:
    """The citation names the document. The index is searched together with the tenant's others."""
    stored = await client.upload(archive("Amaranth"), "safe/archive.txt", wait=True)
    assert (stored.name, stored.state, stored.passages) == ("safe/archive.txt", INDEXED, 1)
    assert stored.size_bytes == len(archive("Amaranth"))

    answer = await client.ask(QUESTION)
    assert "Amaranth" in answer.answer
    assert DEFAULT_WORD in answer.answer
    assert "uploads:safe/archive.txt" in {source.document for source in answer.citations}
    own = await client.search(QUESTION, index="uploads")
    assert [passage.document for passage in own] == ["uploads:safe/archive.txt"]


async def test_the_bytes_are_those_that_were_sent(world: World, tmp_path: Path) -> None:
    """Also of a document of several pieces, and of an empty one."""
    content = bytes(range(256)) * 4000
    (tmp_path / "large.txt").write_bytes(content)
    async with world.client() as client:
        await client.upload(tmp_path / "large.txt")
        await client.upload(b"", "empty.txt")
    assert (world.documents / "large.txt").read_bytes() == content
    assert (world.documents / "empty.txt").read_bytes() == b""


async def test_a_document_of_the_same_name_is_replaced(client: AsyncClient) -> None:
    await client.upload(archive("Amaranth"), "archive.txt", wait=True)
    await client.upload(archive("Asphodel"), "archive.txt", wait=True)
    assert await names(client) == ["archive.txt"]
    answer = await client.ask(QUESTION)
    assert "Asphodel" in answer.answer
    assert "Amaranth" not in MessageToJson(answer)


async def test_a_report_of_an_earlier_generation_is_not_reused(client: AsyncClient) -> None:
    """The same question gets the new document, although reports are shared."""
    await client.upload(archive("Amaranth"), "one.txt", wait=True)
    assert "Asphodel" not in (await client.ask(QUESTION)).answer
    await client.upload(archive("Asphodel"), "two.txt", wait=True)
    assert "Asphodel" in (await client.ask(QUESTION)).answer


async def test_a_deleted_document_is_not_found(world: World, client: AsyncClient) -> None:
    """Also the last one, after which the index is empty, and one that is uploaded again."""
    await client.upload(archive("Amaranth"), "a/archive.txt")
    await client.upload(archive("Asphodel"), "other.txt", wait=True)
    await client.delete_document("a/archive.txt")
    assert not (world.documents / "a").exists()
    assert (await up_to_date(client)).documents == 1
    assert "Amaranth" not in MessageToJson(await client.ask(QUESTION))
    await client.delete_document("other.txt")
    build = await up_to_date(client)
    assert (build.documents, build.passages, build.state) == (0, 0, pb.BUILD_STATE_IDLE)
    assert list(await client.search(QUESTION, index="uploads")) == []
    assert not (world.folder / "uploads/acme/index").exists()
    await client.upload(archive("Amaranth"), "a/archive.txt", wait=True)
    assert len(await client.search(QUESTION, index="uploads")) == 1
    with pytest.raises(GatewayError, match=r"name 'nothing.txt': there is no document") as caught:
        await client.delete_document("nothing.txt")
    assert caught.value.code is grpc.StatusCode.NOT_FOUND
    assert caught.value.reason == "DOCUMENT_NOT_FOUND"


async def test_an_index_without_documents_is_empty(client: AsyncClient) -> None:
    assert list(await client.search(QUESTION, index="uploads")) == []
    build = await client.get_build()
    assert (build.state, build.up_to_date, build.documents) == (pb.BUILD_STATE_IDLE, True, 0)
    assert DEFAULT_WORD in (await client.ask(QUESTION)).answer


async def test_documents_are_listed_in_pages(world: World, client: AsyncClient) -> None:
    for number in range(5):
        await client.upload(archive(f"Word{number}"), f"{number}.txt")
    assert await names(client) == [f"{number}.txt" for number in range(5)]
    async with grpc.aio.insecure_channel(world.callers["acme"].address) as channel:
        stub = DocumentServiceStub(channel)
        headers = tuple(world.callers["acme"].headers.items())
        first = await stub.ListDocuments(pb.ListDocumentsRequest(page_size=2), metadata=headers)
        assert [document.name for document in first.documents] == ["0.txt", "1.txt"]
        rest = pb.ListDocumentsRequest(page_token=first.next_page_token)
        second = await stub.ListDocuments(rest, metadata=headers)
        assert [document.name for document in second.documents] == ["2.txt", "3.txt", "4.txt"]
        assert second.next_page_token == ""


HOSTILE = (
    *("", ".", "..", "../a.txt", "a/../../b.txt", "/etc/passwd.txt", "a//b.txt", "a/", "./a.txt"),
    *(".hidden.txt", "a/.git/b.txt", "a\\b.txt", "a\0.txt", "a\n.txt", "a\x1b[31m.txt", " a.txt"),
    *("a.txt ", "a\u202etxt.exe.txt", "x" * 201 + ".txt", "d/" * 300 + "a.txt", "ü" * 150),
)


async def test_a_hostile_name_is_refused(world: World, client: AsyncClient) -> None:
    """Nothing is written."""
    for name in HOSTILE:
        with pytest.raises(GatewayError, match="name") as caught:
            await client.upload(archive("Amaranth"), name)
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(GatewayError):
            await client.delete_document(name)
    assert [path for path in (world.folder / "uploads").rglob("*") if path.is_file()] == []


async def test_a_kind_that_is_not_read_is_refused(client: AsyncClient) -> None:
    kinds = r"kind cannot be read; supported kinds: .*\.pdf.*\(images with the extra `ocr`\)"
    for name in ("setup.exe", "movie.mp4", "archive.zip", "report.pdf.gz"):
        with pytest.raises(GatewayError, match=kinds):
            await client.upload(b"x", name)


async def test_names_that_one_file_system_would_confuse_are_refused(client: AsyncClient) -> None:
    """They differ in case only, or are both a document and a folder. Different compositions of one
    character are one name.
    """
    await client.upload(archive("Amaranth"), "Archive.txt")
    with pytest.raises(GatewayError, match=r"differs from 'Archive.txt' only in upper and lower"):
        await client.upload(archive("Asphodel"), "archive.txt")
    await client.upload(archive("Amaranth"), "a")
    for name in ("a/b.txt", "a/b/c.txt"):
        with pytest.raises(GatewayError, match="both a document and the folder of other"):
            await client.upload(archive("Asphodel"), name)
    await client.upload(archive("Amaranth"), "b/c.txt")
    with pytest.raises(GatewayError, match="both a document and the folder of other"):
        await client.upload(archive("Asphodel"), "b")
    await client.upload(archive("Amaranth"), "u\u0308.txt")
    await client.upload(archive("Amaranth"), "\u00fc.txt")
    assert await names(client) == ["Archive.txt", "a", "b/c.txt", "\u00fc.txt"]


async def test_a_key_without_the_scope_is_refused(world: World) -> None:
    async with world.client("acme asks") as client:
        for call in (
            lambda: names(client),
            lambda: client.upload(archive("Amaranth"), "a.txt"),
            lambda: client.delete_document("a.txt"),
            client.get_build,
        ):
            with pytest.raises(GatewayError, match="a key with the scope `documents`") as caught:
                await call()
            assert caught.value.code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_key_that_only_asks_searches_the_uploads(world: World) -> None:
    async with world.client() as client, world.client("acme asks") as asking:
        await client.upload(archive("Amaranth"), "a.txt", wait=True)
        assert "Amaranth" in (await asking.ask(QUESTION)).answer


async def test_without_a_folder_the_error_says_what_to_set(tmp_path: Path) -> None:
    """Nothing else changes: there is no index of that name."""
    async with (
        world_of(tmp_path, "") as world,
        world.running(),
        world.client("operator") as operator,
    ):
        with pytest.raises(GatewayError, match=r"uploads\.folder: .* set this key") as caught:
            await operator.upload(archive("Amaranth"), "a.txt")
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(GatewayError, match="index 'uploads': does not exist") as absent:
            await operator.search(QUESTION, index="uploads")
        assert absent.value.reason == "INDEX_NOT_FOUND"


async def test_without_keys_uploads_belong_to_the_default_tenant(tmp_path: Path) -> None:
    async with world_of(tmp_path) as world:
        for path in tmp_path.glob("runs.db*"):
            path.rename(tmp_path / f"other-{path.name}")
        async with world.running(), world.client() as client:
            await client.upload(archive("Amaranth"), "a.txt", wait=True)
            assert "Amaranth" in (await client.ask(QUESTION)).answer
    assert (tmp_path / "uploads/default/documents/a.txt").is_file()


# Limits


async def test_the_number_of_documents_is_limited(tmp_path: Path) -> None:
    """A replacement is no further document."""
    async with (
        world_of(tmp_path, f"{FOLDER}max_documents = 2") as world,
        world.running(),
        world.client() as client,
        world.client("beta") as beta,
    ):
        await client.upload(archive("Amaranth"), "a.txt")
        await client.upload(archive("Amaranth"), "b.txt")
        with pytest.raises(GatewayError, match="2 documents are stored, at most 2") as caught:
            await client.upload(archive("Amaranth"), "c.txt")
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        await client.upload(archive("Asphodel"), "b.txt")
        await client.delete_document("a.txt")
        await client.upload(archive("Amaranth"), "c.txt")
        await beta.upload(archive("Belladonna"), "a.txt")


async def test_the_bytes_are_limited_while_they_arrive(tmp_path: Path) -> None:
    """Several uploads at a time never exceed the limit, not even until they are complete."""
    async with world_of(tmp_path, f"{FOLDER}max_mb = 2") as world, world.running():
        async with world.client() as client:
            await client.upload(b"x" * (1 << 20), "a.txt")
            with pytest.raises(GatewayError, match="other documents take 1,048,576 bytes, and all"):
                await client.upload(b"x" * (3 << 20), "b.txt")
            uploads = [client.upload(b"x" * (9 << 16), f"{n}.txt") for n in range(5)]
            results = await asyncio.gather(*uploads, return_exceptions=True)
            assert sum(isinstance(result, pb.Document) for result in results) <= 1
            for number in range(5):
                with suppress(GatewayError):  # it was refused
                    await client.delete_document(f"{number}.txt")
            await client.upload(b"x" * (2 << 20), "a.txt")
        sizes = [path.stat().st_size for path in world.documents.iterdir()]
        assert sum(sizes) <= 2 << 20
        assert list((tmp_path / "uploads/acme/arriving").iterdir()) == []


async def test_a_file_of_two_gigabytes_is_refused(tmp_path: Path) -> None:
    """Nothing of it was written."""
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2 << 30)
    async with world_of(tmp_path, f"{FOLDER}max_mb = 4000") as world, world.running():
        caller = world.callers["acme"]

        def upload() -> None:
            with Client(caller.address, api_key=caller.key) as client:
                client.upload(tmp_path / "huge.txt")

        with pytest.raises(GatewayError, match="it is larger than 256 MiB; split it"):
            await asyncio.to_thread(upload)
        assert [path for path in (tmp_path / "uploads").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("sent", [9, 11])
async def test_the_stated_size_must_be_right(world: World, sent: int) -> None:
    """Less is a broken connection, more may be any number of bytes."""
    caller = world.callers["acme"]

    async def pieces() -> AsyncIterator[pb.UploadDocumentRequest]:
        yield pb.UploadDocumentRequest(name="a.txt", size_bytes=10)
        for _ in range(sent):
            yield pb.UploadDocumentRequest(content=b"x")

    async with grpc.aio.insecure_channel(caller.address) as channel:
        upload: Any = DocumentServiceStub(channel).UploadDocument
        with pytest.raises(grpc.aio.AioRpcError, match="size_bytes is 10, but") as caught:
            await upload(pieces(), metadata=tuple(caller.headers.items()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not world.documents.exists()


async def test_a_client_that_breaks_off_leaves_nothing(world: World, client: AsyncClient) -> None:
    """The earlier document of the name stays."""
    await client.upload(archive("Amaranth"), "a.txt", wait=True)
    arriving = world.folder / "uploads/acme/arriving"
    caller = world.callers["acme"]
    begun = asyncio.Event()

    async def broken() -> AsyncIterator[pb.UploadDocumentRequest]:
        yield pb.UploadDocumentRequest(name="a.txt", size_bytes=10**6, content=b"x" * 10**5)
        begun.set()
        await asyncio.Event().wait()

    async with grpc.aio.insecure_channel(caller.address) as channel:
        upload: Any = DocumentServiceStub(channel).UploadDocument
        call = upload(broken(), metadata=tuple(caller.headers.items()))
        await begun.wait()
        while not any(path.stat().st_size for path in arriving.iterdir()):
            await client.get_build()
        call.cancel()
        while any(arriving.iterdir()):
            await client.get_build()
    assert (world.documents / "a.txt").read_bytes() == archive("Amaranth")
    assert (await client.get_build()).up_to_date


# Documents that cannot be read


def _zip_bomb() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("word/document.xml", b" " * (64 << 20))
    return packed.getvalue()


def _many_rows() -> bytes:
    """Return a workbook whose only sheet has a million empty rows."""
    packed = io.BytesIO()
    name = "http://schemas.openxmlformats.org/"
    sheet = "".join(f'<row r="{number}"/>' for number in range(1, 1_000_001))
    relations = f'{name}package/2006/relationships"'
    files = {
        "[Content_Types].xml": f'<Types xmlns="{name}package/2006/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{relations}><Relationship Id="r" '
        f'Type="{name}officeDocument/2006/relationships/officeDocument" '
        'Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{name}spreadsheetml/2006/main" '
        f'xmlns:r="{name}officeDocument/2006/relationships"><sheets>'
        '<sheet name="A" sheetId="1" r:id="s"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{relations}><Relationship Id="s" '
        f'Type="{name}officeDocument/2006/relationships/worksheet" '
        'Target="worksheets/sheet1.xml"/></Relationships>',
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{name}spreadsheetml/2006/main">'
        f"<sheetData>{sheet}</sheetData></worksheet>",
    }
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as workbook:
        for path, content in files.items():
            workbook.writestr(path, content)
    return packed.getvalue()


UNREADABLE: dict[str, Callable[[], bytes]] = {
    "bomb.docx": _zip_bomb,
    "bomb.txt.gz": partial(gzip.compress, b" x" * (300 << 19)),
    "rows.xlsx": _many_rows,
    "macros.xlsm": partial(compound_file, {"Workbook": bytes(8)}),
    "locked.pdf": (FILES / "locked.pdf").read_bytes,
    "locked.xlsx": partial(compound_file, {"EncryptedPackage": bytes(8)}),
    "broken.pdf": lambda: b"%PDF-1.7\n" + bytes(range(256)) * 40,
    "picture.pdf": lambda: b"\x89PNG\r\n\x1a\n" + bytes(100),
    "program.txt": lambda: bytes(range(256)) * 10,
    "nothing.txt": lambda: b"",
}


async def test_what_cannot_be_read_is_named(world: World, client: AsyncClient) -> None:
    """The others are found. No reason shows a folder of the gateway."""
    await client.upload(archive("Amaranth"), "a.txt")
    for name, content in UNREADABLE.items():
        await client.upload(content(), name)
    await client.upload(archive("Asphodel"), "z.txt", wait=True)
    build = await up_to_date(client)
    assert {document.name for document in build.skipped} == set(UNREADABLE)
    assert build.documents == 2
    for document in build.skipped:
        assert document.state == SKIPPED
        assert document.not_read.startswith(document.name)
    assert str(world.folder) not in MessageToJson(build)
    reasons = {document.name: document.not_read for document in build.skipped}
    for name in ("locked.pdf", "locked.xlsx"):
        assert "encrypted; save it without its password" in reasons[name]
    assert "unpacks to more than" in reasons["bomb.docx"]
    answer = await client.ask(QUESTION)
    assert "Amaranth" in answer.answer
    assert "Asphodel" in answer.answer


async def test_only_unreadable_documents_make_an_empty_index(client: AsyncClient) -> None:
    """They are named all the same, and read again once they are replaced."""
    stored = await client.upload(b"", "nothing.txt", wait=True)
    assert stored.state == SKIPPED
    assert "contains no text" in stored.not_read
    build = await client.get_build()
    assert (build.up_to_date, build.documents, len(build.skipped)) == (True, 0, 1)
    assert list(await client.search(QUESTION, index="uploads")) == []
    stored = await client.upload(archive("Amaranth"), "nothing.txt", wait=True)
    assert stored.state == INDEXED


# Restarts


async def test_a_restart_builds_what_is_missing(tmp_path: Path) -> None:
    """Documents and leftovers are as a gateway that was killed leaves them."""
    async with world_of(tmp_path) as world:
        async with world.running(), world.client() as client:
            await client.upload(archive("Amaranth"), "a.txt", wait=True)
        (world.documents / "b.txt").write_bytes(archive("Asphodel"))
        leftover = tmp_path / "uploads/acme/arriving/0123456789abcdef"
        leftover.write_bytes(b"half of a doc")
        async with world.running(), world.client() as client:
            assert (await up_to_date(client)).documents == 2
            assert "Asphodel" in (await client.ask(QUESTION)).answer
            assert not leftover.exists()
        before = (tmp_path / "uploads/acme/build.json").read_bytes()
        async with world.running(), world.client() as client:
            assert "Asphodel" in (await client.ask(QUESTION)).answer
            assert (await client.get_build()).up_to_date
        assert (tmp_path / "uploads/acme/build.json").read_bytes() == before


async def test_a_failed_build_is_shown_and_tried_again(world: World, client: AsyncClient) -> None:
    """Searches use the index of the build before. The tenant does not learn the gateway's paths."""
    await client.upload(archive("Amaranth"), "a.txt", wait=True)
    foreign = world.folder / "uploads/acme/index/notes.txt"
    foreign.write_text("not an index")
    stored = await client.upload(archive("Asphodel"), "b.txt", wait=True)
    assert stored.state == WAITING
    build = await client.get_build()
    assert (build.state, build.up_to_date) == (pb.BUILD_STATE_FAILED, False)
    assert build.error == "The gateway's index cannot be used; tell its operator."
    assert "Amaranth" in (await client.ask(QUESTION)).answer
    foreign.unlink()
    await client.upload(archive("Anemone"), "c.txt", wait=True)
    build = await client.get_build()
    assert (build.state, build.documents, build.error) == (pb.BUILD_STATE_IDLE, 3, "")


async def test_gateways_that_share_the_folder_see_the_same_documents(tmp_path: Path) -> None:
    """What one of them has built, the other searches; limits hold for both together."""
    async with world_of(tmp_path, f"{FOLDER}max_documents = 1") as world, world.running():
        other = tmp_path / "other"
        other.mkdir()
        uploads = f'[uploads]\nfolder = "{tmp_path}/uploads"\nmax_documents = 1'
        async with (
            world_of(other, uploads) as second,
            second.running(),
            world.client() as client,
            second.client() as elsewhere,
        ):
            assert list(await elsewhere.search(QUESTION, index="uploads")) == []
            await client.upload(archive("Amaranth"), "a.txt", wait=True)
            await up_to_date(elsewhere)
            assert "Amaranth" in (await elsewhere.ask(QUESTION)).answer
            with pytest.raises(GatewayError, match="1 documents are stored"):
                await elsewhere.upload(archive("Asphodel"), "b.txt")
            await elsewhere.delete_document("a.txt")
            await up_to_date(client)
            assert "Amaranth" not in (await client.ask(QUESTION)).answer
