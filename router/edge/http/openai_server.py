"""The OpenAI-compatible server, for chat tools and agents.

It serves `POST /v1/chat/completions`, `POST /v1/responses`, `GET /v1/models`, `GET /v1/models/{id}`
and the probes `GET /healthz`, `GET /readyz` and `GET /health`, which is another name of `/readyz`.

There are three models. `rolegate` answers questions. `rolegate-table` fills a table; the question
names its columns (see `asked_table.py`). `rolegate-executor` works on one sub-query and reports. A
name `MODEL:INDEX`, such as `rolegate:contracts`, selects the same model but searches only that
index. If the request has a JSON schema, the answer is an object that is read from a table (see
`object_format.py`).

The question is the text of the last user message. The messages of the user and the assistant before
it are its history; the oldest are left out if there are too many. System messages are instructions
for the answerer. Only the model `rolegate` uses the history and the instructions.

API keys are the same as for gRPC and are sent as `Authorization: Bearer`. Only the probes need no
key.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler, Middleware
from msgspec.structs import replace
from rolegate.client.connection import is_loopback
from rolegate.client.text import markdown

from router.access import CALLER, Access, caller, check_scope
from router.background import in_viewer
from router.calls import Readiness
from router.edge.asked_table import asked_table
from router.edge.http.chat_tasks import ChatTasks
from router.edge.http.object_format import ObjectFormat, object_format
from router.edge.http.openai_reply import (
    ChatReply,
    Reply,
    ResponseReply,
    Result,
    Written,
    error_body,
    failure_body,
)
from router.edge.http.openai_request import (
    ANSWERING,
    EXECUTING,
    MODELS,
    OPTION,
    OPTIONS,
    ChatRequest,
    ResponsesRequest,
)
from router.edge.http.server import observing
from router.edge.limits import DEFAULT_LIMITS, MAX_REPEATED, Limits
from router.edge.pages import Site
from router.edge.rendering import AnswerText, cited_answer, progress_line
from router.edge.run_table import run_table
from router.edge.running import Running, Work
from router.edge.status import HTTP_STATUS, logged_failure
from router.errors import JSON_ERRORS, BadRequest, explained
from router.models import Message
from router.runs import Gateway, Observer, RequestOptions
from router.runs.gateway import AnswerRequest, CompletionRequest
from router.trace import Event, Run
from router.trace.call import totals
from router.trace.scope import DEFAULT_INDEX
from router.trace.values import AnswerDelta, OnEvent

MAX_BODY_BYTES = 1 << 20
_PROBES = ("/health", "/healthz", "/readyz")
_TASK_TOKENS = 512
"""Max tokens of the output for a background task of a chat tool, such as a title."""
_SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}


def openai_app(
    gateway: Gateway,
    access: Access,
    readiness: Readiness | None = None,
    limits: Limits = DEFAULT_LIMITS,
    *,
    observer: Observer | None = None,
    pages: Site | None = None,
    chat_tasks: ChatTasks = "answer",
    indexes: Sequence[str] = (),
) -> web.Application:
    """Return the application, to be served by an `HTTPServer`.

    Errors have the form of OpenAI's API, with the reason of the error class as `code`. Bodies of
    requests must be `application/json` of at most 1 MiB. Requests that web pages of other hosts
    send through a browser are refused.

    `readiness`: state of the dependencies; if one is down, `GET /readyz` returns 503. `pages`: the
    web pages, which get all paths except `/v1/` and the probes, and check keys themselves.
    `chat_tasks`: how to handle background tasks of chat tools, such as titles: `answer` them by one
    call of the answerer's model, `refuse` them, or `search` for them like for questions. `indexes`:
    names of all indexes. `GET /v1/models` lists a model for each index that the caller may search.
    """

    async def answered(
        kind: type[ChatRequest], replying: Callable[[Any], Reply], request: web.Request
    ) -> web.StreamResponse:
        asked = await _read(request, limits.opening_s, kind)
        reply = replying(asked)
        if asked.role not in MODELS:
            return _unknown(asked.model)
        question = asked.question
        options = RequestOptions(
            identity=caller(),
            no_cache=bool(asked.no_cache),
            index=asked.index,
            filter=asked.filter,
        )
        task = "" if chat_tasks == "search" else asked.task
        if task and chat_tasks == "refuse":
            raise BadRequest(
                "This gateway writes no titles, tags or follow-up questions for chat tools; "
                "in the chat tool, set a task model of another server."
            )
        schema = b"" if task else asked.schema
        form = object_format(schema) if schema else None

        async def work(emit: OnEvent) -> Run:
            with access.serving(caller()):
                if task:
                    prompt = (Message("user", task),)
                    completion = CompletionRequest("answer", prompt, (), _TASK_TOKENS)
                    return await gateway.complete(completion, options)
                if form:
                    return await gateway.fill_table(form.request(question), options, emit)
                if asked.role == EXECUTING:
                    return await gateway.execute(question, options)
                if asked.wants_table:
                    columns = asked.response_format.columns if asked.response_format else ()
                    table = asked_table(gateway.readable("question", question), columns)
                    return await gateway.fill_table(table, options, emit)
                answer = AnswerRequest(question, history=asked.history, style=asked.style)
                return await gateway.answer(answer, options, emit, streamed=bool(asked.stream))

        if asked.stream:
            return await _streamed(request, reply, work, form, limits.reading_s)
        run = await work(lambda _event: None)
        return _json(200, reply.whole(await _result(run, form)))

    def listed() -> list[str]:
        searched = [name for name in indexes if caller().may_search(name)]
        if searched == [DEFAULT_INDEX]:
            return [*MODELS]
        return [*MODELS, *(f"{ANSWERING}:{name}" for name in searched)]

    async def models(_request: web.Request) -> web.Response:
        return _json(200, {"object": "list", "data": [*map(_model, listed())]})

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _json(200, _model(name)) if name in listed() else _unknown(name)

    watched = [observing(observer)] if observer else []
    app = web.Application(
        middlewares=[*watched, _guarding(access, pages)], client_max_size=MAX_BODY_BYTES
    )
    app.router.add_post("/v1/chat/completions", partial(answered, ChatRequest, ChatReply))
    app.router.add_post("/v1/responses", partial(answered, ResponsesRequest, ResponseReply))
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{name}", model)
    app.router.add_get("/healthz", _alive)
    for path in ("/readyz", "/health"):
        app.router.add_get(path, partial(_ready, readiness or Readiness()))
    if pages:
        app.router.add_routes(pages.routes)
        app.on_response_prepare.append(pages.protect)
    return app


async def _alive(_request: web.Request) -> web.Response:
    return _json(200, {"status": "ok"})


async def _ready(readiness: Readiness, _request: web.Request) -> web.Response:
    """Return status 503 with the parts of the gateway that are down, or 200 if none is down. The
    reasons are only logged, because they may contain addresses, and the probe needs no key.
    """
    advice = "search the gateway's log for readiness.down"
    down = {
        part: f"not ready: {part}; affected: {' and '.join(needs)}; {advice}."
        for part, (needs, _) in readiness.all.items()
        if needs
    }
    if down:
        return _json(503, {"status": "unavailable", "down": down})
    return _json(200, {"status": "ok"})


async def _read(request: web.Request, within_s: float, kind: type[ChatRequest]) -> Any:
    """Read the body of a request, within `within_s` seconds, and return it as a `ChatRequest`.
    `kind`: the type of the body. Raises `BadRequest` for an invalid body, and aiohttp's
    exceptions for the HTTP statuses 408 (too slow), 413 (too large) and 415 (not JSON).
    """
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(
            text=f"The body is {request.content_type[:100]}; send application/json."
        )
    try:
        async with asyncio.timeout(within_s):
            body = await request.read()
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if len(fields) > MAX_REPEATED:
            raise BadRequest(
                f"The body has {len(fields)} fields; at most {MAX_REPEATED} are allowed; omit some."
            )
        for name in fields:
            if name not in OPTIONS and OPTION.match(name):
                raise BadRequest(
                    f"{name} is not an option of this API. The options of rolegate are no_cache, "
                    'and "rolegate": {"index": […], "filter": {…}}, which chooses indexes and '
                    "documents. For other options, use gRPC or the Python client."
                )
        return msgspec.json.decode(body, type=kind).as_chat()
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"The body did not arrive within {within_s:g} s; send it faster."
        ) from None
    except JSON_ERRORS as error:
        raise BadRequest(
            f"The body is not a valid request: {explained(error)}; correct it."
        ) from None


async def _result(run: Run, form: ObjectFormat | None, written: AnswerText | None = None) -> Result:
    """Return the result of a finished run. `form`: the form of the objects to read from the run's
    table; None if the result is a text. `written`: the text that was already sent; None if the
    reply is not streamed.
    """
    cited = await cited_answer(run)
    kind: Written = "output_text"
    if form:
        kind, text = await in_viewer(lambda: form.read(run_table(run).table))
    elif written:
        # The text that was already sent has no marks after its sentences, so the rest gets none
        # either
        text = replace(cited, sentences=()).text
    else:
        text = cited.text
    return Result(
        cited,
        totals(run.calls),
        kind,
        text,
        written.rest(text) if written else text,
    )


async def _streamed(
    request: web.Request,
    reply: Reply,
    work: Work,
    form: ObjectFormat | None,
    reading_s: float,
) -> web.StreamResponse:
    """Stream the progress of the run as reasoning, and then the answer.

    The response starts with the first event of the run, so that errors before it have an HTTP
    status. The connection of a client that reads nothing for `reading_s` seconds is closed.
    """
    response = web.StreamResponse(headers=_SSE)

    async def send(events: Iterable[Any]) -> None:
        if not response.prepared:
            await response.prepare(request)
            await send(reply.begin())
        for event in events:
            try:
                async with asyncio.timeout(reading_s):
                    await response.write(b"data: %b\n\n" % msgspec.json.encode(event))
            except TimeoutError:
                if request.transport is not None:
                    request.transport.abort()
                raise ClientConnectionResetError(
                    "The client read nothing for too long; repeat the request, and keep reading."
                ) from None

    try:
        written = AnswerText()
        async with Running[Event, Run](work) as running:
            async for events in running:
                if lines := "".join(_thought(line) for line in map(progress_line, events) if line):
                    await send(reply.write("summary_text", lines))
                deltas = [event for event in events if isinstance(event, AnswerDelta)]
                if text := "".join(map(written.take, deltas)):
                    await send(reply.write("output_text", text))
            run = await running.result()
        await send(reply.end(await _result(run, form, written)))
    except Exception as error:
        if not response.prepared or isinstance(error, ClientConnectionResetError):
            raise
        await send(reply.failed(logged_failure(error)))
    return response


def _thought(line: str) -> str:
    text = line.lstrip(" ")
    return f"{line.removesuffix(text)}{markdown(text)}\n"


def _json(status: int, content: object, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(
        status=status,
        body=body,
        headers=headers,
        content_type="application/json",
    )


def _guarding(access: Access, pages: Site | None) -> Middleware:
    """Return a middleware that checks the keys of callers, and turns errors into responses in the
    form of OpenAI's API. Requests for pages are passed to `Site.guard` instead.
    """

    @web.middleware
    async def guarding(request: web.Request, handler: Handler) -> web.StreamResponse:
        probes = request.path in _PROBES
        if pages and not probes and not request.path.startswith("/v1/"):
            return await pages.guard(request, handler)
        try:
            _check_origin(request.headers.get("Origin", ""))
            if not probes:
                # aiohttp serves each request in its own context, so only this one sees the value.
                CALLER.set(await access.identify(request.headers.get("Authorization")))
                check_scope(caller(), "ask")
            return await handler(request)
        except web.HTTPException as error:
            code = error.reason.lower().replace(" ", "_")
            return _json(error.status, error_body(error.status, error.text or error.reason, code))
        except ClientConnectionResetError:  # the client has disconnected
            raise
        except Exception as error:
            failure = logged_failure(error)
            number = HTTP_STATUS[failure.code]
            wait_s = failure.retry_after_s
            headers = {} if wait_s is None else {"Retry-After": str(math.ceil(wait_s))}
            if number == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return _json(number, failure_body(failure), headers)

    return guarding


def _check_origin(origin: str) -> None:
    """Refuse a request with status 403 if `origin` shows that a web page of another host sent it
    through a browser. This also prevents DNS rebinding.
    """
    if origin == "null" or (
        origin.startswith("http") and not is_loopback(origin.partition("://")[2])
    ):
        raise web.HTTPForbidden(
            text=f"Web pages of {origin[:100]!r} must not call the gateway; call it from a program."
        )


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolegate"}


def _unknown(name: str) -> web.Response:
    message = f"There is no model {name[:100]!r}; use one of {', '.join(MODELS)}."
    return _json(404, error_body(404, message, "model_not_found", "model"))
