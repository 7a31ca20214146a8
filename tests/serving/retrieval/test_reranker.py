"""A reranker orders the passages of a search; if it fails, the order of the search stands."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from structlog.testing import capture_logs

from router.errors import UpstreamUnavailable
from router.models.session import upstream_session
from router.protocol import Passage
from router.search.retrieval import Reranked
from router.trace.scope import NO_FILTER, DocumentFilter
from router.trace.values import Reranking
from serving.config.config import EngineConfig
from serving.engines.engine import engine
from serving.retrieval.reranker import RerankedRetriever, reranked
from tests.router.retriever import FixedRetriever
from tests.serving.retrieval.scripted_reranker import (
    MODEL,
    reranking,
    says,
    scores_shortest_first,
    shortest_first,
)

TEXTS = ("the longest text", "a text", "some text")
PASSAGES = [
    Passage(f"p{number}", "T", text, 0.9 - number / 10, "a.txt")
    for number, text in enumerate(TEXTS)
]
SCORES = [{"index": number, "relevance_score": number / 4} for number in range(3)]


class Index(FixedRetriever):
    """A retriever with a name, which records how many passages are asked for."""

    index_id: str | None = "an index"

    def __init__(self) -> None:
        super().__init__({"q": PASSAGES, "one": PASSAGES[:1]})
        self.counts: list[int] = []

    async def search(
        self,
        queries: Any,
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """See `IndexRetriever.search`."""
        self.counts.append(top_k)
        return await super().search(queries, top_k, document)


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with upstream_session() as session:
        yield session


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


async def test_the_best_of_the_candidates_are_returned(session: aiohttp.ClientSession) -> None:
    """More passages than asked for are scored, each with its title; scores become the reranker's,
    and the tokens are the endpoint's.
    """
    index = Index()
    usage = {"prompt_tokens": 41, "total_tokens": 42}
    async with reranking(shortest_first(usage=usage)) as server:
        ((first, second),) = ranked = await reranked(index, server.config(), session).search(
            ["q"], 2
        )

    assert ids([first, second]) == ["p1", "p2"]
    assert first.score == pytest.approx(1 / len("T\na text"))
    assert isinstance(ranked[0], Reranked)
    assert ranked[0].reranking == Reranking(MODEL, 42)
    assert server.bodies == [
        {"model": MODEL, "query": "q", "documents": [f"T\n{text}" for text in TEXTS]}
    ]
    assert index.counts == [30]


async def test_an_endpoint_in_the_form_of_score_orders_too(session: aiohttp.ClientSession) -> None:
    """Its requests have other names. A reply in the other form is a failure."""
    usage = {"prompt_tokens": 41, "total_tokens": 42}
    async with reranking(scores_shortest_first(usage=usage)) as server:
        retriever = reranked(Index(), server.config(form="score"), session)
        ((first, second),) = ranked = await retriever.search(["q"], 2)
        server.reply = says(results(*SCORES))
        (kept,) = await retriever.search(["q"], 2)

    assert ids([first, second]) == ["p1", "p2"]
    assert first.score == pytest.approx(1 / len("T\na text"))
    assert isinstance(ranked[0], Reranked)
    assert ranked[0].reranking == Reranking(MODEL, 42)
    assert server.bodies[0] == {
        "model": MODEL,
        "text_1": "q",
        "text_2": [f"T\n{text}" for text in TEXTS],
    }
    assert ids(kept) == ["p0", "p1"]
    assert isinstance(kept, Reranked)
    assert "missing required field `data`" in (kept.reranking.error or "")


async def test_each_query_is_reranked(session: aiohttp.ClientSession) -> None:
    """A query without passages is not; a search for more passages than candidates gets them."""
    index = Index()
    async with reranking(shortest_first()) as server:
        retriever = reranked(index, server.config(candidates=2), session)
        found = await retriever.search(["q", "nothing", "one"], 3)

    assert list(map(ids, found)) == [["p1", "p2", "p0"], [], ["p0"]]
    assert sorted(body["query"] for body in server.bodies) == ["one", "q"]
    assert index.counts == [3, 3, 3]
    assert isinstance(found[0], Reranked)
    assert found[0].reranking.tokens is None


async def test_an_opened_document_keeps_its_order(session: aiohttp.ClientSession) -> None:
    async with reranking(shortest_first()) as server:
        (found,) = await reranked(Index(), server.config(), session).search(["q"], 3, "a.txt")
    assert ids(found) == ["p0", "p1", "p2"]
    assert not server.bodies


async def test_the_key_is_sent_and_hidden(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that repeats it does not put it into the record."""
    monkeypatch.setenv("RERANK_KEY", "sesame-open")
    async with reranking(says("no sesame-open here", 401)) as server:
        config = server.config(api_key_env="RERANK_KEY")
        (found,) = await reranked(Index(), config, session).search(["q"], 3)

    assert server.headers[0]["Authorization"] == "Bearer sesame-open"
    assert isinstance(found, Reranked)
    assert found.reranking.error is not None
    assert "HTTP 401: no *** here; check the API key" in found.reranking.error


