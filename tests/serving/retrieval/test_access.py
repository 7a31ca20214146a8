"""Opening documents: only the passages of one document, in its order, from a local or
remote index.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import faiss
import pytest

from router.errors import BadConfig, UpstreamRefused, UpstreamUnavailable
from router.models import Prompt
from router.protocol import Passage
from router.search import Executor
from router.search.agent import ExecutorLimits
from serving.retrieval.build import build_index
from serving.retrieval.embedder import MiniLM
from serving.retrieval.faiss_index import FaissIndex
from serving.retrieval.index import Index
from serving.retrieval.opening import check_access
from serving.retrieval.searcher import IndexSearcher
from tests.router.deployment import lasting, report, role
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel
from tests.serving.retrieval.test_services import remote

FATES = [
    "dredged",
    "sold to a company of fishermen",
    "frozen for a month",
    "painted by Ivo Brandt",
    "lit by gas",
    "closed",
]
YEARS = {
    1900 + year: f"In {1900 + year}, the harbour of Aldsay was {FATES[year % 5]}."
    for year in range(48)
}


@pytest.fixture(scope="module", params=[False, True], ids=["faiss", "with bm25"])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, embedder: MiniLM
) -> Index:
    """An index of two documents with many passages each, and of rows."""
    lexical: bool = request.param
    folder: Path = tmp_path_factory.mktemp("access")
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "harbour.txt").write_text("\n\n".join(YEARS.values()), "utf-8")
    (corpus / "other.txt").write_text(
        "\n\n".join(text.replace("Aldsay", "Fenmoor") for text in YEARS.values()), "utf-8"
    )
    row = {"id": "ada", "title": "Ada", "text": "Ada painted the harbour of Aldsay."}
    (corpus / "rows.jsonl").write_text(f"{json.dumps(row)}\n", "utf-8")
    build_index(
        sorted(corpus.iterdir()), folder / "index", embedder, lexical=lexical, chunk_tokens=32
    )
    return Index.open(folder / "index", embedder)


def search(
    index: Index, embedder: MiniLM, query: str, top_k: int, document: str | None
) -> list[Passage]:
    (passages,) = index.search(embedder.embed([query], queries=True), [query], top_k, document)
    return passages


def row_of(passage: Passage) -> int:
    """Return the position of a passage in its document."""
    return int(passage.id.rpartition("#")[2])


def test_the_best_of_one_document_in_its_order(opened: Index, embedder: MiniLM) -> None:
    """Passages are unchanged, ranked by meaning and word, and not limited to the best of the whole
    index.
    """
    everything = search(opened, embedder, "anything", 1000, "harbour.txt")
    assert len(everything) > 10
    assert [row_of(passage) for passage in everything] == list(range(1, len(everything) + 1))
    written = " ".join(" ".join(passage.text for passage in everything).split())
    assert all(text in written for text in YEARS.values())
    few = search(opened, embedder, "Who painted it in 1928?", 3, "harbour.txt")
    assert {passage.document for passage in few} == {"harbour.txt"}
    assert [row_of(passage) for passage in few] == sorted(map(row_of, few))
    assert any(YEARS[1928] in passage.text for passage in few)
    assert {(passage.id, passage.text) for passage in few} <= {
        (passage.id, passage.text) for passage in everything
    }


def test_rows_and_unknown_documents(opened: Index, embedder: MiniLM) -> None:
    """A row is a document; an unknown document has no passages."""
    assert [passage.id for passage in search(opened, embedder, "harbour", 9, "rows.jsonl#ada")] == [
        "ada"
    ]
    assert all(
        search(opened, embedder, "harbour", 9, name) == []
        for name in ("rows.jsonl", "", "\0", "harbour")
    )


async def test_callers_share_a_batch(opened: Index, embedder: MiniLM) -> None:
    """One query for all documents and for each of two gets the right passages, in one batch and
    from the cache.
    """
    searcher = IndexSearcher(opened, embedder)
    try:
        for _ in range(2):
            places = [None, "harbour.txt", "other.txt", "rows.jsonl#ada", "no such"]
            results = await asyncio.gather(
                *(searcher.search(["painted"], 4, place) for place in places)
            )
            documents = [{passage.document for passage in passages} for (passages,) in results]
            assert documents[0]
            assert documents[1:] == [{"harbour.txt"}, {"other.txt"}, {"rows.jsonl#ada"}, set()]
    finally:
        await searcher.close()


async def test_an_executor_reads_on(opened: Index, embedder: MiniLM) -> None:
    """An executor searches, opens a result, and cites a sentence that no search has returned."""
    searcher = IndexSearcher(opened, embedder)

    def says(prompt: Prompt) -> str:
        match len(prompt.messages):
            case 2:
                return "<search>harbour of Aldsay</search>"
            case 4:
                name = re.findall("<name>(harbour[^<]*)</name>", prompt.messages[-1].content)[0]
                return f'<access document="{name}">sold to a company of fishermen in 1931</access>'
        return report("fishermen", YEARS[1931])

    worker = ScriptedModel(says)
    limits = ExecutorLimits(max_turns=4, max_searches=3, top_k=2, access_k=5)
    try:
        executor = Executor(role("execution", worker), searcher, limits)
        execution = await executor.run("Who bought it in 1931?", 0, lasting())
    finally:
        await searcher.close()
    assert (execution.outcome, len(execution.searches[1].passages)) == ("reported", 5)
    ((citation, *_),) = execution.citations(execution.report.evidence)
    assert (citation.document, YEARS[1931] in citation.quote) == ("harbour.txt", True)


async def test_by_address(opened: Index, embedder: MiniLM) -> None:
    """A remote server opens the documents of its index."""
    searcher = IndexSearcher(opened, embedder)
    try:
        async with remote(searcher) as client:
            for place in ("harbour.txt", "no such", "", None):
                assert await client.search(["painted"], 4, place) == await searcher.search(
                    ["painted"], 4, place
                )
            await check_access(client)
    finally:
        await searcher.close()


class Deaf:
    """A retriever that ignores the document, like older servers."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        return [list(self._passages[:top_k]) for _ in queries]


