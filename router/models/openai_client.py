"""A model behind an OpenAI-compatible HTTP endpoint: vLLM, or any other."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError

from router.errors import JSON_ERRORS, UpstreamError, UpstreamRefused, UpstreamUnavailable
from router.models.failures import Upstream, without_userinfo
from router.models.model import Completion, Delta, Prompt, Usage, joined
from router.models.openai_wire import (
    MAX_EVENT_BYTES,
    REQUEST_ID,
    ChatReply,
    ErrorReply,
    EventReader,
    EventTooLong,
    FailureReply,
    chat_body,
    completion,
    read_reply,
)
from router.models.session import BodyTooLong, read_body
from router.models.streaming import StreamedReply

_FOREIGN = (aiohttp.ClientError, HttpProcessingError, OSError)
_RENDERED = ("messages", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
_NOT_THERE = frozenset({401, 403, 404, 405, 501})
_TOKENIZING = aiohttp.ClientTimeout(total=5)
_DONE = b"[DONE]"
_NOTHING = Delta()
_LINGER_S = 1.0
_CONNECT_S = 5.0
_MOST_BYTES, _MOST_STREAMED, _MOST_SAID, _MOST_A_TOKEN = 8 << 20, 64 << 20, 64 << 10, 2 << 10
"""Bytes of a whole reply, of a stream with all that stands around its pieces, of what a server says of a failure, and
of a stream for each token. No model writes as much, and what does not end must not be kept.
"""
_STREAM_OPTIONS = ({"include_usage": True, "continuous_usage_stats": True}, {"include_usage": True}, None)
"""Options of a stream, from vLLM's count with every chunk down to what any endpoint takes."""
_MUCH = 16 << 10
"""Bytes of a stream that came at once."""
_OPTION = re.compile("stream_options|include_usage|continuous_usage_stats")
_STRUCTURE = re.compile("structured.outputs?|grammar|regex", re.IGNORECASE)
_failure = msgspec.json.Decoder(FailureReply)


class _Tokens(msgspec.Struct, frozen=True):
    count: int


