"""A model behind an OpenAI-compatible HTTP endpoint: vLLM, or any other."""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import aiohttp
import httptools
import msgspec
from yarl import URL

from router.errors import (
    JSON_ERRORS,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.models.connection_pool import ConnectionPool, Target, TransportError
from router.models.failures import Upstream, without_userinfo
from router.models.model import Completion, OnDelta, Prompt, Sampling, TokenIds, Usage
from router.models.openai_wire import (
    MAX_EVENT_BYTES,
    REQUEST_ID,
    ChatReply,
    EventReader,
    EventTooLong,
    FailureReply,
    MessageReply,
    chat_body,
    read_replies,
)
from router.models.streaming import StreamedReply

_FOREIGN = (aiohttp.InvalidURL, httptools.HttpParserError, TransportError)
_RENDERED = (
    "messages",
    "tools",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
_NOT_THERE = frozenset({401, 403, 404, 405, 501})
_TOKENIZING_S = 5.0
_NOTHING = Prompt((), Sampling())
_DONE = b"[DONE]"
_KEEPS_METHOD = frozenset({307, 308})
_MOST_HOPS = 3
_EVENTS = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
"""The beginning of a stream of events."""
_RETURNS = "return_token_ids"
_MOST_BYTES = 8 << 20
_MOST_STREAMED = 64 << 20
_MOST_SAID = 64 << 10
_MOST_A_TOKEN = 2 << 10
"""Bytes of a whole reply, of a stream with all that stands around its pieces, of what a server says
of a failure, and of a stream for each token. No model writes as much, and what does not end must
not be kept.
"""
_STREAM_OPTIONS = (
    {"include_usage": True, "continuous_usage_stats": True},
    {"include_usage": True},
    None,
)
"""Options of a stream, from vLLM's count with every chunk down to what any endpoint takes."""
_OPTION = re.compile("stream_options|include_usage|continuous_usage_stats")
_STRUCTURE = re.compile("structured.outputs?|grammar|regex", re.IGNORECASE)
_failure = msgspec.json.Decoder(FailureReply)


class _Tokens(msgspec.Struct, frozen=True):
    count: int


class _LogProb(msgspec.Struct, frozen=True):
    logprob: float


class _Sampled(msgspec.Struct, frozen=True):
    token_ids: tuple[int, ...]
    logprobs: dict[str, tuple[_LogProb, ...] | None] | None = None
    """Under `content`, one for each token; there for `logprobs`."""


class _TokensReply(msgspec.Struct, frozen=True):
    """What vLLM adds to a whole reply for `return_token_ids`."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[_Sampled, ...]

    @property
    def tokens(self) -> TokenIds:
        """The tokens of the only output."""
        sampled = self.choices[0]
        found = tuple(one.logprob for one in (sampled.logprobs or {}).get("content") or ())
        logprobs = found if found and len(found) == len(sampled.token_ids) else msgspec.UNSET
        return TokenIds(self.prompt_token_ids, sampled.token_ids, logprobs)


class OpenAIHTTP:
    """One model at `{base_url}/chat/completions`.

    The pool is the caller's, who closes it; its limit is the limit of concurrent calls. There is no
    timeout but that of connecting: deadlines are the caller's. A call that is cancelled, or a
    stream that is left, closes its connection, upon which the engine drops the request.
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
        """`base_url`: such as `http://127.0.0.1:8000/v1`. `thinking`: for chat templates that know
        `enable_thinking`; a model that thinks is not held to patterns, which would be in its way.
        `extra_body`: further fields of every request, which win over those that are set here, but
        for model, messages and stream. `interval`: how many tokens at a time vLLM sends of a stream
        that nobody follows live; None where the endpoint need not know the option. `omit`:
        parameters that are left out of requests, as the endpoint does not take them; stop strings
        end the output all the same.
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
        """The whole output at once."""
        return await self._ask(prompt, None)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """See `Model`."""
        return await self._ask(prompt, on_delta, live=live)

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """vLLM's count (`POST /tokenize`) of the prompt, its template included, and the text; None
        where there is none, and where there was none it is not asked for again.
        """
        body = self._body(prompt)
        chat = {
            "add_generation_prompt": True,
            **{name: body[name] for name in _RENDERED if name in body},
        }
        read = await self._tokens(chat)
        written = await self._tokens({"prompt": text, "add_special_tokens": False}) if text else 0
        return None if read is None or written is None else Usage(read, written)

    @cached_property
    def _chat(self) -> Target:
        return Target(f"{self._base_url}/chat/completions", self._headers)

    async def _tokens(self, asked: dict[str, Any]) -> int | None:
        if not self._tokenizes:
            return None
        reply = _Reply(self._upstream, StreamedReply(_NOTHING))
        body = msgspec.json.encode({"model": self.name, **asked})
        with suppress(*_FOREIGN, *JSON_ERRORS, UpstreamError, TimeoutError):
            target = Target(f"{self._base_url.removesuffix('/v1')}/tokenize", self._headers)
            async with asyncio.timeout(_TOKENIZING_S):
                await self._pool.post(target, partial(target.request, body), reply)
            self._tokenizes = reply.status not in _NOT_THERE
            return (
                msgspec.json.decode(reply.body, type=_Tokens).count if reply.status == 200 else None
            )
        return None

    async def _ask(
        self, prompt: Prompt, on_delta: OnDelta | None, *, live: bool = True
    ) -> Completion:
        """The output, streamed where `on_delta` is given.

        A stream is asked for its usage, and for the count so far with every chunk, which a stream
        that is left early needs. An endpoint that does not know these options, or no patterns, is
        asked without them, now and later; vLLM looks at a stream's pattern only once it has begun
        to answer.
        """
        target: Target | None = None
        hops = 0
        while True:
            options = _STREAM_OPTIONS[self._options] if on_delta else None
            if prompt.pattern is not None and not self._structures:
                prompt = msgspec.structs.replace(prompt, pattern=None)
            streamed = StreamedReply(
                prompt,
                on_delta or (lambda _delta: None),
                thinks=self._thinking is not False,
                opened=self._opened,
            )
            reply = _Reply(self._upstream, streamed, prompt.sampling.max_tokens, live=live)
            try:
                with streamed:
                    interval = None if live else self._interval
                    body = partial(
                        self._body,
                        prompt,
                        stream=on_delta is not None,
                        options=options,
                        interval=interval,
                    )
                    await self._post(target, prompt, body, reply)
                    if reply.location:
                        target = self._redirected(
                            target or self._chat, reply, follow=hops < _MOST_HOPS
                        )
                        hops += 1
                        continue
                    reply.finish()
                    if not streamed.whole:
                        raise self._upstream.unavailable("the stream was cut before its end")
                    return self._completion(streamed, reply)
            except UpstreamError as failure:
                if streamed.begun or not self._gives_up(prompt, options, reply, failure):
                    raise

    def _completion(self, streamed: StreamedReply, reply: "_Reply") -> Completion:
        """The output; what it shows of the endpoint is remembered."""
        output = streamed.end()
        if (words := streamed.refused) is not None:
            raise self._upstream.declined(words)
        self._opened = streamed.opened
        with suppress(*JSON_ERRORS):  # others than vLLM may not know the option
            if _RETURNS in (self._extra or ()):
                return msgspec.structs.replace(
                    output, tokens=msgspec.json.decode(reply.body, type=_TokensReply).tokens
                )
        return output

    async def _post(
        self,
        target: Target | None,
        prompt: Prompt,
        body: Callable[[], dict[str, Any]],
        reply: "_Reply",
    ) -> None:
        """Send a request, and let `reply` take what comes. Raises for every status but 200, and
        those that redirect.
        """
        name = f"{REQUEST_ID}: {prompt.request_id}\r\n" if prompt.request_id else ""
        try:
            to = target or self._chat
            await self._pool.post(to, lambda: to.request(msgspec.json.encode(body()), name), reply)
        except _Left:
            pass
        except _FOREIGN as error:
            if not reply.streamed.whole:
                raise self._upstream.from_transport(error) from error
        if reply.status != 200 and not reply.location:
            raise self._upstream.from_status(reply.status, reply.said, reply.headers)

    def _redirected(self, target: Target, reply: "_Reply", *, follow: bool) -> Target:
        """The target that the endpoint sends to. Raises where that is another host, port or
        scheme.
        """
        with suppress(ValueError):
            url = target.url.join(URL(reply.location))
            here = (url.scheme, url.host, url.port) == (
                target.url.scheme,
                target.url.host,
                target.url.port,
            )
            if here and follow and reply.status in _KEEPS_METHOD:
                path = target.url.with_path(url.raw_path, encoded=True).with_query(url.query)
                return Target(str(path), self._headers)
            raise self._upstream.moved(reply.status, str(url))
        raise self._upstream.moved(reply.status, reply.location)

    def _body(self, prompt: Prompt, **streaming: Any) -> dict[str, Any]:
        return chat_body(
            self.name,
            prompt,
            thinking=self._thinking,
            extra=self._extra,
            omit=self._omit,
            **streaming,
        )

    def _gives_up(
        self,
        prompt: Prompt,
        options: Mapping[str, bool] | None,
        reply: "_Reply",
        failure: UpstreamError,
    ) -> bool:
        """Tell whether it is the prompt's pattern or an option that is refused; it is not sent
        from then on.
        """
        refused = {
            name
            for name in (_RETURNS, "logprobs")
            if name in (self._extra or ()) and name in reply.said
        }
        if refused and reply.status in (400, 422):
            self._extra = {
                name: value for name, value in (self._extra or {}).items() if name not in refused
            }
            return True
        structure = (
            isinstance(failure, UpstreamRefused) and _STRUCTURE.search(str(failure)) is not None
        )
        if prompt.pattern is not None and structure:
            self._structures = False
            return True
        if options is None or reply.status not in (400, 422) or not _OPTION.search(reply.said):
            return False
        self._options = _STREAM_OPTIONS.index(options) + 1
        return True


class _Left(Exception):
    """Nothing more of a reply is wanted, and its connection is to be closed."""


class _Reply:
    """One reply as it arrives: a stream's events are taken one by one, anything else is kept as
    a whole.
    """

    def __init__(
        self, upstream: Upstream, streamed: StreamedReply, max_tokens: int = 0, *, live: bool = True
    ) -> None:
        self._upstream = upstream
        self.streamed = streamed
        self._max_tokens = max_tokens
        self._live = live
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.body = bytearray()
        self._size = 0
        self._most = 0
        self.events: EventReader | None = None
        """Of a stream, once it has begun."""

    @property
    def patient(self) -> bool:
        """See `Reader`. The first token is wanted at once."""
        return not self._live and self.streamed.begun

    @property
    def location(self) -> str:
        """The address to which the endpoint redirects; empty where it does not."""
        return self.headers.get("location", "") if 300 <= self.status < 400 else ""

    def begun(self, status: int, headers: Mapping[str, str]) -> None:
        """See `Reader`."""
        self.status = 200 if status == 201 else status  # some servers answer each POST so
        self.headers = headers
        status = self.status
        self._most = _MOST_BYTES if status == 200 else _MOST_SAID
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if status == 200 and kind == "text/event-stream":
            self._most = min(_MOST_STREAMED, MAX_EVENT_BYTES + _MOST_A_TOKEN * self._max_tokens)
            self.events = EventReader()

    def received(self, data: bytes) -> bool:
        """See `Reader`."""
        self._size += len(data)
        if self._size > self._most:
            if self.status != 200:
                raise _Left
            raise self._upstream.protocol_error(f"a reply of more than {self._most >> 20} MiB")
        if self._size == len(data) and data.lstrip()[:1] == b"{":
            self.events = None
        if self.events is None:
            self.body += data
            return False
        return self._take(self.events, data)

    def finish(self) -> None:
        """Take what is left once all has come: a reply as a whole, or the last event of a
        stream.
        """
        if self.events is None and not _EVENTS.match(self.body):
            replies = self._decoded(self.body)
            for reply in replies:
                if reply.choice is None or (
                    reply.choice.said == MessageReply() and not reply.choice.finish_reason
                ):
                    raise self._upstream.protocol_error(
                        f"a reply without an output: {bytes(self.body[:100])!r}"
                    )
                if len(replies) == 1 and not reply.choice.delta:
                    self.streamed.take_whole(reply)
                else:  # chunks, one in a line
                    self.streamed.take(reply)
            return
        events = self.events or EventReader()
        with suppress(_Left):
            self._take(events, bytes(self.body))
        with suppress(UpstreamProtocolError, _Left):  # the last event may be cut
            self._take(events, b"" if self.streamed.abandoned else b"\n\n")

    def _take(self, reader: EventReader, data: bytes) -> bool:
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
                raise _Left
        if self.streamed.abandoned:
            raise _Left
        self.streamed.tell()
        return False

    def _decoded(self, body: bytes | bytearray) -> tuple[ChatReply, ...]:
        """The replies in these bytes. Raises `UpstreamError` for what is none, or reports a
        failure.
        """
        try:
            replies = read_replies(body)
        except JSON_ERRORS as error:
            raise self._upstream.protocol_error(f"{error} in {bytes(body[:100])!r}") from error
        for reply in replies:
            ends = not reply.choices or reply.choices[0].finish_reason
            if (reply.error or reply.errors or ends) and (said := reply.failure):
                failure = self._upstream.from_report(said.code, said.said, said.type)
                if isinstance(failure, UpstreamUnavailable):
                    failure.unspent &= not self.streamed.begun
                raise failure
        return replies

    @property
    def said(self) -> str:
        """The server's words, of a reply with an error status."""
        if self._size > self._most:
            return f"a reply of more than {self._most >> 10} KiB"
        with suppress(*JSON_ERRORS):
            if said := _failure.decode(self.body).said:
                return said
        return self.body.decode(errors="replace")