async def test_a_retriever_that_cannot_open_is_refused_at_start(
    opened: Index, embedder: MiniLM
) -> None:
    """A server that ignores the document, passages without documents, and an index without vectors
    are refused; a server that is down is not.
    """
    passage = Passage("p", "Heat", "Heat is a film.", 0.5, "heat.txt")
    async with remote(Deaf([passage])) as client:
        with pytest.raises(UpstreamRefused, match="cannot search within one document"):
            await client.search(["film"], 1, "other.txt")
        with pytest.raises(BadConfig, match=r"update the server, or set search\.access to false"):
            await check_access(client)
    async with remote(Deaf([Passage("p", "Heat", "Heat is a film.")])) as client:
        with pytest.raises(BadConfig, match="does not record the documents"):
            await check_access(client)
    async with remote(Deaf([])) as client:
        await check_access(client)
    lists = faiss.index_factory(opened.dense.dimension, "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    vectors = embedder.embed(
        [opened.passages[row].text for row in range(len(opened.passages))], queries=False
    )
    lists.train(vectors)
    lists.add(vectors)
    searcher = IndexSearcher(
        Index(opened.manifest, opened.passages, FaissIndex(lists), None), embedder
    )
    try:
        with pytest.raises(BadConfig, match="does not store the original vectors"):
            await check_access(searcher)
    finally:
        await searcher.close()


async def test_a_server_that_is_down_is_not_refused() -> None:
    """It may open documents when it is up."""

    class Away:
        async def search(
            self, queries: Sequence[str], top_k: int, document: str | None = None
        ) -> list[list[Passage]]:
            raise UpstreamUnavailable("refused", endpoint="127.0.0.1:9")

    await check_access(Unfiltered(Away()))
