"""An embedding endpoint that compares words, for tests whose fact is not about the model.

all-MiniLM-L6-v2 takes seconds to load, and each command and retriever loads it again.
"""

import asyncio
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from router.protocol.vocabulary import words
from serving.config.config import EmbedderConfig
from tests.openai_server import served

MODEL = "words"
DIMENSION = 64


def vector(text: str) -> list[float]:
    """Return the number of a text's words in each of `DIMENSION` classes, and never zeros alone."""
    counts = [0.01] * DIMENSION
    for word in words(text):
        counts[zlib.crc32(word.encode()) % DIMENSION] += 1.0
    return counts


async def _embed(request: web.Request) -> web.Response:
    texts = (await request.json())["input"]
    data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    return web.json_response({"object": "list", "data": data})


@contextmanager
def endpoint() -> Iterator[EmbedderConfig]:
    """Serve the endpoint in a thread, as commands have their own event loops. Yield its config."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    serving = served(web.post("/v1/embeddings", _embed))
    url = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(30)
    yield EmbedderConfig(base_url=url, model=MODEL, dimension=DIMENSION)
    asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def keys(config: EmbedderConfig) -> str:
    """Return the keys of a table `[retrieval.embedder]`."""
    return f'base_url = "{config.base_url}"\nmodel = "{MODEL}"\ndimension = {DIMENSION}\n'


def options(config: EmbedderConfig) -> tuple[str, ...]:
    """Return the options of a command that embeds at the endpoint."""
    return (
        *("--embedder-url", str(config.base_url)),
        *("--embedder-model", MODEL, "--embedder-dimension", str(DIMENSION)),
    )
