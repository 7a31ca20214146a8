"""The indexes that searches may use. A search sees only the indexes and documents in its scope."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

from msgspec.structs import replace

from router.background import task_group
from router.frozen import Frozen
from router.protocol import Passage
from router.search.retrieval import IndexRetriever, Reranked
from router.trace.call import sum_known
from router.trace.scope import (
    DEFAULT_INDEX,
    DEFAULT_SCOPE,
    Scope,
    no_index,
)

Item = TypeVar("Item", bound=Hashable)


def fused(rankings: Iterable[Iterable[Item]]) -> dict[Item, float]:
    """Merge rankings by reciprocal rank fusion, and return the score of each item, best first. The
    score is the sum of 1 / (60 + rank) over the rankings, with ranks from 1. Items with equal
    scores are in the order in which they first occur.
    """
    scores = dict[Item, float]()
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] = scores.get(item, 0.0) + 1 / (60 + rank)
    return dict(sorted(scores.items(), key=lambda scored: -scored[1]))


class Indexes(Frozen):
    """All indexes of a gateway, by name. Each search has a scope: the indexes and the documents to
    which it is limited.
    """

    retrievers: Mapping[str, IndexRetriever]
    """Retrievers by the name of their index."""
    uploads: Callable[[str], IndexRetriever] | None = None
    """Returns the retriever of a tenant's uploads; None if the gateway accepts no uploads."""

    @classmethod
    def of(cls, searched: "IndexRetriever | Indexes") -> "Indexes":
        """Return `searched` itself if it is `Indexes`. If it is a retriever, return `Indexes` with
        this retriever as the default index, and no others.
        """
        if not isinstance(searched, Indexes):
            return cls({DEFAULT_INDEX: searched})
        return searched

    def index_id(self, scope: Scope) -> str | None:
        """Return an identifier of the contents of a scope's indexes, or None if the contents of one
        of these indexes are unknown; see `IndexRetriever.index_id`. Raises `NotFound` if an index
        of the scope does not exist.
        """
        ids = [retriever.index_id for _, retriever in self._within(scope)]
        if scope == DEFAULT_SCOPE:
            return ids[0]
        return None if None in ids else f"{scope} {ids}"

    async def search(
        self,
        scope: Scope,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
    ) -> list[list[Passage]]:
        """Search only the indexes and documents in `scope`. The passages of several indexes are
        merged by rank. For the other parameters and errors, see `IndexRetriever.search`. Also
        raises `NotFound` if an index of the scope does not exist.

        Passages of the default index are returned unchanged. In passages of another index, the name
        of the index and a colon are put before `id` and `document`.
        """
        if scope == DEFAULT_SCOPE:
            return await self.retrievers[DEFAULT_INDEX].search(queries, top_k, document)

        async def search(prefix: str, retriever: IndexRetriever) -> list[list[Passage]]:
            if document is not None and not document.startswith(prefix):
                return [[] for _ in queries]
            own = None if document is None else document.removeprefix(prefix)
            ranked = await retriever.search(queries, top_k, own, scope.filter)
            return [
                _like([passages], [_prefixed(passage, prefix) for passage in passages])
                for passages in ranked
            ]

        async with task_group() as group:
            searches = [group.create_task(search(*item)) for item in self._within(scope)]
        by_query = zip(*(search.result() for search in searches), strict=True)
        if len(searches) == 1 or document is not None:
            merged = ((rankings, list(chain.from_iterable(rankings))) for rankings in by_query)
        else:
            merged = ((rankings, _merged(rankings, top_k)) for rankings in by_query)
        return [_like(rankings, passages) for rankings, passages in merged]

    def _within(self, scope: Scope) -> Iterator[tuple[str, IndexRetriever]]:
        """Yield a pair for each index of a scope: the prefix that `search` puts before the
        passages' ids and documents, and the index's retriever.
        """
        for name in scope.indexes:
            index, _, tenant = name.partition("/")
            if tenant and self.uploads:  # see `uploads_of`
                yield f"{index}:", self.uploads(tenant)
            elif name in self.retrievers:
                yield "" if name == DEFAULT_INDEX else f"{name}:", self.retrievers[name]
            else:
                raise no_index(name)


def _prefixed(passage: Passage, prefix: str) -> Passage:
    document = passage.document and prefix + passage.document
    return replace(passage, id=prefix + passage.id, document=document)


def _like(rankings: Sequence[list[Passage]], passages: list[Passage]) -> list[Passage]:
    """Return `passages`, which are taken from `rankings`. If a reranker was asked to order any
    ranking, the returned list is a `Reranked`. Its record stands for all these calls, with the sum
    of their tokens and the first error.
    """
    calls = [ranking.reranking for ranking in rankings if isinstance(ranking, Reranked)]
    if not calls:
        return passages
    error = next((call.error for call in calls if call.error), None)
    tokens = sum_known([call.tokens for call in calls])
    return Reranked(passages, replace(calls[0], tokens=tokens, error=error))


def _merged(rankings: Sequence[Sequence[Passage]], top_k: int) -> list[Passage]:
    """Return the `top_k` best passages of several indexes. Of passages with the same text, only the
    first is returned.
    """
    by_text = dict[str, Passage]()
    for passage in chain.from_iterable(rankings):
        by_text.setdefault(passage.text, passage)
    scores = fused([passage.text for passage in ranking] for ranking in rankings)
    return [replace(by_text[text], score=scores[text]) for text in islice(scores, top_k)]
