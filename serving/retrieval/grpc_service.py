"""`rolegate.v1.RetrievalService` over any retriever."""

from collections.abc import Callable, Sequence

import grpc.aio
from rolegate.v1 import evidence_pb2
from rolegate.v1.retrieval_service_pb2 import QueryPassages, SearchRequest, SearchResponse
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceServicer

from router.protocol.evidence import Passage
from router.search.retrieval import Retriever
from serving.retrieval.limits import check_queries, chosen_top_k


class RetrievalServicer(RetrievalServiceServicer):
    """Checks, converts, searches, converts. Errors of `router.errors` pass through to the server's translator."""

    def __init__(
        self, retriever: Retriever, *, default_top_k: int = 3, index_id: Callable[[], str | None] = lambda: None
    ) -> None:
        """`index_id`: as `IndexRetriever.index_id`."""
        self._retriever, self._index_id = retriever, index_id
        self._default_top_k = default_top_k

    async def Search(
        self, request: SearchRequest, context: grpc.aio.ServicerContext[SearchRequest, SearchResponse]
    ) -> SearchResponse:
        """Raises `BadRequest`, and what the retriever raises."""
        check_queries(request.queries)
        queries = list(request.queries)
        top_k = chosen_top_k(request.top_k, self._default_top_k, len(queries))
        response = response_to_proto(await self._retriever.search(queries, top_k))
        response.index_id = self._index_id() or ""
        return response


def response_to_proto(results: Sequence[Sequence[Passage]]) -> SearchResponse:
    """The passages of each query as a message."""
    return SearchResponse(
        results=[QueryPassages(passages=[passage_to_proto(passage) for passage in passages]) for passages in results]
    )


def passage_to_proto(passage: Passage) -> evidence_pb2.Passage:
    """A passage as a message."""
    return evidence_pb2.Passage(
        passage_id=passage.id,
        title=passage.title,
        text=passage.text,
        score=passage.score,
        document=passage.document,
        page=passage.page,
    )
