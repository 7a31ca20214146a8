"""From the embedder's section of a config to an embedder."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from msgspec.structs import replace

from router.errors import BadConfig
from serving.config import EmbedderConfig, EngineConfig
from serving.engine import engine
from serving.readiness import api_key, key_problems
from serving.retrieval.embedder import Embedder, MiniLM
from serving.retrieval.endpoint_embedder import EndpointEmbedder
from serving.supervision import Say


@asynccontextmanager
async def open_embedder(
    config: EmbedderConfig,
    engines: Mapping[str, EngineConfig],
    tell: Callable[[str], None],
    *,
    cpu_threads: int = 1,
    say: Say = lambda _why: None,
) -> AsyncIterator[Embedder]:
    """The embedder that a config names, with its engine if it has one; `say` as for that. Raises `BadConfig`."""
    if config.kind == "minilm":
        yield MiniLM()
        return
    async with AsyncExitStack() as stack:
        if config.engine is not None:
            served = [config.model or ""]
            started = engine(config.engine, engines[config.engine], served, tell, cpu_threads=cpu_threads, say=say)
            config = replace(config, base_url=await stack.enter_async_context(started))
        embedder = _endpoint(config)
        try:
            yield embedder
        finally:
            await asyncio.to_thread(embedder.close)


def _endpoint(config: EmbedderConfig) -> EndpointEmbedder:
    if config.base_url is None or config.model is None or config.dimension is None:
        raise BadConfig("retrieval.embedder: kind `endpoint` needs base_url (or engine), model and dimension.")
    for problem in key_problems("retrieval.embedder", config.api_key_env):
        raise BadConfig(problem)
    return EndpointEmbedder(
        config.base_url,
        config.model,
        dimension=config.dimension,
        query_prefix=config.query_prefix,
        passage_prefix=config.passage_prefix,
        api_key=api_key(config.api_key_env),
    )
