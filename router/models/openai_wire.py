"""The replies of OpenAI's chat completions API, whole or in chunks, as vLLM and others really write them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from router.errors import JSON_ERRORS
from router.models.model import Function, Message, Prompt, Usage

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Names for an output that was ended before its end: OpenAI's, and what others write."""


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    """A part of the prompt tokens."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    """A part of the completion tokens."""

    reasoning_tokens: int | None = None


class UsageReply(msgspec.Struct, frozen=True, gc=False):
    """Usage as the engine counted it."""

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


class FunctionReply(msgspec.Struct, frozen=True, gc=False):
    """A call's function, or a piece of it."""

    name: str | None = None
    arguments: str | None = None


class CallReply(msgspec.Struct, frozen=True, gc=False):
    """A tool call, or a chunk's piece of one."""

    index: int | None = None
    """The number of the call that a piece is of; None in a whole message."""
    function: FunctionReply = FunctionReply()


class MessageReply(msgspec.Struct, frozen=True, gc=False):
    """A message, or a chunk's piece of one."""

    content: str | None = None
    reasoning: str | None = None
    """vLLM's name."""
    reasoning_content: str | None = None
    """The name of DeepSeek's API and of LiteLLM."""
    tool_calls: tuple[CallReply, ...] | None = None


CALL_END = "</call>"
_CALL = re.compile(r'<call tool="([^"<>]*)">([^<]*)</call>')


def call_text(pieces: Iterable[CallReply], before: CallReply | None = None) -> str:
    """The text of pieces of tool calls; `before`: the piece before them. The last call's end is left out."""
    texts: list[str] = []
    for piece in pieces:
        if before is None or piece.index is None or piece.index != before.index:
            texts.append(f'{CALL_END if before else ""}<call tool="{piece.function.name or ""}">')
        texts.append((piece.function.arguments or "").replace("<", r"\u003c"))  # in JSON it stands in strings only
        before = piece
    return "".join(texts)


def _messages(prompt: Prompt) -> Sequence[Message | dict[str, Any]]:
    """The messages of a prompt with tools, in which the calls that stand as text are tool calls, and what was said to
    them their results.
    """
    found: list[Message | dict[str, Any]] = []
    call_id = ""
    for number, message in enumerate(prompt.messages):
        call = _CALL.search(message.content) if message.role == "assistant" else None
        if call and _is_object(call[2]):
            call_id = f"call{number:05}"  # nine letters and digits, as Mistral's are
            function = {"name": call[1], "arguments": call[2]}
            called = [{"id": call_id, "type": "function", "function": function}]
            text = message.content[: call.start()].strip() or None
            found.append({"role": "assistant", "content": text, "tool_calls": called})
        elif call_id and message.role == "user":
            found.append({"role": "tool", "tool_call_id": call_id, "content": message.content})
            call_id = ""
        else:
            found.append(message)
    return found


def _is_object(text: str) -> bool:
    with suppress(*JSON_ERRORS):
        return isinstance(msgspec.json.decode(text), dict)
    return False


