"""Retrieval from a `rolegate.v1.RetrievalService` at an address."""

import json
from collections.abc import Sequence

import grpc.aio
from rolegate.v1 import evidence_pb2
from rolegate.v1.retrieval_service_pb2 import SearchRequest
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceStub

from router.errors import UpstreamProtocolError, UpstreamRefused, UpstreamUnavailable
from router.protocol import Passage

MAX_RESPONSE_BYTES = 16 << 20
_REFUSED = frozenset(
    "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED FAILED_PRECONDITION "
    "OUT_OF_RANGE UNIMPLEMENTED "
    "UNAUTHENTICATED".split()
)
"""Another attempt would end in the same way."""
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
"""As gRPC takes them: not while half of the last searches fail."""


class RemoteRetriever:
    """A `Retriever` by gRPC, over one plaintext channel. Make it where an event loop runs."""

    def __init__(self, address: str, *, timeout_s: float) -> None:
        """`address` is `host:port`; `timeout_s` is for one search, connecting included."""
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
        """The index that the last search went to; None where the server did not say."""

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """See `Retriever.search`; a server that is not available is asked again, twice at most,
        within the time of one search. Cancelling it cancels the call.
        """
        if not queries:
            return []
        try:
            request = SearchRequest(queries=queries, top_k=top_k, document=document)
            response = await self._stub.Search(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            kind = UpstreamRefused if error.code().name in _REFUSED else UpstreamUnavailable
            raise kind(f"{error.code().name}: {error.details()}", endpoint=self._address) from error
        if len(response.results) != len(queries):
            raise UpstreamProtocolError(
                f"{len(queries)} queries were sent, results for {len(response.results)} came",
                endpoint=self._address,
            )
        self.index_id = response.index_id or None
        found = [
            [passage_from_proto(passage) for passage in result.passages][:top_k]
            for result in response.results
        ]
        if document is not None and any(
            passage.document != document for each in found for passage in each
        ):
            raise UpstreamRefused(
                "the retrieval server cannot open documents", endpoint=self._address
            )
        return found

    async def close(self) -> None:
        """Close the channel; searches under way are cancelled."""
        await self._channel.close()


def passage_from_proto(passage: evidence_pb2.Passage) -> Passage:
    """A message as a passage."""
    page = passage.page if passage.HasField("page") else None
    return Passage(
        passage.passage_id, passage.title, passage.text, passage.score, passage.document, page
    )
