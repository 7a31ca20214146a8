"""Services that search an index for other processes: gRPC `rolegate.v1.RetrievalService`, and HTTP
`POST /retrieve`.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import grpc.aio
import msgspec
import structlog
from aiohttp import web
from rolegate.v1 import evidence_pb2 as pb
from rolegate.v1.retrieval_service_pb2 import QueryPassages, SearchRequest, SearchResponse
from rolegate.v1.retrieval_service_pb2_grpc import RetrievalServiceServicer

from router.access import caller
from router.calls import Readiness
from router.edge.grpc.convert import to_proto
from router.edge.grpc.convert_request import documents_from_proto
from router.errors import JSON_ERRORS, BadRequest, UpstreamError, explained
from router.frozen import Frozen
from router.protocol import Passage
from router.search import Indexes
from router.search.retrieval import IndexRetriever

MAX_QUERIES = 256
MAX_QUERY_CHARS = 8192
MAX_TOP_K = 100
MAX_PASSAGES = 2560
"""Max passages of one search request, for all its queries together."""
MAX_BODY_BYTES = 1 << 20
_MAX_BYTES = 4_000_000
"""Max bytes of a gRPC response. By default, clients accept at most 4 MiB."""

_log = structlog.get_logger()


def checked_top_k(queries: Sequence[str], top_k: int, default: int) -> int:
    """Return the `top_k` of a search request, or `default` if `top_k` is 0. Raises `BadRequest` if
    the request exceeds a limit.

    A request must have 1 to 256 queries of 1 to 8192 characters, a `top_k` of 0 to 100, and at most
    2560 passages for all queries together.
    """
    if not 1 <= len(queries) <= MAX_QUERIES:
        raise BadRequest(f"queries: must be 1 to {MAX_QUERIES} queries, got {len(queries)}.")
    for number, query in enumerate(queries):
        if not query.strip():
            raise BadRequest(f"queries[{number}]: is empty; write a query, or leave it out.")
        if len(query) > MAX_QUERY_CHARS:
            raise BadRequest(
                f"queries[{number}]: has {len(query)} characters, but at most {MAX_QUERY_CHARS} "
                "are allowed; shorten it."
            )
    if not 0 <= top_k <= MAX_TOP_K:
        raise BadRequest(
            f"top_k: must be 1 to {MAX_TOP_K}, or 0 for the default of {default}, got {top_k}."
        )
    top_k = top_k or default
    if len(queries) * top_k > MAX_PASSAGES:
        raise BadRequest(
            f"top_k: {len(queries)} queries with {top_k} passages each exceed the limit of "
            f"{MAX_PASSAGES} passages per request; send fewer queries at a time, or lower top_k."
        )
    return top_k


class RetrievalServicer(RetrievalServiceServicer):
    """The gRPC service `RetrievalService`. An interceptor of the server translates errors of
    `router.errors` to gRPC statuses.
    """

    def __init__(
        self,
        retriever: IndexRetriever | Indexes,
        *,
        default_top_k: int = 3,
    ) -> None:
        """`retriever`: retriever of a single index, or several indexes. `default_top_k`: number of
        passages per query if `top_k` of the request is absent or 0.
        """
        self._indexes = Indexes.of(retriever)
        self._default_top_k = default_top_k

    async def Search(
        self,
        request: SearchRequest,
        context: grpc.aio.ServicerContext[SearchRequest, SearchResponse],
    ) -> SearchResponse:
        """Handle the RPC `Search`: return the passages for each query. Raises `BadRequest`, and the
        errors of the retriever.
        """
        queries = list(request.queries)
        top_k = checked_top_k(queries, request.top_k, self._default_top_k)
        document = request.document if request.HasField("document") else None
        scope = caller().scope(request.index, documents_from_proto(request))
        ranked = await self._indexes.search(scope, queries, top_k, document)
        convert = partial(to_proto, pb.Passage)
        results = [
            QueryPassages(
                passages=[convert(passage, passage_id=passage.id) for passage in passages]
            )
            for passages in ranked
        ]
        response = SearchResponse(
            results=results,
            index_id=self._indexes.index_id(scope) or "",
            filtered=request.HasField("filter"),
        )
        if (size := response.ByteSize()) > _MAX_BYTES:
            raise BadRequest(
                f"queries: the response with all passages has {size} bytes, but at most "
                f"{_MAX_BYTES} are allowed; send fewer queries, or lower top_k."
            )
        return response


class _Body(Frozen):
    queries: list[str] | None = None
    query_list: list[str] | None = None
    topk: int | None = None
    k: int | None = None
    return_scores: bool = False


def retrieval_app(
    retriever: IndexRetriever, *, default_top_k: int = 3, readiness: Readiness | None = None
) -> web.Application:
    """Return the HTTP application with the routes `POST /retrieve` and `GET /health`.

    Errors have the body `{"error": …}`. The statuses are 400 for an invalid request, 413 for a body
    above 1 MiB, 421 for an unknown host name, and 503 if the search failed, without details.
    `default_top_k`: number of passages per query if a request has neither `topk` nor `k`.
    `readiness`: if given, `GET /health` returns 503 while retrieval is down.
    """

    async def retrieve(request: web.Request) -> web.Response:
        body = _decoded(await request.read())
        queries = body.query_list if body.queries is None else body.queries
        if queries is None or (body.queries is not None and body.query_list is not None):
            raise BadRequest(
                'The body must have exactly one of the fields "queries" and "query_list", a list '
                "of strings."
            )
        top_k = checked_top_k(queries, body.topk or body.k or 0, default_top_k)
        results = await retriever.search(queries, top_k)
        documents = [
            [_document(passage, body.return_scores) for passage in passages] for passages in results
        ]
        return _json(200, {"result": documents})

    async def health(_: web.Request) -> web.Response:
        down = readiness is not None and readiness.down(["retrieval"])
        return _json(503, {"status": "unavailable"}) if down else _json(200, {"status": "ok"})

    app = web.Application(middlewares=[_plain_errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/retrieve", retrieve), web.get("/health", health)])
    return app


@web.middleware
async def _plain_errors(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return _json(400, {"error": str(error)})
    except web.HTTPRequestEntityTooLarge:
        message = f"The body is larger than {MAX_BODY_BYTES} bytes; send fewer queries at a time."
        return _json(413, {"error": message})
    except web.HTTPException as error:
        return _json(error.status, {"error": error.text})
    except UpstreamError as error:
        _log.warning("retrieve.failed", error=str(error))
        return _json(503, {"error": "The search failed at the server; try again later."})


def _decoded(body: bytes) -> _Body:
    try:
        return msgspec.json.decode(body, type=_Body)
    except JSON_ERRORS as error:
        raise BadRequest(
            f"The body is invalid: {explained(error)}. "
            'Send {"queries": ["…"], "topk": 3} or {"query_list": ["…"], "k": 3}.'
        ) from error


def _document(passage: Passage, scored: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "id": passage.id,
        "contents": f'"{passage.title}"\n{passage.text}',
    }
    return {"document": document, "score": passage.score} if scored else document


def _json(status: int, content: object) -> web.Response:
    return web.Response(
        status=status,
        body=msgspec.json.encode(content),
        content_type="application/json",
    )
