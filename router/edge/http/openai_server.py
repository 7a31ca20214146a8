"""The OpenAI-compatible server, for chat tools and agents.

It serves `POST /v1/chat/completions`, `GET /v1/models`, `GET /v1/models/{id}` and `GET /health`.

There are three models. `rolegate` answers questions. `rolegate-table` fills a table; the question
names its columns (see `asked_table.py`). `rolegate-executor` works on one sub-query and reports.
`MODEL:INDEX`, such as `rolegate:contracts`, does the same and searches only that index.

The question is the text of the last user message. The messages of the user and the assistant before
it are its history, as many as a request may have. System messages are instructions for the
answerer. Only `rolegate` uses both.
API keys are the same as for gRPC and are sent as `Authorization: Bearer`. Only `GET /health` needs
no key.
"""

import asyncio
import math
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any, get_args

import msgspec
from aiohttp import ClientConnectionResetError, web
from aiohttp.typedefs import Handler, Middleware
from rolegate.client.text import markdown

from router.access import CALLER, Access, caller, check_scope
from router.calls import Need, Readiness
from router.edge.asked_table import asked_table, is_widesearch
from router.edge.http.chat_tasks import ChatTasks, cut, is_chat_task
from router.edge.http.server import observing
from router.edge.limits import Limits
from router.edge.listening import is_loopback
from router.edge.pages import Site
from router.edge.rendering import SOURCES, AnswerText, CitedAnswer, cited_answer, progress_line
from router.edge.running import Running
from router.edge.status import HTTP_STATUS, Failure, logged_failure
from router.errors import JSON_ERRORS, BadRequest
from router.models import Message
from router.protocol.style import MAX_INSTRUCTIONS_CHARS, AnswerStyle
from router.runs import Gateway, Observer, RequestOptions
from router.runs.gateway import AnswerRequest, CompletionRequest, latest
from router.trace import Event, Run
from router.trace.call import RoleTotal, sum_known, totals
from router.trace.scope import DEFAULT_INDEX
from router.trace.values import AnswerDelta, OnEvent

