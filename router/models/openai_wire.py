"""The replies of OpenAI's chat completions API, whole or in chunks, as vLLM and others really write them."""

from collections.abc import Mapping
from typing import Any

import msgspec

from router.models.model import Completion, Message, Prompt, Usage, end_at_stop

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Names for an output that was ended before its end: OpenAI's, and what others write."""


class PromptDetails(msgspec.Struct, frozen=True):
    """A part of the prompt tokens."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True):
    """A part of the completion tokens."""

    reasoning_tokens: int | None = None


class UsageReply(msgspec.Struct, frozen=True):
    """What the engine counted."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for the cached tokens."""

    def usage(self) -> Usage | None:
        """The same as our value, possible or not; None where a total is missing, because unknown is not zero."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        cached = (self.prompt_tokens_details or PromptDetails()).cached_tokens
        reasoning = (self.completion_tokens_details or CompletionDetails()).reasoning_tokens
        if cached is None:
            cached = self.prompt_cache_hit_tokens
        written = self.completion_tokens
        if reasoning and self.total_tokens == self.prompt_tokens + written + reasoning:
            written += reasoning  # xAI counts it beside
        return Usage(self.prompt_tokens, written, cached, reasoning)


class Part(msgspec.Struct, frozen=True):
    """A part of a content that is a list, as Mistral writes it: text, or thinking, which has parts of its own."""

    text: str | None = None
    thinking: "str | tuple[Part, ...] | None" = None


class MessageReply(msgspec.Struct, frozen=True):
    """A message, or a chunk's piece of one."""

    content: str | tuple[Part, ...] | None = None
    reasoning: str | None = None
    """vLLM's name."""
    reasoning_content: str | None = None
    """The name of DeepSeek's API and of LiteLLM."""

    @property
    def text(self) -> str:
        """What was written, without the reasoning."""
        return _text(self.content)

    @property
    def thought(self) -> str:
        """The reasoning under either name, or in parts of its own."""
        if self.reasoning or self.reasoning_content or not isinstance(self.content, tuple):
            return self.reasoning or self.reasoning_content or ""
        return "".join(_text(part.thinking) for part in self.content)


def _text(content: str | tuple[Part, ...] | None) -> str:
    if isinstance(content, tuple):
        return "".join(part.text or "" for part in content)
    return content or ""


class ProviderFields(msgspec.Struct, frozen=True):
    """Where LiteLLM keeps a choice's fields that it has no name for."""

    stop_reason: str | int | None = None


class Choice(msgspec.Struct, frozen=True):
    """One output, or a chunk's piece of it."""

    index: int = 0
    message: MessageReply | None = None
    delta: MessageReply | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string that was met, or the id of the stop token."""
    provider_specific_fields: ProviderFields | None = None

    @property
    def said(self) -> MessageReply:
        """The message or the piece of one."""
        return self.message or self.delta or MessageReply()

    @property
    def ended(self) -> str | None:
        """The finish reason, in OpenAI's words where an output was cut."""
        return "length" if self.finish_reason in _CUT else self.finish_reason

    @property
    def matched(self) -> str | None:
        """The stop string that was met, where the engine names it."""
        reason = self.stop_reason or (self.provider_specific_fields and self.provider_specific_fields.stop_reason)
        return reason if isinstance(reason, str) else None


class ErrorReply(msgspec.Struct, frozen=True):
    """What an engine says about its failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None

    @property
    def said(self) -> str:
        """Its words, and its name for the failure where it has one."""
        name = self.code if isinstance(self.code, str) and not self.code.isdecimal() else self.type
        return f"{self.message} ({name})".lstrip() if name else self.message


class ChatReply(msgspec.Struct, frozen=True):
    """A whole reply or one chunk of a stream; or an error, which some servers send with status 200."""

    choices: tuple[Choice, ...] | None = None
    usage: UsageReply | None = None
    error: ErrorReply | str | None = None

    @property
    def choice(self) -> Choice | None:
        """The first output; no more than one is ever asked for."""
        for choice in self.choices or ():
            if choice.index == 0:
                return choice
        return None


class _Uncounted(msgspec.Struct, frozen=True):
    """A `ChatReply`, whatever is said of usage."""

    choices: tuple[Choice, ...] | None = None
    error: ErrorReply | str | None = None


_NO_COUNT = UsageReply(-1, -1)
"""Stands for what is no count at all: like any that cannot be, it is not believed."""
_reply, _uncounted = msgspec.json.Decoder(ChatReply), msgspec.json.Decoder(_Uncounted)


def read_reply(body: bytes) -> ChatReply:
    """The reply, or chunk, that `body` holds. Raises `msgspec.DecodeError` and `UnicodeDecodeError`."""
    try:
        return _reply.decode(body)
    except msgspec.ValidationError:
        reply = _uncounted.decode(body)
        return ChatReply(reply.choices, _NO_COUNT, reply.error)


def convert_reply(raw: object) -> ChatReply:
    """The same of an object with such attributes. Raises `msgspec.ValidationError`."""
    try:
        return msgspec.convert(raw, ChatReply, from_attributes=True)
    except msgspec.ValidationError:
        reply = msgspec.convert(raw, _Uncounted, from_attributes=True)
        return ChatReply(reply.choices, _NO_COUNT, reply.error)


class FailureReply(msgspec.Struct, frozen=True):
    """The body of a reply with an error status: OpenAI's shape, that of older vLLMs, or FastAPI's."""

    error: ErrorReply | str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def said(self) -> str:
        """What went wrong, in the server's words."""
        error = self.error.said if isinstance(self.error, ErrorReply) else self.error
        return error or self.message or self.detail or ""