def results(*scores: Mapping[str, object], **more: object) -> str:
    return json.dumps({"results": scores, **more})


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (503, "busy", "HTTP 503: busy"),
        (400, "the text is too long", "HTTP 400: the text is too long"),
        (302, "", "HTTP 302"),
        (200, "<html>", "the reply is malformed"),
        (200, "[" * 100_000, "the reply is malformed"),
        (200, '{"data": []}', "the reply is malformed"),
        (200, results(*SCORES, usage={"total_tokens": -1}), "the reply is malformed"),
        (200, results(*SCORES, usage={"total_tokens": 1 << 70}), "the reply is malformed"),
        (200, results({"index": 0}, *SCORES[1:]), "the reply is malformed"),
        (200, results(*SCORES).replace("0.5", "NaN"), "the reply is malformed"),
        (200, results(*SCORES).replace("0.5", "1e999"), "the reply is malformed"),
        (200, results(*SCORES).replace("0.5", "null"), "the reply is malformed"),
        (200, results(*SCORES[:2]), r"one score per passage.*\(passages: 3, scores: 2\)"),
        (200, results(*SCORES, SCORES[0]), r"\(passages: 3, scores: 4\)"),
        (200, results(*SCORES[:2], SCORES[0]), r"\(passages: 3, scores: 3\)"),
        (200, results(*SCORES[:2], {**SCORES[2], "index": 3}), r"\(passages: 3, scores: 3\)"),
        (200, results(*SCORES[:2], {**SCORES[2], "index": -1}), r"\(passages: 3, scores: 3\)"),
        (200, " " * (5 << 20), "the reply has more than 4096 KiB"),
    ],
)
async def test_after_a_failure_the_order_of_the_search_stands(
    session: aiohttp.ClientSession, status: int, body: str, error: str
) -> None:
    """The record says why, and so does the log; there are no tokens, and no more than `top_k`
    passages.
    """
    async with reranking(says(body, status)) as server:
        with capture_logs() as logs:
            (found,) = await reranked(Index(), server.config(), session).search(["q"], 2)

    assert found == PASSAGES[:2]
    assert isinstance(found, Reranked)
    failure = found.reranking
    assert (failure.model, failure.tokens) == (MODEL, None)
    with pytest.raises(ValueError, match=error):
        raise ValueError(failure.error)
    assert [(log["event"], log["error"]) for log in logs] == [("reranker.failed", failure.error)]