class ProviderFields(msgspec.Struct, frozen=True, gc=False):
    """The place where LiteLLM keeps a choice's fields that it has no name for."""

    stop_reason: str | int | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
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


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """An engine's words about its failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None

    @property
    def said(self) -> str:
        """Its words, and its name for the failure where it has one."""
        name = self.code if isinstance(self.code, str) and not self.code.isdecimal() else self.type
        return f"{self.message} ({name})".lstrip() if name else self.message


class ChatReply(msgspec.Struct, frozen=True, gc=False):
    """A whole reply or one chunk of a stream; or an error, which some servers send with status 200."""

    choices: tuple[Choice, ...] | None = None
    usage: Any = None
    error: ErrorReply | str | None = None

    @property
    def choice(self) -> Choice | None:
        """The first output; no more than one is ever asked for."""
        for choice in self.choices or ():
            if choice.index == 0:
                return choice
        return None

    @property
    def told(self) -> UsageReply | None:
        """The usage, possible or not; None where there is none. What is no count at all is one that cannot be."""
        if self.usage is None or isinstance(self.usage, UsageReply):
            return self.usage
        try:
            return convert_usage(self.usage)
        except msgspec.ValidationError:
            return UsageReply(-1, -1)

    @property
    def counted(self) -> Usage | None:
        """The same as our value."""
        return self.told.usage() if self.told else None


class _UsualReply(ChatReply, frozen=True, gc=False):
    usage: UsageReply | None = None


_read_usual, _read_any = msgspec.json.Decoder(_UsualReply).decode, msgspec.json.Decoder(ChatReply).decode


def read_reply(body: bytes | bytearray) -> ChatReply:
    """The reply in these bytes. Raises `JSON_ERRORS`, though not for its usage."""
    try:
        return _read_usual(body)
    except msgspec.ValidationError:
        return _read_any(body)


def convert_reply(raw: object) -> ChatReply:
    """The reply in an object with such attributes. Raises `msgspec.ValidationError`."""
    return msgspec.convert(raw, ChatReply, from_attributes=True)


def convert_usage(raw: object) -> UsageReply:
    """The usage in a table, or in an object with such attributes. Raises `msgspec.ValidationError`."""
    return msgspec.convert(raw, UsageReply, from_attributes=True)


class FailureReply(msgspec.Struct, frozen=True):
    """The body of a reply with an error status: OpenAI's shape, that of older vLLMs, or FastAPI's."""

    error: ErrorReply | str | None = None
    message: str | None = None
    detail: str | None = None

    @property
    def said(self) -> str:
        """The server's words."""
        error = self.error.said if isinstance(self.error, ErrorReply) else self.error
        return error or self.message or self.detail or ""


REQUEST_ID = "X-Request-Id"
"""The header that names a call; vLLM then logs it as `chatcmpl-` and that name."""
_OURS = frozenset({"model", "messages", "stream"})


def chat_body(
    model: str,
    prompt: Prompt,
    *,
    stream: bool = False,
    options: Mapping[str, bool] | None = None,
    interval: int | None = None,
    thinking: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The request for `prompt`, ready for JSON; what is not set is not sent. `options`: what a stream tells beside its
    text. `interval`: tokens that vLLM sends at a time. `thinking`: vLLM's `enable_thinking` of the chat template; None
    leaves it alone. A last message of the assistant's is continued.

    `extra`: further fields. They win over those here, but for model, messages and stream; tables are merged.
    """
    body: dict[str, Any] = {"model": model, "messages": _messages(prompt) if prompt.tools else prompt.messages}
    body |= {name: value for name, value in msgspec.structs.asdict(prompt.sampling).items() if value is not None}
    if prompt.messages and prompt.messages[-1].role == "assistant":
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    further = {
        "stop": list(prompt.stop) or None,
        "tools": [{"type": "function", "function": _function(one)} for one in prompt.tools] or None,
        "stream": stream or None,
        "stream_options": dict(options) if options else None,
        "stream_interval": interval,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        "structured_outputs": None if prompt.pattern is None else {"regex": prompt.pattern},
    }
    body |= {name: value for name, value in further.items() if value is not None}
    for name, value in (extra or {}).items():
        if name not in _OURS:
            both = isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
            body[name] = {**body[name], **value} if both else value
    return body


def _function(tool: Function) -> dict[str, Any]:
    return {**msgspec.structs.asdict(tool), "parameters": msgspec.json.decode(tool.parameters)}


MAX_EVENT_BYTES = 2**20
"""No chat completion chunk comes near; a line without an end must not fill the memory."""


class EventTooLong(ValueError):
    """An event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it what arrives; it returns the data of every event that is complete by then.

    Comments, fields other than `data` and events without data are passed over; what stands after the last blank line
    is no event, as the standard has it.
    """

    def __init__(self) -> None:
        self._line, self._data = bytearray(), bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes. Raises `EventTooLong`."""
        if received.startswith(b"data: ") and received.endswith(b"\n\n") and not (self._line or self._data):
            events = received[6:-2].split(b"\n\ndata: ")
            if received.count(b"\n") == 2 * len(events) and b"\r" not in received and b"" not in events:
                return events  # whole events of one line each, as nearly always
        events = []
        first, *others = received.split(b"\n")
        self._line += first
        for following in others:
            if event := self._end_line():
                events.append(event)
            self._line = bytearray(following)
        if len(self._line) + len(self._data) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _end_line(self) -> bytes:
        """Take one line; the event's data where the line is blank and so ends it."""
        line = self._line.removesuffix(b"\r")
        if not line:
            event, self._data = bytes(self._data[:-1]), bytearray()
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        return b""