def completion(choice: Choice, usage: UsageReply | None, stop: tuple[str, ...], *, thinks: bool = True) -> Completion:
    """The whole output, ended at `stop`. A whole reply that gives no finish reason counts as stopped.

    `thinks`: False for a model whose thinking is switched off; what its engine took for reasoning is then the output.
    """
    thought = choice.said.thought
    written = choice.said.text or ("" if thinks else thought)
    text, finish_reason = end_at_stop(written, stop, choice.ended or "stop", choice.matched)
    counted = usage.usage() if usage else None
    return Completion(text, finish_reason, thought, counted, overran=len(text) < len(written))


REQUEST_ID = "X-Request-Id"
"""The header that names a call; vLLM then logs it as `chatcmpl-` and that name."""
_OURS = frozenset({"model", "messages", "stream"})


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream tells beside its text."""

    include_usage: bool
    continuous_usage_stats: bool | msgspec.UnsetType = msgspec.UNSET
    """vLLM's: the count so far with every chunk."""

    @property
    def fewer(self) -> "StreamOptions | None":
        """What to ask an endpoint for that refuses this; None for nothing."""
        return None if self.continuous_usage_stats is msgspec.UNSET else StreamOptions(True)


class TemplateKwargs(msgspec.Struct, frozen=True):
    """vLLM's: what the chat template is rendered with."""

    enable_thinking: bool


class StructuredOutputs(msgspec.Struct, frozen=True):
    """vLLM's: what the output has to match."""

    regex: str


class ChatRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of `POST /chat/completions`; what is not set is not sent."""

    model: str
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    top_p: float
    seed: int | None = None
    stop: tuple[str, ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """vLLM's: the last message is the assistant's, and is gone on with."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    structured_outputs: StructuredOutputs | None = None


def chat_body(
    model: str,
    prompt: Prompt,
    *,
    stream: bool = False,
    options: StreamOptions | None = None,
    thinking: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request for `prompt`, ready for JSON. `options`: what a stream tells beside its text. `thinking`: the
    template's `enable_thinking`; None leaves it alone. A last message of the assistant's is continued.

    `extra`: further fields. They win over those here, but for model, messages and stream; tables are merged.
    """
    sampling = prompt.sampling
    continues = bool(prompt.messages) and prompt.messages[-1].role == "assistant"
    request = ChatRequest(
        model=model,
        messages=prompt.messages,
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=prompt.stop,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        stream=stream,
        stream_options=options,
        chat_template_kwargs=None if thinking is None else TemplateKwargs(thinking),
        structured_outputs=None if prompt.pattern is None else StructuredOutputs(prompt.pattern),
    )
    body: dict[str, Any] = msgspec.to_builtins(request)
    for name, value in (extra or {}).items():
        if name not in _OURS:
            both = isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
            body[name] = {**body[name], **value} if both else value
    return body


MAX_EVENT_BYTES = 2**20
"""No chat completion chunk comes near; a line without an end must not fill the memory."""


class EventTooLong(ValueError):
    """An event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it what arrives; it returns the data of every event that is complete by then.

    Lines end in LF, CR LF or CR. Comments, fields other than `data` and events without data are passed over; what
    stands after the last blank line is no event, as the standard has it.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._after_cr = False
        self._data: list[bytes] = []
        self._size = self._rest_size = 0

    @property
    def size(self) -> int:
        """Bytes that are kept until their event is complete."""
        return self._rest_size + self._size

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes. Raises `EventTooLong`."""
        if self._after_cr and received:
            received, self._after_cr = received.removeprefix(b"\n"), False
        self._after_cr |= received.endswith(b"\r")
        self._rest.append(received)
        self._rest_size += len(received)
        events: list[bytes] = []
        if b"\n" in received or b"\r" in received:  # a long line is put together once, not with every piece
            lines = b"".join(self._rest).splitlines(keepends=True)
            self._rest = [lines.pop()] if not lines[-1].endswith((b"\n", b"\r")) else []
            self._rest_size = sum(map(len, self._rest))
            bare = (line.rstrip(b"\r\n") for line in lines)
            events = [event for line in bare if (line or self._data) and (event := self._line(line))]
        if self.size > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _line(self, line: bytes) -> bytes:
        """Take one line; the event's data where the line is blank and so ends it."""
        if not line:
            event, self._data, self._size = b"\n".join(self._data), [], 0
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1  # even empty lines fill the memory
        return b""
