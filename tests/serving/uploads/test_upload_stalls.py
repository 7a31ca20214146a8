"""No upload and no list of documents holds the event loop."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from rolegate.client import AsyncClient

from serving.composition import running_gateway
from serving.config.file import load_config
from tests.openai_server import serving as serving_models
from tests.ports import free_port
from tests.serving.uploads.world import FOLDER, archive, write_config
from tests.stall import Served, held_s, serving

_LONGEST_S = 0.05
_MODELS = "UPLOAD_STALLS_MODELS"
"""Environment variable with the address of the models, which are in another process."""
_DOCUMENTS = 500


@asynccontextmanager
async def scene() -> AsyncIterator[Served]:
    """A gateway without keys that accepts uploads."""
    with tempfile.TemporaryDirectory() as folder:
        door = f"127.0.0.1:{free_port()}"
        uploads = f"{FOLDER}max_documents = {_DOCUMENTS + 10}"
        path = write_config(Path(folder), os.environ[_MODELS], door, uploads)
        gateway = running_gateway(load_config(path), "127.0.0.1:0", lambda _line: None, door)
        async with gateway as address:
            yield Served(address, door)


async def _large_text(served: Served) -> None:
    async with AsyncClient(served.grpc) as client:
        sentences = (f"Sentence {number} has words of its own.\n" for number in range(200_000))
        await client.upload("".join(sentences).encode(), "large.txt", wait=True)


async def _large_file(served: Served) -> None:
    async with AsyncClient(served.grpc) as client:
        await client.upload(bytes(200 << 20), "large.pdf")
        await client.delete_document("large.pdf")


async def _many(served: Served) -> None:
    async with AsyncClient(served.grpc) as client:

        async def upload(start: int) -> None:
            for number in range(start, _DOCUMENTS, 8):
                content = archive(f"Word{number}") if number % 2 else b""
                await client.upload(content, f"{number}.txt")

        await asyncio.gather(*map(upload, range(8)))
        await client.upload(archive("Last"), "last.txt", wait=True)
        build = await client.get_build()
        assert len(build.skipped) == _DOCUMENTS / 2
        assert len([document async for document in client.list_documents()]) >= _DOCUMENTS
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{served.http}/documents") as response,
        ):
            assert f"{_DOCUMENTS - 1}.txt" in await response.text()


async def _small(served: Served) -> None:
    async with AsyncClient(served.grpc) as client:
        await client.upload(archive("First"), "first.txt", wait=True)


INPUTS: list[Callable[[Served], Awaitable[None]]] = [_large_text, _large_file, _many]


@pytest.mark.timing
async def test_no_upload_holds_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is CPU time of the loop's thread, so that other processes do not count."""
    async with serving_models(recording=False) as models:
        monkeypatch.setenv(_MODELS, models.base_url)
        scene_name = "tests.serving.uploads.test_upload_stalls:scene"
        stack = ExitStack()
        try:
            served = await asyncio.to_thread(stack.enter_context, serving(scene_name))
            await _small(served)  # what only the first upload does, such as imports
            await asyncio.to_thread(held_s, served)
            for send in INPUTS:
                await send(served)
                longest_s = await asyncio.to_thread(held_s, served)
                assert longest_s < _LONGEST_S, send.__name__
        finally:  # in a thread, as the gateway calls the models until it has ended
            await asyncio.to_thread(stack.close)
