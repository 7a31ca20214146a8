r"""`POST /retrieve` as existing search-agent code calls it, and `GET /health`.

Two shapes are in use, Search-R1's `{"queries": […], "topk": 3, "return_scores": true}` and
`{"query_list": […], "k": 3}`. Both get `{"result": [[document, …], …]}`, one list a query, best first, where a document
is `{"id": …, "contents": "\"title\"\ntext"}`; with `return_scores` it is `{"document": …, "score": …}`.
"""

from collections.abc import Awaitable, Callable

import msgspec
import structlog
from aiohttp import web

from router.calls.health import Readiness
from router.errors import JSON_ERRORS, BadRequest, UpstreamError
from router.protocol.evidence import Passage
from router.search.retrieval import Retriever
from serving.retrieval.limits import check_queries, chosen_top_k

MAX_BODY_BYTES = 1 << 20

_log = structlog.get_logger()


class _Body(msgspec.Struct, frozen=True):
    queries: list[str] | None = None
    query_list: list[str] | None = None
    topk: int | None = None
    k: int | None = None
    return_scores: bool = False


class _Document(msgspec.Struct, frozen=True):
    id: str
    contents: str


class _ScoredDocument(msgspec.Struct, frozen=True):
    document: _Document
    score: float


def retrieval_app(
    retriever: Retriever, *, default_top_k: int = 3, readiness: Readiness | None = None
) -> web.Application:
    """The application; the caller runs it. Errors are `{"error": …}`: 400, 413 above 1 MiB, 421 for names that are not
    this server's, 503 without internals. `readiness`: for `GET /health`, which says 503 while the search is down.
    """

    async def retrieve(request: web.Request) -> web.Response:
        body = _decoded(await request.read())
        queries = body.query_list if body.queries is None else body.queries
        if queries is None or (body.queries is not None and body.query_list is not None):
            raise BadRequest('Send the queries either as "queries" or as "query_list", a list of strings.')
        check_queries(queries)
        top_k = chosen_top_k(body.topk or body.k or 0, default_top_k, len(queries))
        results = await retriever.search(queries, top_k)
        shown = [[_shown(passage, body.return_scores) for passage in passages] for passages in results]
        return _json(200, {"result": shown})

    async def health(_: web.Request) -> web.Response:
        down = readiness is not None and readiness.down(["retrieval"])
        return _json(503, {"status": "unavailable"}) if down else _json(200, {"status": "ok"})

    app = web.Application(middlewares=[_plain_errors], client_max_size=MAX_BODY_BYTES)
    app.add_routes([web.post("/retrieve", retrieve), web.get("/health", health)])
    return app


@web.middleware
async def _plain_errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return _json(400, {"error": str(error)})
    except web.HTTPRequestEntityTooLarge:
        return _json(413, {"error": f"The body is larger than {MAX_BODY_BYTES} bytes; send fewer queries at a time."})
    except web.HTTPException as error:
        return _json(error.status, {"error": error.text})
    except UpstreamError as error:
        _log.warning("retrieve.failed", error=str(error))
        return _json(503, {"error": "The search is not available at the moment; try again."})


def _decoded(body: bytes) -> _Body:
    try:
        return msgspec.json.decode(body, type=_Body)
    except JSON_ERRORS as error:
        raise BadRequest(
            f"The body cannot be used: {error}. "
            'Send {"queries": ["…"], "topk": 3} or {"query_list": ["…"], "k": 3}.'
        ) from error


def _shown(passage: Passage, scored: bool) -> _Document | _ScoredDocument:
    document = _Document(passage.id, f'"{passage.title}"\n{passage.text}')
    return _ScoredDocument(document, passage.score) if scored else document


def _json(status: int, content: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(content), content_type="application/json")
