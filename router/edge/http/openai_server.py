"""An OpenAI-compatible door to the gateway, for chat tools and agents that speak nothing else.

`POST /v1/chat/completions`, `GET /v1/models`, `GET /v1/models/{id}` and `GET /health`. The model `rolegate` answers
questions; `rolegate-executor` works on one sub-query and reports. The question is the text of the last user message:
each question stands alone, so that a system message and earlier turns are not used. Keys are those of gRPC, sent as
`Authorization: Bearer`; only `GET /health` needs none.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import msgspec
from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler, Middleware
from google.rpc import code_pb2

from router.access import Access, check_scope
from router.calls.health import Need, Readiness
from router.edge.http.openai_wire import ChatRequest, Said, chunk, last_chunks, opened, whole
from router.edge.limits import Limits
from router.edge.listening import is_loopback
from router.edge.observing import Running, observing
from router.edge.rendering import progress_line
from router.edge.status import CALLER, caller, logged_status, reason_of, retry_after_s
from router.errors import JSON_ERRORS, BadRequest
from router.runs.gateway import Gateway
from router.runs.lifecycle import RequestOptions
from router.runs.observers import Observer
from router.trace.run import Run
from router.trace.values import Event, OnEvent

HTTP_STATUS = {
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.FAILED_PRECONDITION: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.NOT_FOUND: 404,
    code_pb2.ALREADY_EXISTS: 409,
    code_pb2.ABORTED: 409,
    code_pb2.RESOURCE_EXHAUSTED: 429,
    code_pb2.CANCELLED: 499,
    code_pb2.INTERNAL: 500,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
"""As `google/rpc/code.proto` maps them."""


class Failure(msgspec.Struct, frozen=True):
    """What went wrong, for people (`message`) and for programs."""

    message: str
    type: str
    param: str | None
    """The field of the request that is wrong, where one is known."""
    code: str


def failure(status: int, message: str, code: str, param: str | None = None) -> dict[str, Failure]:
    """The body that goes with an HTTP status."""
    return {"error": Failure(message, "server_error" if status >= 500 else "invalid_request_error", param, code)}


def failed(error: Exception) -> tuple[int, dict[str, Failure]]:
    """Status and body for what a request raised, which is logged."""
    status = logged_status(error)
    number = HTTP_STATUS[status.code]
    return number, failure(number, status.message, reason_of(status))


def refused(error: Exception) -> web.Response:
    """The whole response to a request that raised `error`; it says when to come back where the error does."""
    number, body = failed(error)
    wait_s = retry_after_s(error)
    headers = {"Retry-After": str(math.ceil(wait_s))} if number in (429, 503) and wait_s is not None else {}
    if number == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(number, body, headers)


def json_response(status: int, content: object, headers: dict[str, str] | None = None) -> web.Response:
    """A response of JSON."""
    body = msgspec.json.encode(content)
    return web.Response(status=status, body=body, headers=headers, content_type="application/json")


MAX_BODY_BYTES = 1 << 20
ANSWERING, EXECUTING = "rolegate", "rolegate-executor"
_SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}

Work = Callable[[OnEvent], Coroutine[Any, Any, Run]]


def openai_app(
    gateway: Gateway,
    access: Access | None = None,
    readiness: Readiness | None = None,
    limits: Limits | None = None,
    observer: Observer | None = None,
) -> web.Application:
    """The application; `HTTPServer` runs it. Errors have OpenAI's shape, and `code` is the reason of the status table.

    Bodies must be `application/json` and from no web page of another host, so that none can post here unasked, and at
    most 1 MiB. `access`: without it, everybody may ask. `readiness`: what is down, for `GET /health`, which says 503
    then. `limits`: None for the defaults.
    """
    limits = limits or Limits()

    async def complete(request: web.Request) -> web.StreamResponse:
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="Send the body as application/json.")
        asked = _decoded(await _body(request, limits.opening_s))
        if asked.model not in (ANSWERING, EXECUTING):
            return _unknown(asked.model)
        work = _admitted(access, _work(gateway, asked)) if access else _work(gateway, asked)
        if asked.stream:
            return await _streamed(request, asked, work, limits.reading_s)
        return json_response(200, await whole(asked.model, await work(lambda _event: None)))

    async def models(_request: web.Request) -> web.Response:
        return json_response(200, {"object": "list", "data": [_model(ANSWERING), _model(EXECUTING)]})

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return json_response(200, _model(name)) if name in (ANSWERING, EXECUTING) else _unknown(name)

    async def health(_request: web.Request) -> web.Response:
        down = readiness is not None and readiness.down(get_args(Need))
        return json_response(503, {"status": "unavailable"}) if down else json_response(200, {"status": "ok"})

    watched = [observing(observer)] if observer else []
    middlewares = [*watched, _openai_errors, _admitting(access)]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app.add_routes(
        [
            web.post("/v1/chat/completions", complete),
            web.get("/v1/models", models),
            web.get("/v1/models/{name}", model),
            web.get("/health", health),
        ]
    )
    return app


def _work(gateway: Gateway, asked: ChatRequest) -> Work:
    question, options = asked.question, RequestOptions(identity=caller(), no_cache=bool(asked.fresh))
    if asked.model == EXECUTING:
        return lambda _emit: gateway.execute(question, options)
    return lambda emit: gateway.answer(question, options, emit)


def _admitted(access: Access, work: Work) -> Work:
    """The same, for as long as the caller's key is good."""

    async def admitted(emit: OnEvent) -> Run:
        async with access.serving(caller()):
            return await work(emit)

    return admitted