class OpenAIHTTP:
    """One model at `{base_url}/chat/completions`.

    The session is the caller's, who closes it; its connector's limit is the limit of concurrent calls. There is no
    timeout but that of connecting: deadlines are the caller's. A call that is cancelled, or a stream that is left,
    closes its connection, upon which the engine drops the request.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        thinking: bool | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """`base_url`: such as `http://127.0.0.1:8000/v1`. `thinking`: for chat templates that know `enable_thinking`; a
        model that thinks is not held to patterns, which would be in its way. `extra_body`: further fields of every
        request, which win over those that are set here, but for model, messages and stream.
        """
        base_url, api_key = base_url.rstrip("/"), api_key and api_key.strip()
        self._session, self._thinking, self._extra = session, thinking, extra_body
        self._structures, self._tokenizes, self._options = not thinking, True, 0
        self.name, self.endpoint = model, without_userinfo(base_url)
        self._url, self._tokenizer = f"{base_url}/chat/completions", f"{base_url.removesuffix('/v1')}/tokenize"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._upstream = Upstream(model, base_url, api_key, extra_body)

    async def complete(self, prompt: Prompt) -> Completion:
        """The whole output at once."""
        return await self._whole(await self._ask(prompt), prompt.stop)

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        """The output as it is written; the last delta has the finish reason and the usage."""
        response = await self._ask(prompt, stream=True)
        try:
            async with aclosing(self._deltas(response, prompt)) as deltas:
                yield deltas
        finally:
            response.release()  # closes the connection, unless the reply was read to its end

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        """vLLM's count (`POST /tokenize`) of the prompt, its template included, and the text; None where there is none,
        and where there was none it is not asked for again.
        """
        body = self._body(prompt)
        chat = {"add_generation_prompt": True, **{name: body[name] for name in _RENDERED if name in body}}
        read = await self._tokens(chat)
        written = await self._tokens({"prompt": text, "add_special_tokens": False}) if text else 0
        return None if read is None or written is None else Usage(read, written)

    async def _tokens(self, asked: dict[str, Any]) -> int | None:
        if not self._tokenizes:
            return None
        body = msgspec.json.encode({"model": self.name, **asked})
        with suppress(*_FOREIGN, *JSON_ERRORS):
            async with self._session.post(
                self._tokenizer, data=body, headers=self._headers, timeout=_TOKENIZING
            ) as response:
                self._tokenizes = response.status not in _NOT_THERE
                return msgspec.json.decode(await read_body(response), type=_Tokens).count if response.ok else None
        return None

    async def _ask(self, prompt: Prompt, *, stream: bool = False) -> aiohttp.ClientResponse:
        """The reply, its body unread. Raises for every status but 200.

        A stream is asked for its usage, and for the count so far with every chunk, which a stream that is left early
        needs. An endpoint that does not know these options, or no patterns, is asked without them, now and later.
        """
        while True:
            options = _STREAM_OPTIONS[self._options] if stream else None
            if prompt.pattern is not None and not self._structures:
                prompt = msgspec.structs.replace(prompt, pattern=None)
            with self._translated():
                response = await self._post(prompt, self._body(prompt, stream=stream, options=options))
                if response.status == 200:
                    return response
                said = await _said(response)
            failure = self._upstream.from_status(response.status, said, response.headers)
            if self._gives_up_pattern(prompt, failure):
                continue
            if options is None or response.status not in (400, 422) or not _OPTION.search(said):
                raise failure
            self._options = _STREAM_OPTIONS.index(options) + 1

    def _post(self, prompt: Prompt, body: dict[str, Any]) -> Awaitable[aiohttp.ClientResponse]:
        name = {REQUEST_ID: prompt.request_id} if prompt.request_id else {}
        return self._session.post(
            self._url,
            data=msgspec.json.encode(body),
            headers={**self._headers, **name},
            timeout=self._timeout,
            allow_redirects=False,
            raise_for_status=False,
        )

    def _body(self, prompt: Prompt, **streaming: Any) -> dict[str, Any]:
        return chat_body(self.name, prompt, thinking=self._thinking, extra=self._extra, **streaming)

    async def _whole(self, response: aiohttp.ClientResponse, stop: tuple[str, ...]) -> Completion:
        try:
            with self._translated():
                reply = self._decoded(await read_body(response, _MOST_BYTES))
        finally:
            response.release()
        if reply.choice is None:
            raise self._upstream.protocol_error("a reply without choices")
        return completion(reply.choice, reply.counted, stop, thinks=self._thinking is not False)

    async def _deltas(self, response: aiohttp.ClientResponse, prompt: Prompt) -> AsyncGenerator[Delta, None]:
        if response.content_type == "application/json":  # an endpoint that cannot stream
            whole = await self._whole(response, prompt.stop)
            yield Delta(whole.text, whole.reasoning, whole.finish_reason, whole.usage, whole.overran)
            return
        reply = StreamedReply(prompt.stop, thinks=self._thinking is not False)
        begun = ended = False
        most = min(_MOST_STREAMED, MAX_EVENT_BYTES + _MOST_A_TOKEN * prompt.sampling.max_tokens)
        async with aclosing(self._events(response, reply, most)) as received:
            async for events in received:
                delta, ended, failure = self._read(events, reply)
                if delta != _NOTHING:
                    begun = True
                    yield delta
                if failure is not None:
                    if begun or not self._gives_up_pattern(prompt, failure):
                        raise failure
                    # vLLM looks at a stream's pattern only once it has begun to answer.
                    async with self.stream(msgspec.structs.replace(prompt, pattern=None)) as anew:
                        async for delta in anew:
                            yield delta
                    return
                if ended:
                    break
        if not reply.whole:
            raise self._upstream.unavailable("the stream was cut before its end")
        yield reply.end()
        if ended and not reply.abandoned:
            await _linger(response)

    def _read(self, events: Sequence[bytes], reply: StreamedReply) -> tuple[Delta, bool, UpstreamError | None]:
        """Read events that came together: the delta that they amount to, whether nothing is wanted after them, and the
        error that the first of them is which is no chunk.
        """
        deltas: list[Delta] = []
        try:
            for event in events:
                if event.strip() == _DONE:
                    return joined(deltas), True, None
                deltas.append(reply.take(self._decoded(event)))
                if reply.abandoned:
                    return joined(deltas), True, None
        except UpstreamError as error:
            return joined(deltas), False, error
        return joined(deltas), False, None

    async def _events(
        self, response: aiohttp.ClientResponse, reply: StreamedReply, most: int
    ) -> AsyncGenerator[list[bytes], None]:
        """The events of each read, up to the end of the body or up to where it breaks off once `reply` is whole."""
        if response.content_type != "text/event-stream":
            raise self._upstream.protocol_error(f"{response.content_type} where an event stream was asked for")
        reader, size = EventReader(), 0
        while True:
            try:
                with self._translated():
                    received = await response.content.readany()
                size += len(received)
                if size > most:
                    raise self._upstream.protocol_error(f"a reply of more than {most >> 20} MiB")
                events = reader.feed(received)
            except EventTooLong as error:
                raise self._upstream.protocol_error(str(error)) from error
            except UpstreamUnavailable:
                if not reply.whole:
                    raise
                return
            if not received:
                return
            if events:
                yield events
            if len(received) >= _MUCH:
                await asyncio.sleep(0)  # others get their turns in between

    def _gives_up_pattern(self, prompt: Prompt, failure: UpstreamError) -> bool:
        """Tell whether it is the prompt's pattern that is refused; none is sent from then on."""
        refused = isinstance(failure, UpstreamRefused) and _STRUCTURE.search(str(failure)) is not None
        if prompt.pattern is not None and refused:
            self._structures = False
            return True
        return False

    def _decoded(self, body: bytes) -> ChatReply:
        try:
            reply = read_reply(body)
        except JSON_ERRORS as error:
            raise self._upstream.protocol_error(f"{error} in {body[:100]!r}") from error
        if isinstance(reply.error, ErrorReply):
            raise self._upstream.from_report(reply.error.code, reply.error.said)
        if reply.error is not None:
            raise self._upstream.from_report(None, reply.error)
        return reply

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except _FOREIGN as error:
            raise self._upstream.from_transport(error) from error


async def _said(response: aiohttp.ClientResponse) -> str:
    """The server's words, from the body of a reply with an error status."""
    try:
        body = await read_body(response, _MOST_SAID)
    except BodyTooLong as error:
        return str(error)
    with suppress(*JSON_ERRORS):
        if said := _failure.decode(body).said:
            return said
    return body.decode(errors="replace")


async def _linger(response: aiohttp.ClientResponse) -> None:
    """Read the end of the body that follows the last event at once, so that the connection can be used again."""
    if not response.content.is_eof():
        with suppress(TimeoutError, *_FOREIGN):
            async with asyncio.timeout(_LINGER_S):
                await response.content.readany()
