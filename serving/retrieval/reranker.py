"""Reranking: a model sorts the results of a search by relevance. The model's endpoint has the
rerank API of Jina, Cohere and vLLM (`POST …/rerank`), or the score API of vLLM (`POST …/score`).

A search never fails because of the reranker. If reranking fails, the passages keep their order, and
the error is recorded with the search.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated

import aiohttp
import structlog
from msgspec import Meta, field
from msgspec.structs import replace

from router.amount import NOTHING, Amount
from router.calls.attempts import BYTES_PER_TOKEN
from router.errors import BudgetExhausted, UpstreamError
from router.frozen import Frozen
from router.ledger.ledger import Caller
from router.models import Usage
from router.protocol import Passage
from router.search.retrieval import BOOKING, IndexRetriever, Reranked
from router.trace import Price
from router.trace.scope import NO_FILTER, DocumentFilter
from router.trace.values import Reranking
from serving.config.config import RerankerConfig
from serving.config.secrets import api_key
from serving.retrieval.endpoint import JSONEndpoint

_MAX_CHARS = 8000
"""Max characters to send to the model for each passage, including the passage's title."""
_MAX_MARKS = 16
"""Max tokens that a model adds to a pair of query and passage, such as separators."""
_log = structlog.get_logger("reranker")


class _Score(Frozen):
    index: int
    """Number of the passage in the request, from 0."""
    relevance_score: float
    """Higher for a more relevant passage; always finite, like all numbers in JSON."""


class _ListedScore(_Score):
    relevance_score: float = field(name="score")


class _Usage(Frozen):
    total_tokens: Annotated[int, Meta(ge=0, le=10**9)] | None = None


class _Reply(Frozen):
    results: Sequence[_Score]
    usage: _Usage | None = None


class _ScoreReply(_Reply):
    results: Sequence[_ListedScore] = field(name="data")


_FORMS = {"rerank": ("query", "documents", _Reply), "score": ("text_1", "text_2", _ScoreReply)}
"""The APIs of endpoints, by the last part of the URL. For each API: the key of the query in a
request, the key of the texts in a request, and the type of the reply.
"""


async def rerank(
    config: RerankerConfig, session: aiohttp.ClientSession, query: str, passages: list[Passage]
) -> Reranked:
    """Call the reranker, and return all `passages` with the reranker's scores, the passage most
    relevant to `query` first. Raises `UpstreamUnavailable`, `UpstreamRefused` or
    `UpstreamProtocolError`.
    """
    query_name, texts_name, reply_type = _FORMS[config.form]
    url = f"{config.base_url.rstrip('/')}/{config.form}"
    endpoint = JSONEndpoint(config.model, url, api_key(config.api_key_env), config.timeout_s)
    texts = [_text(passage) for passage in passages]
    fields = {"model": config.model, query_name: query, texts_name: texts}
    reply = await endpoint.post(session, fields, reply_type)

    if sorted(score.index for score in reply.results) != list(range(len(texts))):
        raise endpoint.upstream.protocol_error(
            "the reply must have one score per passage, with the passage's index (passages: "
            f"{len(texts)}, scores: {len(reply.results)}); check form and base_url in [reranker]"
        )
    best = sorted(reply.results, key=lambda score: -score.relevance_score)
    ranked = [replace(passages[score.index], score=score.relevance_score) for score in best]
    tokens = reply.usage.total_tokens if reply.usage else None
    return Reranked(ranked, Reranking(config.model, tokens))


def _text(passage: Passage) -> str:
    return f"{passage.title}\n{passage.text}"[:_MAX_CHARS]


class RerankedRetriever(Frozen):
    """An `IndexRetriever` that finds more passages than requested, reranks them, and returns the
    best of them.
    """

    retriever: IndexRetriever
    config: RerankerConfig
    session: aiohttp.ClientSession
    price: Price | None = None
    """Price of the reranker's tokens; None if it is unknown."""

    @property
    def index_id(self) -> str | None:
        """Identifier of the index, with the number of passages that are reranked and the name of
        the reranker's model. None if the index has no identifier.
        """
        inner = self.retriever.index_id
        return inner and f"{inner} {self.config.candidates} {self.config.model}"

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Search and rerank, as `IndexRetriever.search` specifies. If `document` is given, nothing
        is reranked.
        """
        if document is not None:
            return await self.retriever.search(queries, top_k, document, only)
        # One search per query, because servers limit the passages of all queries together
        return await asyncio.gather(*(self._search(query, top_k, only) for query in queries))

    async def _search(self, query: str, top_k: int, only: DocumentFilter) -> list[Passage]:
        candidates = max(top_k, self.config.candidates)
        (passages,) = await self.retriever.search([query], candidates, None, only)
        if not passages:
            return passages
        try:
            best = await self._booked(query, passages)
        except (UpstreamError, BudgetExhausted) as error:
            _log.warning("reranker.failed", error=str(error))
            best = Reranked(passages, Reranking(self.config.model, error=str(error)))
        del best[top_k:]
        return best

    async def _booked(self, query: str, passages: list[Passage]) -> Reranked:
        """Return reranked passages. If the search belongs to a run, record the model call in the
        run's ledger. The ledger may refuse the call because of a token or cost limit.
        """
        booking = BOOKING.get()
        if booking is None:
            return await rerank(self.config, self.session, query, passages)
        # Upper bound of the prompt's tokens: a tokenizer makes at most one token per byte
        texts = (query + _text(passage) for passage in passages)
        bound = sum(len(text.encode()) + _MAX_MARKS for text in texts)
        worst = NOTHING
        if booking.ledger.limited:
            worst = Amount(bound, self.price.max_cost(bound, 0) if self.price else None)
        caller = Caller(
            "execution",
            self.config.model,
            self.config.base_url,
            booking.sub_query_index,
            price=self.price,
            prompt_bound=bound,
        )
        async with booking.ledger.attempt(caller, "rerank", 1, worst) as attempt:
            best = await rerank(self.config, self.session, query, passages)
            tokens = best.reranking.tokens
            if tokens is None:  # record an estimate, because the bound is several times too high
                estimate = max(1, bound // BYTES_PER_TOKEN)
                attempt.usage = Usage(estimate, 0, estimated=True)
            else:
                attempt.usage = Usage(tokens, 0)
        return best


def reranked(
    retriever: IndexRetriever,
    config: RerankerConfig | None,
    session: aiohttp.ClientSession,
    prices: Mapping[str, Price] = {},
) -> IndexRetriever:
    """Return a retriever that reranks the passages of `retriever`. Return `retriever` itself if
    `config` is None. `prices`: prices of models, by the model's name.
    """
    if config is None:
        return retriever
    return RerankedRetriever(retriever, config, session, prices.get(config.model))
