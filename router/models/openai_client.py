"""Client for a model behind an OpenAI-compatible HTTP endpoint, such as vLLM."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import httptools
import msgspec
from msgspec.structs import replace
from yarl import URL

from router.errors import (
    JSON_ERRORS,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.frozen import Frozen
from router.models.connection_pool import ConnectionPool, Target, TransportError
from router.models.failures import Upstream, without_userinfo
from router.models.model import Completion, OnDelta, Prompt, Sampling, TokenIds, Usage
from router.models.openai_wire import (
    MAX_EVENT_BYTES,
    REQUEST_ID,
    ChatReply,
    EventReader,
    EventTooLong,
    MessageReply,
    chat_body,
    read_replies,
)
from router.models.streaming import StreamedReply, completed

_FOREIGN = (aiohttp.InvalidURL, httptools.HttpParserError, TransportError)
_RENDERED = (
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields of a request that change the text that the chat template produces."""
_NO_ROUTE = frozenset({401, 403, 404, 405, 501})
"""HTTP statuses of a reply to `POST /tokenize` that mean that the endpoint cannot count tokens."""
_TOKENIZING_S = 5.0
_DONE = b"[DONE]"
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
"""Matches the start of a body that is a stream of server-sent events."""
_RETURNS_IDS = "return_token_ids"

# Limits against replies that never end. No real output reaches them.
_MAX_BYTES = 8 << 20
"""Max bytes of a whole reply."""
_MAX_STREAMED = 64 << 20
"""Max bytes of a stream, including the JSON around the text."""
_MAX_ERROR = 64 << 10
"""Max bytes of a reply with an error status."""
_MAX_A_TOKEN = 2 << 10
"""Max bytes of a stream per token of `max_tokens`."""

_STREAM_OPTIONS = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)
"""Values of `stream_options`, tried in order until the endpoint accepts one. The first value
requests usage in every chunk, which vLLM supports. The last value, None, is accepted by every
endpoint.
"""
_OPTION = re.compile("stream_options|include_usage|continuous_usage_stats")
_STRUCTURE = re.compile("structured.outputs?|grammar|regex", re.IGNORECASE)


class _Tokens(Frozen):
    count: int


class _LogProb(Frozen):
    logprob: float


class _Sampled(Frozen):
    token_ids: tuple[int, ...]
    logprobs: dict[str, tuple[_LogProb, ...] | None] | None = None
    """Under the key `content`, the log probability of each token; None unless the request asked for
    `logprobs`.
    """


class _TokensReply(Frozen):
    """Fields that vLLM adds to a reply if the request has `return_token_ids`."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[_Sampled, ...]

    @property
    def tokens(self) -> TokenIds:
        """Token ids of the prompt and of the reply's only output."""
        sampled = self.choices[0]
        content = (sampled.logprobs or {}).get("content") or ()
        logprobs = tuple(token.logprob for token in content)
        complete = logprobs and len(logprobs) == len(sampled.token_ids)
        return TokenIds(
            self.prompt_token_ids, sampled.token_ids, logprobs if complete else msgspec.UNSET
        )


