"""Indexes whose vectors are in Milvus, on a server of Milvus Lite."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.background import background_tasks
from router.calls import Readiness
from router.errors import BadIndex, UpstreamUnavailable
from router.search.retrieval import IndexRetriever, WatchedRetriever
from router.trace.scope import NO_FILTER, DocumentFilter
from serving.config.config import EmbedderConfig, MilvusConfig, RetrievalConfig
from serving.retrieval.build import Built, build_index
from serving.retrieval.embedder import EndpointEmbedder
from serving.retrieval.index import Index
from serving.retrieval.milvus import MilvusStore
from serving.retrieval.opening import open_retriever, vector_store
from tests.scripted_gateway import ROOT
from tests.serving.cli.test_cli import service
from tests.serving.retrieval.milvus_server import MilvusServer
from tests.serving.retrieval.test_approximate import Clustered, best, write


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MilvusServer]:
    with MilvusServer(tmp_path_factory.mktemp("milvus") / "data") as server:
        yield server


@pytest.fixture
def config(server: MilvusServer, tmp_path: Path) -> MilvusConfig:
    """The config of a collection for one test."""
    return MilvusConfig(address=server.address, collection=tmp_path.name, partition="main")


def build(
    folder: Path, rows: Path, config: MilvusConfig, *, lexical: bool = False
) -> tuple[Built, Index]:
    store = MilvusStore(config)
    built = build_index([rows], folder, Clustered(), lexical=lexical, store=store)
    return built, Index.open(folder, Clustered(), store=store)


def entities(config: MilvusConfig) -> int:
    """Number of entities in the partition."""
    from pymilvus import MilvusClient

    rows = MilvusClient(config.address).query(
        config.collection,
        "id != 0",
        output_fields=["count(*)"],
        partition_names=[config.partition],
    )
    return int(rows[0]["count(*)"])


def test_milvus_finds_what_exact_search_finds(tmp_path: Path, config: MilvusConfig) -> None:
    """The manifest names the partition, and the scores are exact."""
    rows = write(tmp_path / "rows.jsonl", range(2500))
    built, index = build(tmp_path / "index", rows, config)
    exact = build_index([rows], tmp_path / "exact", Clustered())

    assert built.manifest.vectors == f"Milvus {config.collection}/main"
    assert min(built.manifest.recall.values()) > 0.95
    assert entities(config) == 2500
    queries = [f"question {number}" for number in range(50)]
    vectors = Clustered().embed(queries, queries=True)
    opened = Index.open(tmp_path / "exact", Clustered())
    found = index.search(vectors, queries, 5)
    same = map(list.__eq__, found, opened.search(vectors, queries, 5))
    assert sum(same) > 45
    assert exact.manifest.corpus_sha256 == built.manifest.corpus_sha256


def test_ranks_of_words_and_of_milvus_are_fused(tmp_path: Path, config: MilvusConfig) -> None:
    """The vectors of the queries are those of other texts, so that vectors alone do not find the
    words.
    """
    rows = write(tmp_path / "rows.jsonl", range(500))
    _, index = build(tmp_path / "index", rows, config, lexical=True)
    build_index([rows], tmp_path / "exact", Clustered(), lexical=True)
    opened = Index.open(tmp_path / "exact", Clustered())
    queries = [str(number) for number in range(50)]
    others = Clustered().embed([f"row {number + 200}" for number in range(50)], queries=True)

    found = index.search(others, queries, 10)

    assert sum(map(list.__eq__, found, opened.search(others, queries, 10))) > 45
    for number, hits in enumerate(found):
        texts = {passage.text for passage in hits}
        assert {f"row {number}", f"row {number + 200}"} <= texts


def test_a_build_inserts_what_is_new_and_deletes_what_is_gone(
    tmp_path: Path, config: MilvusConfig
) -> None:
    """An index that was opened before finds what both have."""
    rows = write(tmp_path / "rows.jsonl", range(100))
    _, before = build(tmp_path / "index", rows, config)
    write(rows, range(50, 120))
    built, after = build(tmp_path / "index", rows, config)

    assert built.embedded == 20
    assert entities(config) == 70
    assert best(after, "row 110") == "row 110"
    assert best(after, "row 20") != "row 20"
    assert best(before, "row 70") == "row 70"


@pytest.mark.parametrize("factory", ["Flat", "HNSW8,SQ8"])
def test_an_index_moves_to_milvus_and_back(
    tmp_path: Path, config: MilvusConfig, factory: str
) -> None:
    """The vectors are taken over, and nothing is embedded again."""
    rows = write(tmp_path / "rows.jsonl", range(1000))
    other = vector_store(RetrievalConfig(vectors=factory))
    embedded = []
    for store in (other, MilvusStore(config), other):
        built = build_index([rows], tmp_path / "index", Clustered(), store=store)
        embedded.append(built.embedded)
        index = Index.open(tmp_path / "index", Clustered(), store=store)
        assert best(index, "row 700") == "row 700"
    assert embedded == [1000, 0, 0]


def test_indexes_share_a_collection(tmp_path: Path, config: MilvusConfig) -> None:
    """Each has its partition, and neither finds or deletes the passages of the other."""
    other = MilvusConfig(address=config.address, collection=config.collection, partition="other")
    first_rows = write(tmp_path / "first.jsonl", range(50))
    second_rows = write(tmp_path / "second.jsonl", range(50, 80))
    _, first = build(tmp_path / "first", first_rows, config)
    _, second = build(tmp_path / "second", second_rows, other)

    assert (entities(config), entities(other)) == (50, 30)
    assert (best(first, "row 3"), best(second, "row 60")) == ("row 3", "row 60")
    assert best(second, "row 3") != "row 3"


DOCUMENTS: dict[str, dict[str, Any]] = {
    "ada": {"title": "100% Notes", "author": "Ada Lovelace", "date": "1843-09-05", "tags": ["a_1"]},
    "bob": {"title": "Minutes", "author": "Bob", "date": "1843-10-01", "path": "min_utes/1843.txt"},
    "cyd": {"title": 'Other "notes"', "date": "1901-01-01", "tags": ["a_1", 'b"\\']},
    "dan": {"title": "Straße", "path": "minxutes/a"},
}


@pytest.fixture(scope="module")
def documents(
    server: MilvusServer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Index, Index]:
    """An index in Milvus, and an exact one."""
    folder = tmp_path_factory.mktemp("documents")
    rows = folder / "rows.jsonl"
    lines = (json.dumps({"id": name, "text": name, **row}) for name, row in DOCUMENTS.items())
    rows.write_text("\n".join(lines))
    config = MilvusConfig(address=server.address, collection="documents", partition="main")
    _, index = build(folder / "index", rows, config)
    build_index([rows], folder / "exact", Clustered())
    return index, Index.open(folder / "exact", Clustered())


@pytest.mark.parametrize(
    "only",
    [
        NO_FILTER,
        DocumentFilter(title="NOTES"),
        DocumentFilter(title="100%"),
        DocumentFilter(title="0_ n"),
        DocumentFilter(title='"notes"'),
        DocumentFilter(title="STRASSE"),
        DocumentFilter(author="lovelace"),
        DocumentFilter(from_date="1843-10"),
        DocumentFilter(to_date="1843-09"),
        DocumentFilter(from_date="1843", to_date="1843"),
        DocumentFilter(path_prefix="min_utes/"),
        DocumentFilter(tags=("a_1",)),
        DocumentFilter(tags=("a_1", 'b"\\')),
        DocumentFilter(tags=("a_1",), author="Bob"),
        DocumentFilter(title='" or id > 0 or title like "'),
    ],
)
def test_milvus_applies_filters(documents: tuple[Index, Index], only: DocumentFilter) -> None:
    """Exactly the documents are found that the filter admits."""
    index, exact = documents
    vectors = Clustered().embed(["a query"], queries=True)
    assert index.search(vectors, ["a query"], 4, None, only) == exact.search(
        vectors, ["a query"], 4, None, only
    )


BUILD = """
import sys
from pathlib import Path
from serving.config.config import MilvusConfig
from serving.retrieval.build import build_index
from serving.retrieval.milvus import MilvusStore
from tests.serving.retrieval.test_approximate import Clustered