MAX_BODY_BYTES = 1 << 20
ANSWERING = "rolegate"
EXECUTING = "rolegate-executor"
FILLING = "rolegate-table"
_MODELS = (ANSWERING, EXECUTING, FILLING)
_TASK_TOKENS = 512
"""Max tokens of the output for a background task of a chat tool, such as a title."""
_SSE = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
_OPTION = re.compile(
    "no.?cach|ind[ei]|max.?total.?tok|max.?cost|topolog|resume.?run|rolegate|extra.?body",
    re.IGNORECASE,
)
"""Names of unknown fields that are refused, because they look like an option of this gateway. All
other unknown fields are ignored.
"""
Work = Callable[[OnEvent], Coroutine[Any, Any, Run]]
"""The work of a request. It is called with the function that takes the events of the run."""


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content. Only parts of type `text` are supported."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of the conversation in a chat completion request."""

    role: str
    content: str | tuple[Part, ...] | None = None

    @property
    def text(self) -> str:
        """The text of the message; the texts of several parts are joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or ())


class StreamOptions(msgspec.Struct, frozen=True):
    """Options of a streamed response."""

    include_usage: bool | None = None
    """True if the last event of the stream must contain the usage."""


class ResponseFormat(msgspec.Struct, frozen=True):
    """Format of the answer. The type `table`, which OpenAI's API does not have, requests a table.
    All other types are ignored.
    """

    type: str = "text"
    columns: str | tuple[str, ...] = ()
    """Columns of the table, such as `city*, founded:integer`. If empty, the columns are those that
    the question names.
    """


class ChatRequest(msgspec.Struct, frozen=True):
    """The body of a chat completion request. Fields that are not listed here are ignored, except
    misspelt options (`_OPTION`).
    """

    model: str
    messages: tuple[ChatMessage, ...]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tool_choice: msgspec.Raw = msgspec.Raw(b"null")
    """Raw JSON. It is not decoded, because decoding an object of a megabyte would take long."""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    no_cache: bool | None = None
    """True if executors must work on every sub-query again, without taking over reports of other
    runs, as with the gRPC field of this name. Not part of OpenAI's API.
    """
    response_format: ResponseFormat | None = None

    @property
    def role(self) -> str:
        """Name of the model, without an index."""
        return self.model.partition(":")[0]

    @property
    def index(self) -> tuple[str, ...]:
        """Name of the index to search; empty for all that the caller may search."""
        return tuple(self.model.split(":", 1)[1:])

    @property
    def question(self) -> str:
        """The text of the last user message. Raises `BadRequest` if there is none, or if the
        request uses features that are not supported.
        """
        if self.n not in (None, 1):
            raise BadRequest(f"n must be 1, got {self.n}; a question has one answer.")
        if bytes(self.tool_choice) not in (b"null", b'"auto"', b'"none"'):
            raise BadRequest(
                "tool_choice demands a call of a tool, but this model calls no tools of clients; "
                "leave tool_choice out."
            )
        numbers = [at for at, message in enumerate(self.messages) if message.role == "user"]
        if not numbers:
            raise BadRequest(
                "messages has no message of role `user`; the last one is the question."
            )
        last = self.messages[numbers[-1]]
        parts = () if isinstance(last.content, str) else last.content or ()
        for number, part in enumerate(parts):
            if part.type != "text":
                raise BadRequest(
                    f"messages[{numbers[-1]}].content[{number}] is of type {part.type!r}; "
                    "only parts of type 'text' are supported."
                )
        return last.text

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages of user and assistant before the last user message, without the sources
        below our answers: the latest, as many as a request may have.
        """
        messages = list[Message]()
        for message in self.messages:
            text = message.text.partition(SOURCES)[0].strip()
            match message.role:
                case "user" | "assistant" as role if text:
                    messages.append(Message(role, text))
        last = max((at for at, message in enumerate(messages) if message.role == "user"), default=0)
        return latest(messages[:last])

    @property
    def style(self) -> AnswerStyle:
        """The style of the answer: the system messages before the question are instructions for
        the answerer.
        """
        instructions = [
            message.text for message in self.messages if message.role in ("system", "developer")
        ]
        limits = (limit for limit in (self.max_completion_tokens, self.max_tokens) if limit)
        return AnswerStyle(
            instructions="\n\n".join(instructions)[:MAX_INSTRUCTIONS_CHARS],
            max_answer_tokens=next(limits, 0),
        )

    @property
    def wants_table(self) -> bool:
        """True if the request is for a table: because of its model or its response format, or
        because the question has the form of the benchmark WideSearch.
        """
        by_format = self.response_format is not None and self.response_format.type == "table"
        return by_format or self.role == FILLING or is_widesearch(self.question)

    @property
    def task(self) -> str:
        """The prompt for a background task of a chat tool, such as a title: the text of all
        messages, shortened. Empty if the request is a question.
        """
        first = self.messages[0]
        if not is_chat_task("" if first.role == "user" else first.text, self.question):
            return ""
        return cut("\n\n".join(message.text for message in self.messages))