class OpenAIHTTP:
    """One model at `{base_url}/chat/completions`.

    The pool limits the number of concurrent calls; the caller owns and closes the pool. Only
    connecting has a timeout here, so callers must set their own deadlines. Cancelling a call closes
    its connection, which makes the engine drop the request.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        thinking: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
        interval: int | None = None,
        omit: Collection[str] = (),
    ) -> None:
        """`base_url`: the endpoint's address, such as `http://127.0.0.1:8000/v1`.

        `thinking`: the chat template's option `enable_thinking`; None leaves it unset. If True,
        patterns are not sent, because they would prevent the model from thinking. `extra_body`:
        further fields of every request. They override all fields except model, messages and stream.
        `interval`: vLLM's `stream_interval`, the tokens per event, for calls of `stream` with
        `live=False`; None if the endpoint does not have this option. `omit`: parameters to leave
        out because the endpoint refuses them. Stop strings are enforced here even if `stop` is left
        out.
        """
        base_url = base_url.rstrip("/")
        api_key = api_key and api_key.strip()
        self._pool = pool
        self._thinking = thinking
        self._extra = extra_body
        self._interval = interval
        self._structures = not thinking
        self._tokenizes = True
        self._options = 0
        self._omit = omit
        self._opened = thinking is True
        self.name = model
        self.endpoint = without_userinfo(base_url)
        self._upstream = Upstream(model, base_url, api_key, extra_body)
        self._base_url = base_url
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    async def complete(self, prompt: Prompt) -> Completion:
        """See `Model`."""
        return await self.stream(prompt, None)

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """Count the tokens of the prompt (after the chat template) and of the text with vLLM's
        `POST /tokenize`. Return None if the request fails. If the endpoint has no such route, later
        calls return None without a request.
        """
        body = self._body(prompt)
        rendered = {name: body[name] for name in _RENDERED if name in body}
        read = await self._tokens({"add_generation_prompt": True, **rendered})
        written = await self._tokens({"prompt": text, "add_special_tokens": False}) if text else 0
        return None if read is None or written is None else Usage(read, written)

    async def _tokens(self, fields: dict[str, Any]) -> int | None:
        if not self._tokenizes:
            return None
        reply = _Reply(self._upstream, StreamedReply(Prompt((), Sampling())))
        body = msgspec.json.encode({"model": self.name, **fields})
        with suppress(*_FOREIGN, *JSON_ERRORS, UpstreamError, TimeoutError):
            target = Target(f"{self._base_url.removesuffix('/v1')}/tokenize", self._headers)
            async with asyncio.timeout(_TOKENIZING_S):
                await self._pool.post(target, partial(target.request, body), reply)
            self._tokenizes = reply.status not in _NO_ROUTE
            if reply.status == 200:
                return msgspec.json.decode(reply.body, type=_Tokens).count
        return None

    async def stream(
        self,
        prompt: Prompt,
        on_delta: OnDelta | None,
        *,
        live: bool = True,
    ) -> Completion:
        """See `Model`. If `on_delta` is None, the request is made without streaming.

        A streaming request asks for the usage, if possible in every chunk, so that the usage is
        also known for a stream that is abandoned early. If the endpoint refuses a stream option or
        the pattern, the request is repeated without it, and later requests leave it out too. For
        streams, vLLM refuses the pattern only after the reply has begun.
        """
        while True:
            if prompt.pattern is not None and not self._structures:
                prompt = replace(prompt, pattern=None)
            options = _STREAM_OPTIONS[self._options] if on_delta else None
            body = partial(
                self._body,
                prompt,
                stream=on_delta is not None,
                options=options,
                interval=None if live else self._interval,
            )
            streamed = StreamedReply(
                prompt,
                on_delta or (lambda _delta: None),
                thinks=self._thinking is not False,
                opened=self._opened,
            )
            reply = _Reply(self._upstream, streamed, prompt.sampling.max_tokens, live=live)
            try:
                with streamed:
                    await self._post(f"{self._base_url}/chat/completions", prompt, body, reply)
                    reply.finish()
                    return self._completion(streamed, reply)
            except UpstreamError as failure:
                if streamed.begun or not self._drops(prompt, options, reply, failure):
                    raise

    def _completion(self, streamed: StreamedReply, reply: "_Reply") -> Completion:
        """Return the output, and remember for later calls whether the chat template opens a
        thought, that is, ends with a mark such as `<think>`. Raises the errors of `completed`.
        """
        output = completed(streamed, self._upstream)
        self._opened = streamed.opened
        if _RETURNS_IDS in (self._extra or ()):
            with suppress(*JSON_ERRORS):  # servers other than vLLM may ignore the option
                tokens = msgspec.json.decode(reply.body, type=_TokensReply).tokens
                return replace(output, tokens=tokens)
        return output

    async def _post(
        self,
        url: str,
        prompt: Prompt,
        body: Callable[[], dict[str, Any]],
        reply: "_Reply",
        *,
        redirected: bool = False,
    ) -> None:
        """Send a request to `url` and feed its reply to `reply`. A redirect with status 307 or 308
        is followed once, and only to the same scheme, user, host and port. `redirected`: True if
        this is that second request. Raises `UpstreamError` if the final status is not 200.
        """
        name = f"{REQUEST_ID}: {prompt.request_id}\r\n" if prompt.request_id else ""
        try:
            target = Target(url, self._headers)
            await self._pool.post(
                target, lambda: target.request(msgspec.json.encode(body()), name), reply
            )
        except _Enough:  # the rest of the reply is not needed
            pass
        except _FOREIGN as error:
            if not reply.streamed.complete:
                raise self._upstream.from_transport(error) from error
        if reply.status == 200:
            return
        location = reply.headers.get("location")
        if not location or not 300 <= reply.status < 400:
            raise self._upstream.from_status(reply.status, reply.words, reply.headers)
        with suppress(ValueError):
            location = str(target.url.join(URL(location)))
        same_origin = location.startswith(f"{target.url.with_path('/')}")
        if same_origin and not redirected and reply.status in (307, 308):
            return await self._post(location, prompt, body, reply, redirected=True)
        raise self._upstream.moved(reply.status, location)

    def _body(self, prompt: Prompt, **streaming: Any) -> dict[str, Any]:
        return chat_body(
            self.name,
            prompt,
            thinking=self._thinking,
            extra=self._extra,
            omit=self._omit,
            **streaming,
        )

    def _drops(
        self,
        prompt: Prompt,
        options: Mapping[str, bool] | None,
        reply: "_Reply",
        failure: UpstreamError,
    ) -> bool:
        """Return whether the endpoint failed because it refuses an optional part of the request:
        token ids, the pattern or a stream option. If so, that part is left out of all later
        requests.
        """
        refuses = reply.status in (400, 422)
        extra = self._extra or {}
        refused = {
            name for name in (_RETURNS_IDS, "logprobs") if name in extra and name in reply.words
        }
        if refused and refuses:
            self._extra = {name: value for name, value in extra.items() if name not in refused}
            return True
        if (
            prompt.pattern is not None
            and isinstance(failure, UpstreamRefused)
            and _STRUCTURE.search(str(failure))
        ):
            self._structures = False
            return True
        if options is None or not refuses or not _OPTION.search(reply.words):
            return False
        self._options = _STREAM_OPTIONS.index(options) + 1
        return True


class _Enough(Exception):
    """Raised to stop reading a reply and close its connection, because its remaining data is not
    needed.
    """


class _Reply:
    """Receives one HTTP reply as it arrives. The events of a stream are processed one by one; any
    other body is kept until it is complete.
    """

    def __init__(
        self,
        upstream: Upstream,
        streamed: StreamedReply,
        max_tokens: int = 0,
        *,
        live: bool = True,
    ) -> None:
        self._upstream = upstream
        self.streamed = streamed
        self._max_tokens = max_tokens
        self._live = live
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = bytearray()
        self._size = 0
        self._limit = 0
        self.events: EventReader | None = None
        """Reader of the stream's events; None if the body is not a stream."""

    @property
    def patient(self) -> bool:
        """See `ReplyReader`. Never true before the first token, which is always passed on
        immediately.
        """
        return not self._live and self.streamed.begun

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """See `ReplyReader`."""
        self.status = 200 if status == 201 else status  # some servers answer each POST with 201
        self.headers = headers
        self.body.clear()
        self._size = 0
        self._limit = _MAX_BYTES if self.status == 200 else _MAX_ERROR
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.status == 200 and content_type == "text/event-stream":
            self._limit = min(_MAX_STREAMED, MAX_EVENT_BYTES + _MAX_A_TOKEN * self._max_tokens)
            self.events = EventReader()

    def received(self, data: bytes) -> bool:
        """See `ReplyReader`."""
        self._size += len(data)
        if self._size > self._limit:
            if self.status != 200:
                raise _Enough
            raise self._upstream.protocol_error(
                f"the reply has more than {self._limit >> 20} MiB, the limit; check the endpoint"
            )
        if self._size == len(data) and data.lstrip()[:1] == b"{":
            self.events = None
        if self.events is None:
            self.body += data
            return False
        return self._take(self.events, data)

    def finish(self) -> None:
        """Process the data that is left when the reply has ended: a whole reply, or the last event
        of a stream.
        """
        if self.events is None and not _EVENTS.match(self.body):
            self._take_complete()
            return
        events = self.events or EventReader()
        with suppress(_Enough):
            self._take(events, bytes(self.body))
        with suppress(UpstreamProtocolError, _Enough):  # the last event may be incomplete
            self._take(events, b"" if self.streamed.abandoned else b"\n\n")

    def _take_complete(self) -> None:
        replies = self._decoded(self.body)
        for reply in replies:
            choice = reply.choice
            if choice is None or (choice.content == MessageReply() and not choice.finish_reason):
                start = bytes(self.body[:100])
                raise self._upstream.protocol_error(
                    f"the reply contains no output; check the endpoint: {start!r}"
                )
            if len(replies) == 1 and not choice.delta:
                self.streamed.take_complete(reply)
            else:  # chunks, one per line
                self.streamed.take(reply)

    def _take(self, reader: EventReader, data: bytes) -> bool:
        """Process the events that `data` completes; return whether the stream has ended."""
        try:
            events = reader.feed(data)
        except EventTooLong as error:
            raise self._upstream.protocol_error(str(error)) from error
        for event in events:
            if event.strip() == _DONE:
                return True
            for reply in self._decoded(event):
                self.streamed.take(reply)
            if self.streamed.overran:
                raise _Enough
        if self.streamed.abandoned:
            raise _Enough
        self.streamed.report()
        return False

    def _decoded(self, body: bytes | bytearray) -> tuple[ChatReply, ...]:
        """Return the replies in `body`. Raises `UpstreamError` if `body` is not JSON or reports a
        failure.
        """
        try:
            replies = read_replies(body)
        except JSON_ERRORS as error:
            raise self._upstream.protocol_error(
                f"the reply is not JSON; check base_url ({error} in {bytes(body[:100])!r})"
            ) from error
        for reply in replies:
            ends = not reply.choices or reply.choices[0].finish_reason
            if (reply.error or reply.errors or ends) and (report := reply.failure):
                failure = self._upstream.from_report(report.code, report.words, report.type)
                if isinstance(failure, UpstreamUnavailable):
                    failure.unspent &= not self.streamed.begun
                raise failure
        return replies

    @property
    def words(self) -> str:
        """The server's message in a reply with an error status."""
        if self._size > self._limit:
            return f"(the reply has more than {self._limit >> 10} KiB and was not read)"
        coding = self.headers.get("content-encoding", "identity")
        if coding != "identity":
            return f"(the reply has the encoding {coding!r} and was not read)"
        with suppress(*JSON_ERRORS):
            failure = read_replies(self.body)[0].failure
            if failure and failure.message:
                return failure.words
        return self.body.decode(errors="replace")