async def test_a_reranker_that_hangs_or_is_down_delays_no_search_for_long(
    session: aiohttp.ClientSession,
) -> None:
    """The limit is `reranker.timeout_s`."""

    over = asyncio.Event()

    async def hangs(_body: dict[str, Any]) -> web.Response:
        await over.wait()
        return web.Response()

    async with reranking(hangs) as server:
        config = server.config(timeout_s=0.05)
        async with asyncio.timeout(5):
            (hung,) = await reranked(Index(), config, session).search(["q"], 2)
        over.set()
    (refused,) = await reranked(Index(), config, session).search(["q"], 2)

    for found, error in ((hung, "TimeoutError"), (refused, "ClientConnectorError")):
        assert found == PASSAGES[:2]
        assert isinstance(found, Reranked)
        assert error in (found.reranking.error or "")


async def test_a_failed_search_fails(session: aiohttp.ClientSession) -> None:
    """Only failures of the reranker are survived."""

    class Down(Index):
        async def search(self, *_args: Any) -> list[list[Passage]]:
            raise UpstreamUnavailable("is down", endpoint="index")

    async with reranking(shortest_first()) as server:
        with pytest.raises(UpstreamUnavailable, match="is down"):
            await reranked(Down(), server.config(), session).search(["q", "one"], 2)
    assert not server.bodies


async def test_the_index_is_named_by_the_reranker_too(session: aiohttp.ClientSession) -> None:
    """Another model or number of candidates is another index; another address is the same. An
    unknown index stays unknown. Without a reranker, nothing is wrapped.
    """
    async with reranking(shortest_first()) as server:
        config = server.config()
    names = {
        RerankedRetriever(Index(), changed, session).index_id
        for changed in (config, server.config(candidates=20), server.config(timeout_s=1))
    }
    assert names == {"an index 30 cross", "an index 20 cross"}
    unknown = Index()
    unknown.index_id = None
    assert RerankedRetriever(unknown, config, session).index_id is None
    assert reranked(unknown, None, session) is unknown


def _cross_encoder(folder: Path) -> None:
    """Write a small model with random weights, whose vocabulary is the words of the test."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import BertProcessing
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    marks = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = (*marks, *sorted({*" ".join(TEXTS).split(), "T", "q"}))
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, **dict(zip(names, marks, strict=True))
    ).save_pretrained(folder)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


@pytest.mark.engines
async def test_an_engine_of_vllm_reranks(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Its scores are those of its model, and it counts its tokens, at both routes."""
    await asyncio.to_thread(_cross_encoder, tmp_path / "cross")
    started = EngineConfig(
        path=str(tmp_path / "cross"), arguments=("--runner", "pooling", "--dtype", "float32")
    )
    async with (
        engine("cross", started, [MODEL], lambda _step: None, logs=tmp_path) as url,
        reranking(shortest_first()) as server,
    ):
        server.base_url = url
        (found,) = await reranked(Index(), server.config(timeout_s=60), session).search(["q"], 3)
        scoring = server.config(timeout_s=60, form="score")
        (scored,) = await reranked(Index(), scoring, session).search(["q"], 3)
        expected = await asyncio.to_thread(_scored_by_transformers, tmp_path / "cross")

    assert isinstance(found, Reranked)
    assert isinstance(scored, Reranked)
    assert found.reranking.error is None
    assert scored.reranking == found.reranking
    assert ids(scored) == ids(found)
    assert [at.score for at in scored] == pytest.approx([at.score for at in found], abs=1e-4)
    # 3 of [CLS] and [SEP], the query, the title and the words of each text
    assert found.reranking.tokens == sum(3 + 2 + len(text.split()) for text in TEXTS)
    assert ids(found) == sorted(expected, key=lambda name: -expected[name])
    assert {passage.id: passage.score for passage in found} == pytest.approx(expected, abs=1e-3)


def _scored_by_transformers(folder: Path) -> dict[str, float]:
    """Return the model's scores by the passages' ids."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    texts = [f"T\n{text}" for text in TEXTS]
    pairs = tokenizer(["q"] * 3, texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        scores = torch.sigmoid(model(**pairs).logits[:, 0]).tolist()
    return {passage.id: score for passage, score in zip(PASSAGES, scores, strict=True)}
