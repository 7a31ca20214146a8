"""A gateway is killed again and again while clients upload: nothing acknowledged is lost."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from rolegate.client import AsyncClient, GatewayError
from rolegate.v1 import document_service_pb2 as pb
from rolegate.v1 import retrieval_service_pb2 as retrieval_pb
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from tests.serving.cli.test_cli import service
from tests.serving.uploads.world import FOLDER, archive, world_of

KILLS = 20
UPLOADERS = 8
_LONGEST_S = 1.5
"""Max seconds between a start of the gateway and its kill."""


@dataclass
class Sent:
    """What the gateway was asked to do with the documents, in the order of each."""

    acknowledged: dict[str, bytes | None] = field(default_factory=dict)
    """The last acknowledged content of each document; None for an acknowledged deletion."""
    unsure: defaultdict[str, list[bytes | None]] = field(default_factory=lambda: defaultdict(list))
    """Contents since then whose requests were interrupted."""
    uploads: int = 0
    deletions: int = 0

    async def change(self, client: AsyncClient, name: str, content: bytes | None) -> None:
        """Upload or delete a document, and note whether that was acknowledged."""
        self.unsure[name].append(content)
        if content is None:
            await client.delete_document(name)
            self.deletions += 1
        else:
            await client.upload(content, name)
            self.uploads += 1
        self.acknowledged[name] = content
        self.unsure[name].clear()

    def allowed(self, name: str) -> list[bytes | None]:
        """Return the contents that a document may have now."""
        return [self.acknowledged.get(name), *self.unsure[name]]


async def _load(address: str, key: str, sent: Sent, number: int, luck: random.Random) -> None:
    """Upload, replace and delete documents until the gateway is gone."""
    async with AsyncClient(address, api_key=key) as client:
        while True:
            name = f"{number}/{luck.randrange(40)}.txt"
            content: bytes | None = archive(f"Word{luck.randrange(10**9)}")
            if luck.random() < 0.3:
                content = (content or b"") * luck.randrange(1, 5000)
            if sent.acknowledged.get(name) and luck.random() < 0.15:
                content = None
            try:
                await sent.change(client, name, content)
            except GatewayError as error:
                if error.code is grpc.StatusCode.NOT_FOUND:  # an interrupted deletion
                    sent.acknowledged[name] = None
                    sent.unsure[name].clear()
                    continue
                assert error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED), error
                return


@pytest.mark.slow
async def test_acknowledged_documents_survive_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is on disk as it was sent, and found by a search. Nothing else is."""
    luck = random.Random(7)
    sent = Sent()
    async with world_of(tmp_path, f"{FOLDER}max_documents = 1000") as world:
        key = world.keys["acme"]
        command = ["serve", "--config", str(world.config), "--address", "127.0.0.1:0"]
        for _ in range(KILLS):
            with service(*command, cwd=tmp_path) as server:
                address = await asyncio.to_thread(server.ready)
                loads = [
                    asyncio.create_task(_load(address, key, sent, number, luck))
                    for number in range(UPLOADERS)
                ]
                await asyncio.wait(loads, timeout=luck.uniform(0.1, _LONGEST_S))
                server.process.kill()
                await asyncio.gather(*loads)

        async with world.running(), world.client() as client:
            begun = asyncio.get_running_loop().time()
            build = await client.get_build()
            while not build.up_to_date:
                assert build.state == pb.BUILD_STATE_BUILDING
                build = await client.get_build()
            built_s = asyncio.get_running_loop().time() - begun
            stored = {document.name: document async for document in client.list_documents()}
            names = sent.acknowledged.keys() | sent.unsure.keys()
            assert stored.keys() <= names
            lost = []
            for name in names:
                path = world.documents / name
                content = path.read_bytes() if path.exists() else None
                if content not in sent.allowed(name):
                    lost.append(name)
            assert lost == []
            assert {document.state for document in stored.values()} == {pb.DOCUMENT_STATE_INDEXED}
            caller = world.callers["acme"]
            async with grpc.aio.insecure_channel(caller.address) as channel:
                stub = RetrievalServiceStub(channel)
                for name in stored:
                    request = retrieval_pb.SearchRequest(
                        queries=["password"], top_k=1, document=f"uploads:{name}", index=["uploads"]
                    )
                    found = await stub.Search(request, metadata=tuple(caller.headers.items()))
                    (passage,) = found.results[0].passages
                    word = passage.text.partition("archive is ")[2].partition(".")[0]
                    assert word.encode() in (world.documents / name).read_bytes()
        assert list((tmp_path / "uploads/acme/arriving").iterdir()) == []
    assert sent.uploads > 100
    with capsys.disabled():
        print(
            f"\n{KILLS} kills: {sent.uploads} uploads and {sent.deletions} deletions acknowledged, "
            f"{len(lost)} lost; {len(stored)} documents, index up to date after {built_s:.1f} s"
        )