def openai_app(
    gateway: Gateway,
    access: Access | None = None,
    readiness: Readiness | None = None,
    limits: Limits | None = None,
    *,
    observer: Observer | None = None,
    pages: Site | None = None,
    chat_tasks: ChatTasks = "answer",
    indexes: Sequence[str] = (),
) -> web.Application:
    """Return the application, which an `HTTPServer` serves.

    Errors have the form of OpenAI's API, with the reason of the error class as `code`. Bodies of
    requests must be `application/json` of at most 1 MiB. Requests that a browser sends for web
    pages of other hosts are refused.

    `access`: None admits every caller. `readiness`: state of the dependencies; if one is down,
    `GET /health` returns 503. `limits`: None for the default limits. `pages`: the web pages, which
    get all paths except `/v1/` and `/health`, and check keys themselves. `chat_tasks`: how to
    handle background tasks of chat tools, such as titles: `answer` them by one call of the
    answerer's model, `refuse` them, or `search` for them like for questions. `indexes`: names of
    all indexes, of which `GET /v1/models` lists those that the caller may search.
    """
    limits = limits or Limits()

    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await _read(request, limits.opening_s)
        if asked.role not in _MODELS:
            return _unknown(asked.model)
        question = asked.question
        options = RequestOptions(
            identity=caller(), no_cache=bool(asked.no_cache), index=asked.index
        )
        task = "" if chat_tasks == "search" else asked.task
        if task and chat_tasks == "refuse":
            raise BadRequest(
                "This gateway writes no titles, tags and follow-up questions for chat tools; "
                "in the chat tool, set a task model of another server."
            )

        async def work(emit: OnEvent) -> Run:
            with access.serving(caller()) if access else nullcontext():
                if task:
                    prompt = (Message("user", task),)
                    completion = CompletionRequest("answer", prompt, (), _TASK_TOKENS)
                    return await gateway.complete(completion, options)
                if asked.role == EXECUTING:
                    return await gateway.execute(question, options)
                if asked.wants_table:
                    columns = asked.response_format.columns if asked.response_format else ()
                    table = asked_table(gateway.readable("question", question), columns)
                    return await gateway.fill_table(table, options, emit)
                answer = AnswerRequest(question, history=asked.history, style=asked.style)
                return await gateway.answer(answer, options, emit, streamed=bool(asked.stream))

        if asked.stream:
            return await _streamed(request, asked, work, limits.reading_s)
        run = await work(lambda _event: None)
        cited = await cited_answer(run)
        spent = totals(run.calls)
        message = {"role": "assistant", "content": cited.text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = _reply(
            asked.model, "chat.completion", choices=[choice], rolegate=_details(cited, spent)
        )
        return _json(200, reply | _usage(spent))

    def listed() -> list[str]:
        searched = [name for name in indexes if caller().may_search(name)]
        if searched == [DEFAULT_INDEX]:
            return [*_MODELS]
        return [*_MODELS, *(f"{ANSWERING}:{name}" for name in searched)]

    async def models(_request: web.Request) -> web.Response:
        return _json(200, {"object": "list", "data": [*map(_model, listed())]})

    async def model(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return _json(200, _model(name)) if name in listed() else _unknown(name)

    async def health(_request: web.Request) -> web.Response:
        down = readiness is not None and readiness.down(get_args(Need))
        return _json(503, {"status": "unavailable"}) if down else _json(200, {"status": "ok"})

    watched = [observing(observer)] if observer else []
    app = web.Application(
        middlewares=[*watched, _guarding(access, pages)], client_max_size=MAX_BODY_BYTES
    )
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/v1/models/{name}", model)
    app.router.add_get("/health", health)
    if pages:
        app.router.add_routes(pages.routes)
        app.on_response_prepare.append(pages.protect)
    return app


async def _read(request: web.Request, within_s: float) -> ChatRequest:
    """Read and decode the body of a chat completion request, within `within_s` seconds."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="Send the body as application/json.")
    try:
        async with asyncio.timeout(within_s):
            body = await request.read()
        for name in msgspec.json.decode(body, type=dict[str, msgspec.Raw]):
            if name != "no_cache" and _OPTION.match(name):
                raise BadRequest(
                    f"{name} is not an option of this API; did you mean no_cache? To search one "
                    "index, write the model as rolegate:INDEX. For other options, use gRPC or the "
                    "Python client."
                )
        return msgspec.json.decode(body, type=ChatRequest)
    except TimeoutError:
        raise web.HTTPRequestTimeout(
            text=f"The body did not arrive within {within_s:g} s; send it faster."
        ) from None
    except JSON_ERRORS as error:
        raise BadRequest(f"The body is not a chat completion request: {error}.") from None


async def _streamed(
    request: web.Request,
    asked: ChatRequest,
    work: Work,
    reading_s: float,
) -> web.StreamResponse:
    """Stream the progress of the run as reasoning, and then the answer.

    The response starts with the first event of the run, so that errors before it have an HTTP
    status. The connection of a client that reads nothing for `reading_s` seconds is closed.
    """
    response = web.StreamResponse(headers=_SSE)
    stream = _reply(asked.model, "chat.completion.chunk")

    async def send(delta: dict[str, str], finish_reason: str | None = None, **details: Any) -> None:
        if not response.prepared:
            await response.prepare(request)
            await send({"role": "assistant"})
        choice = {"index": 0, "finish_reason": finish_reason, "delta": delta}
        await write(msgspec.json.encode({**stream, "choices": [choice], **details}))

    async def write(event: bytes) -> None:
        try:
            async with asyncio.timeout(reading_s):
                await response.write(b"data: %b\n\n" % event)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ClientConnectionResetError("The client reads too slowly.") from None

    try:
        written = AnswerText()
        async with Running[Event, Run](work) as running:
            async for events in running:
                if lines := "".join(_thought(line) for line in map(progress_line, events) if line):
                    await send({"reasoning_content": lines})
                deltas = [event for event in events if isinstance(event, AnswerDelta)]
                if text := "".join(map(written.take, deltas)):
                    await send({"content": text})
            run = await running.result()
        cited = await cited_answer(run)
        spent = totals(run.calls)
        # Text that was sent has no marks after its sentences, so neither has the rest
        unmarked = msgspec.structs.replace(cited, sentences=())
        await send({"content": written.rest(unmarked.text)})
        await send({}, "stop", rolegate=_details(cited, spent))
        if asked.stream_options and asked.stream_options.include_usage:
            await write(msgspec.json.encode({**stream, "choices": [], **_usage(spent)}))
        await write(b"[DONE]")
    except Exception as error:
        if not response.prepared or isinstance(error, ClientConnectionResetError):
            raise
        await write(msgspec.json.encode(_body(logged_failure(error))))
    return response


def _thought(line: str) -> str:
    text = line.lstrip(" ")
    return f"{line.removesuffix(text)}{markdown(text)}\n"


def _reply(model: str, kind: str, **fields: Any) -> dict[str, Any]:
    name = f"chatcmpl-{secrets.token_hex(12)}"
    return {"id": name, "object": kind, "created": int(time.time()), "model": model, **fields}


def _details(cited: CitedAnswer, spent: list[RoleTotal]) -> dict[str, Any]:
    return {**msgspec.structs.asdict(cited), "usage": spent}


def _usage(spent: list[RoleTotal]) -> dict[str, Any]:
    """Return the field `usage` of a response, summed over all roles. Empty if no engine reported
    its usage. Details that no engine reported are null.
    """
    if spent and all(role.attempts == role.attempts_without_usage for role in spent):
        return {}
    prompt = sum(role.prompt_tokens for role in spent)
    completion = sum(role.completion_tokens for role in spent)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum_known([role.cached_tokens for role in spent])
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum_known([role.reasoning_tokens for role in spent])
        },
    }
    return {"usage": usage}


def _failure(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
) -> dict[str, Any]:
    """Return the body of an error response in the form of OpenAI's API. `param`: the name of the
    invalid field in the request; None if unknown.
    """
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _body(failure: Failure) -> dict[str, Any]:
    return _failure(HTTP_STATUS[failure.code], failure.message, failure.reason)


def _json(status: int, content: object, headers: dict[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(
        status=status,
        body=body,
        headers=headers,
        content_type="application/json",
    )


def _guarding(access: Access | None, pages: Site | None) -> Middleware:
    """Return a middleware that checks the keys of callers, and turns errors into responses in the
    form of OpenAI's API. Requests for pages are passed to `Site.guard` instead.
    """

    @web.middleware
    async def guarding(request: web.Request, handler: Handler) -> web.StreamResponse:
        if pages and request.path != "/health" and not request.path.startswith("/v1/"):
            return await pages.guard(request, handler)
        try:
            _check_origin(request.headers.get("Origin", ""))
            if access and request.path != "/health":
                # aiohttp serves each request in its own context, so only this one sees the value.
                CALLER.set(await access.identify(request.headers.get("Authorization")))
                check_scope(caller(), "ask")
            return await handler(request)
        except web.HTTPException as error:
            code = error.reason.lower().replace(" ", "_")
            return _json(error.status, _failure(error.status, error.text or error.reason, code))
        except ClientConnectionResetError:  # the client has disconnected
            raise
        except Exception as error:
            failure = logged_failure(error)
            number = HTTP_STATUS[failure.code]
            wait_s = failure.retry_after_s
            headers = (
                {"Retry-After": str(math.ceil(wait_s))}
                if number in (429, 503) and wait_s is not None
                else {}
            )
            if number == 401:
                headers["WWW-Authenticate"] = "Bearer"
            return _json(number, _body(failure), headers)

    return guarding


def _check_origin(origin: str) -> None:
    """Raise 403 for a request that a browser sends for a web page of another host. This also
    prevents DNS rebinding.
    """
    if origin == "null" or (
        origin.startswith("http") and not is_loopback(origin.partition("://")[2])
    ):
        raise web.HTTPForbidden(text="Web pages of other hosts must not use this server.")


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "rolegate"}


def _unknown(name: str) -> web.Response:
    message = f"There is no model {name!r}; use one of {', '.join(_MODELS)}."
    return _json(404, _failure(404, message, "model_not_found", "model"))