async def _body(request: web.Request, within_s: float) -> bytes:
    try:
        async with asyncio.timeout(within_s):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="The body did not come in time.") from None


async def _streamed(request: web.Request, asked: ChatRequest, work: Work, reading_s: float) -> web.StreamResponse:
    """Tell what happens as reasoning, then the answer; nothing is sent before anything has happened. A client that
    takes nothing for `reading_s` seconds is left.
    """
    response, stream = web.StreamResponse(headers=_SSE), opened(asked.model)

    async def send(content: object) -> None:
        if not response.prepared:
            await response.prepare(request)
            await send(chunk(stream, Said("assistant")))
        await write(b"data: %b\n\n" % msgspec.json.encode(content))

    async def write(event: bytes) -> None:
        try:
            async with asyncio.timeout(reading_s):
                await response.write(event)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ClientConnectionResetError("The client reads too slowly.") from None

    try:
        async with Running[Event, Run](work) as running:
            async for events in running:
                if lines := "".join(f"{line}\n" for line in map(progress_line, events) if line):
                    await send(chunk(stream, Said(reasoning_content=lines)))
            run = await running.result()
        with_usage = bool(asked.stream_options and asked.stream_options.include_usage)
        for reply in await last_chunks(stream, run, with_usage=with_usage):
            await send(reply)
        await write(b"data: [DONE]\n\n")
    except Exception as error:
        if not response.prepared or isinstance(error, ClientConnectionResetError):
            raise
        await send(failed(error)[1])
    return response


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _check_origin(request.headers.get("Origin", ""))
        return await handler(request)
    except web.HTTPException as error:
        code = error.reason.lower().replace(" ", "_")
        return json_response(error.status, failure(error.status, error.text or error.reason, code))
    except ClientConnectionResetError:  # the client is gone
        raise
    except Exception as error:
        return refused(error)


def _admitting(access: Access | None) -> Middleware:
    @web.middleware
    async def admitting(request: web.Request, handler: Handler) -> web.StreamResponse:
        if access and request.path != "/health":
            # aiohttp serves each request in a context of its own, so that this reaches its handler and no other.
            CALLER.set(await access.identify(request.headers.get("Authorization")))
            check_scope(caller(), "ask")
        return await handler(request)

    return admitting


def _check_origin(origin: str) -> None:
    """Refuse what a browser sends for a page of elsewhere, also one whose name was made to lead here."""
    if origin == "null" or (origin.startswith("http") and not is_loopback(origin.partition("://")[2])):
        raise web.HTTPForbidden(text="Web pages of other hosts cannot ask here.")


def _decoded(body: bytes) -> ChatRequest:
    try:
        return msgspec.json.decode(body, type=ChatRequest)
    except JSON_ERRORS as error:
        raise BadRequest(f"The body is no chat completion request: {error}.") from None


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolegate"}


def _unknown(name: str) -> web.Response:
    message = f"There is no model {name!r} here; there are {ANSWERING} and {EXECUTING}."
    return json_response(404, failure(404, message, "model_not_found", "model"))