config = MilvusConfig(address=sys.argv[3], collection=sys.argv[4], partition="main")
build_index([Path(sys.argv[1])], Path(sys.argv[2]), Clustered(), store=MilvusStore(config))
"""


def test_a_killed_build_is_repeated(tmp_path: Path, config: MilvusConfig) -> None:
    """The next one embeds nothing, and inserts what is missing."""
    from pymilvus import MilvusException

    count = 5_000
    rows = write(tmp_path / "rows.jsonl", range(count))
    index = tmp_path / "index"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'protos'}"}
    command = [sys.executable, "-c", BUILD, str(rows), str(index)]
    command += [config.address, config.collection]
    inserted = 0
    with subprocess.Popen(command, cwd=ROOT, env=environment) as child:
        while not inserted and child.poll() is None:
            with suppress(MilvusException):  # there is no collection yet
                inserted = entities(config)
        child.kill()
    assert child.returncode == -signal.SIGKILL
    assert 0 < entities(config) < count

    built, opened = build(index, rows, config)

    assert built.embedded == 0
    assert entities(config) == count
    assert best(opened, "row 4999") == "row 4999"


async def test_a_search_fails_while_milvus_is_away(
    tmp_path: Path, word_embedder: EmbedderConfig
) -> None:
    """Readiness names the retriever, the index opens all the same, and searches go on later."""
    (tmp_path / "cat.txt").write_text("The cat hunts mice.")
    with MilvusServer(tmp_path / "data") as server:
        config = RetrievalConfig(
            index=str(tmp_path / "index"),
            documents=(str(tmp_path / "cat.txt"),),
            embedder=word_embedder,
            milvus=MilvusConfig(address=server.address, partition="main", timeout_s=1.0),
        )
        async with open_retriever(config, lambda _step: None) as retriever:
            assert [row.text for row in (await retriever.search(["cat"], 1))[0]]
            await asyncio.to_thread(server.stop)
            await see_failure(retriever)

        async with open_retriever(config, lambda _step: None) as retriever:
            readiness = await see_failure(retriever)
            await asyncio.to_thread(server.start)
            watched = WatchedRetriever(retriever, readiness)
            async with asyncio.timeout(60):
                while readiness.down(["retrieval"]):
                    await watched.probe()
            assert [row.text for row in (await watched.search(["mice"], 1))[0]]


async def see_failure(retriever: IndexRetriever) -> Readiness:
    """Search without success; return the registry with the failure."""
    readiness = Readiness()
    watched = WatchedRetriever(retriever, readiness)
    with pytest.raises(
        UpstreamUnavailable, match=r"retrieval at http://127.*: Milvus rolegate/main: .*"
    ):
        await watched.search(["dog"], 1)
    await watched.probe()
    assert "Milvus rolegate/main" in str(readiness.down(["retrieval"]))
    return readiness


def test_a_build_inserts_again_what_milvus_has_lost(tmp_path: Path, config: MilvusConfig) -> None:
    """It embeds nothing, although no document has changed."""
    from pymilvus import MilvusClient

    rows = write(tmp_path / "rows.jsonl", range(20))
    build(tmp_path / "index", rows, config)
    client = MilvusClient(config.address)
    client.delete(config.collection, filter="id != 0", partition_name=config.partition)
    built, index = build(tmp_path / "index", rows, config)
    client.drop_collection(config.collection)
    again, index_again = build(tmp_path / "index", rows, config)

    assert (built.embedded, again.embedded) == (0, 0)
    assert (best(index, "row 7"), best(index_again, "row 7")) == ("row 7", "row 7")
    assert build(tmp_path / "index", rows, config)[0].manifest == again.manifest


def test_a_collection_of_another_dimension_is_refused(tmp_path: Path, config: MilvusConfig) -> None:
    """The error comes before anything is embedded, and says what to name."""
    MilvusStore(config)._partition.create(4)
    embedder = Clustered()
    rows = write(tmp_path / "rows.jsonl", range(5))
    with pytest.raises(
        BadIndex, match=r"dimension 4, and the embedder 16; name another `milvus.collection`"
    ):
        build_index([rows], tmp_path / "index", embedder, store=MilvusStore(config))
    assert embedder.texts == []


async def test_a_server_that_does_not_answer_blocks_no_start(
    tmp_path: Path, word_embedder: EmbedderConfig
) -> None:
    """The previous index opens within the timeouts, while the event loop goes on."""
    (tmp_path / "cat.txt").write_text("The cat hunts mice.")
    with MilvusServer(tmp_path / "data") as server:
        config = RetrievalConfig(
            index=str(tmp_path / "index"),
            documents=(str(tmp_path / "cat.txt"),),
            embedder=word_embedder,
            milvus=MilvusConfig(address=server.address, partition="main", timeout_s=3.0),
        )
        async with open_retriever(config, lambda _step: None):
            pass
        steps: list[str] = []
        ticks: list[float] = []
        with server.frozen():
            async with (
                asyncio.timeout(30),
                background_tasks(tick(ticks)),
                open_retriever(config, steps.append) as retriever,
            ):
                with pytest.raises(UpstreamUnavailable, match=r"raise `milvus.timeout_s`"):
                    await retriever.search(["cat"], 1)
        assert "serving the old index" in steps[0]
        assert max(after - before for before, after in pairwise(ticks)) < 1.5


async def tick(times: list[float]) -> None:
    """Note the times at which the event loop comes round."""
    while True:
        times.append(time.monotonic())
        await asyncio.sleep(0.01)


def test_a_lost_collection_is_named(tmp_path: Path, config: MilvusConfig) -> None:
    """A search does not take an empty collection for an answer."""
    from pymilvus import MilvusClient

    rows = write(tmp_path / "rows.jsonl", range(10))
    _, index = build(tmp_path / "index", rows, config)
    MilvusClient(config.address).drop_collection(config.collection)

    with pytest.raises(UpstreamUnavailable, match="does not exist; run `rolegate index build`"):
        best(index, "row 1")


def test_an_emptied_partition_is_named(tmp_path: Path, config: MilvusConfig) -> None:
    """A search does not take nothing for an answer, unless a filter admits nothing."""
    from pymilvus import MilvusClient

    rows = write(tmp_path / "rows.jsonl", range(10))
    _, index = build(tmp_path / "index", rows, config)
    vectors = Clustered().embed(["row 1"], queries=True)
    assert index.search(vectors, ["row 1"], 1, None, DocumentFilter(title="none")) == [[]]
    client = MilvusClient(config.address)
    client.delete(config.collection, filter="id != 0", partition_name=config.partition)

    with pytest.raises(UpstreamUnavailable, match="is empty; run `rolegate index build`"):
        best(index, "row 1")


def test_a_retrieval_server_searches_the_vectors_of_the_file(
    tmp_path: Path, config: MilvusConfig, word_embedder: EmbedderConfig
) -> None:
    """`retrieve serve` has no config, and needs no Milvus."""
    rows = write(tmp_path / "rows.jsonl", range(10))
    embedder = word_embedder
    endpoint = EndpointEmbedder(
        embedder.base_url or "", embedder.model or "", dimension=embedder.dimension or 0
    )
    with closing(endpoint):
        build_index([rows], tmp_path / "index", endpoint, store=MilvusStore(config))
    options = {
        "--index": tmp_path / "index",
        "--address": "127.0.0.1:0",
        "--http": "127.0.0.1:0",
        "--embedder-url": embedder.base_url,
        "--embedder-model": embedder.model,
        "--embedder-dimension": embedder.dimension,
    }
    arguments = [str(word) for option in options.items() for word in option]
    with service("retrieve", "serve", *arguments, cwd=tmp_path) as served:
        url = served.ready().split()[-1]
        body = json.dumps({"queries": ["row 7"]}).encode()
        with urllib.request.urlopen(url, body, timeout=30) as response:
            (documents,) = json.load(response)["result"]
    assert documents[0]["id"] == "7"
