"""Retrieval from a server with the gRPC service `rolegate.v1.RetrievalService`, such as `rolegate
retrieve serve`.
"""

import json
from collections.abc import Sequence
from itertools import chain

import grpc.aio
import msgspec
from rolegate.v1 import evidence_pb2
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from router.errors import UpstreamProtocolError, UpstreamRefused, UpstreamUnavailable
from router.protocol import Passage
from router.trace.scope import NO_FILTER, DocumentFilter

MAX_RESPONSE_BYTES = 16 << 20
_REFUSED = frozenset(
    "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED FAILED_PRECONDITION OUT_OF_RANGE "
    "UNIMPLEMENTED UNAUTHENTICATED".split()
)
"""Names of gRPC status codes of refused requests. A retry would fail in the same way."""
_RETRY = {
    "maxAttempts": 3,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 3,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_RETRIES = {
    "methodConfig": [
        {"name": [{"service": "rolegate.v1.RetrievalService"}], "retryPolicy": _RETRY}
    ],
    "retryThrottling": {"maxTokens": 20, "tokenRatio": 0.2},
}
"""gRPC service config. It makes the channel retry searches. `retryThrottling` stops retries while
many searches fail.
"""


class RemoteRetriever:
    """An `IndexRetriever` that sends searches over one plaintext gRPC channel. It must be created
    while an event loop runs.
    """

    def __init__(self, address: str, *, timeout_s: float) -> None:
        """`address`: the server's `host:port`. `timeout_s`: timeout of one search in seconds,
        including connecting and retries.
        """
        self._address = address
        self._timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
                ("grpc.service_config", json.dumps(_RETRIES)),
            ],
        )
        self._stub = RetrievalServiceStub(self._channel)
        self.index_id: str | None = None
        """Identifier of the index, from the server's last response; None if the server does not
        report it.
        """

    async def search(
        self,
        queries: Sequence[str],
        top_k: int,
        document: str | None = None,
        only: DocumentFilter = NO_FILTER,
    ) -> list[list[Passage]]:
        """Search at the server, as `IndexRetriever.search` specifies. If the server is unavailable,
        the search is retried up to twice within the timeout. Cancelling the task cancels the call.
        """
        if not queries:
            return []
        try:
            wanted = None if only == NO_FILTER else msgspec.structs.asdict(only)
            request = SearchRequest(queries=queries, top_k=top_k, document=document, filter=wanted)
            response = await self._stub.Search(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            kind = UpstreamRefused if error.code().name in _REFUSED else UpstreamUnavailable
            raise kind(
                f"the search failed ({error.code().name}: {error.details()}); check that `rolegate "
                "retrieve serve` runs at this address, and read its log",
                endpoint=self._address,
            ) from error
        if len(response.results) != len(queries):
            raise UpstreamProtocolError(
                f"the retrieval server sent {len(response.results)} results for {len(queries)} "
                "queries; update rolegate on the server",
                endpoint=self._address,
            )
        if wanted and not response.filtered:
            raise UpstreamRefused(
                "the retrieval server cannot filter documents; leave the filter out",
                endpoint=self._address,
            )
        self.index_id = response.index_id or None
        results = [
            [passage_from_proto(passage) for passage in result.passages][:top_k]
            for result in response.results
        ]
        documents = {passage.document for passage in chain.from_iterable(results)}
        if document is not None and documents - {document}:
            raise UpstreamRefused(
                "the retrieval server cannot search within one document; update the server",
                endpoint=self._address,
            )
        return results

    async def close(self) -> None:
        """Close the channel and cancel running searches."""
        await self._channel.close()


def passage_from_proto(passage: evidence_pb2.Passage) -> Passage:
    """Convert a protobuf message to a passage."""
    page = passage.page if passage.HasField("page") else None
    return Passage(
        passage.passage_id,
        passage.title,
        passage.text,
        passage.score,
        passage.document,
        page,
        passage.location,
    )
