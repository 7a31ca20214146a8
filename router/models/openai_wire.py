"""The replies of OpenAI's chat completions API, whole or in chunks, as vLLM and others really
write them.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from router.errors import JSON_ERRORS
from router.models.model import Function, Message, Prompt, Usage

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Names for an output that was ended before its end: OpenAI's, and what others write."""
FILTERED = "content_filter"
_FILTERED = frozenset(
    {
        FILTERED,
        "content_filtered",
        "refusal",
        "recitation",
        "safety",
        "prohibited_content",
        "blocklist",
        "sensitive",
    }
)
"""Names for an output that a filter ended, or that the model refused to write."""


_BROKEN = frozenset({"error", "abort", "aborted", "engine_error", "server_error"})
"""Names for an output that the engine gave up."""


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
        """The same as our value, possible or not; None where a total is missing, because
        unknown is not zero.
        """
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
    arguments: str | dict[str, Any] | None = None


class CallReply(msgspec.Struct, frozen=True, gc=False):
    """A tool call, or a chunk's piece of one."""

    index: int | str | None = None
    """The number of the call that a piece is of; None in a whole message."""
    id: str | None = None
    function: FunctionReply | None = None


class MessageReply(msgspec.Struct, frozen=True, gc=False):
    """A message, or a chunk's piece of one."""

    content: str | list[Any] | dict[str, Any] | None = None
    """Text, or its parts."""
    reasoning: str | None = None
    """vLLM's name."""
    reasoning_content: str | None = None
    """The name of DeepSeek's API and of LiteLLM."""
    thinking: str | None = None
    """Ollama's name."""
    refusal: str | None = None
    tool_calls: tuple[CallReply, ...] | None = None

    @property
    def parts(self) -> tuple[str, str, str]:
        """The text, the reasoning and the words of a refusal."""
        reasoning = self.reasoning or self.reasoning_content or self.thinking or ""
        found = [""], [reasoning], [self.refusal or ""]
        for part in self.content if isinstance(self.content, list) else [self.content]:
            fields = part if isinstance(part, dict) else {"text": part}
            thinks = bool(_THINKING.search(str(fields.get("type"))))
            for name, kind in (
                ("text", thinks),
                ("thinking", True),
                ("reasoning", True),
                ("refusal", 2),
            ):
                value = fields.get(name)
                if isinstance(value, list):  # Mistral's thoughts have parts of their own
                    value = "".join(
                        str(inner.get("text", "")) for inner in value if isinstance(inner, dict)
                    )
                found[kind].append(value if isinstance(value, str) else "")
        text, thought, refusal = map("".join, found)
        return text, thought, refusal


_THINKING = re.compile("think|reason|thought")
"""In the type of a content's part that is no text."""
CALL_BEGIN = '<call tool="'
CALL_END = "</call>"
_CALL = re.compile(r'<call tool="([^"<>]*)">([^<]*)</call>')


_MOST_CALLS = 128
"""Calls of one turn that are kept; only the first is ever made."""


class _Call:
    """A tool call, as far as it has come."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []

    @property
    def text(self) -> str:
        """The call without its end. No tag stands in its arguments, as `<` stands in strings of
        JSON only.
        """
        arguments = _last_object(self.arguments).replace("<", r"\u003c")
        return f'{CALL_BEGIN}{self.name}">{arguments}'


class Calls:
    """Puts the pieces of tool calls together, by their ids, or else by their indices, or else
    by their order.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by: dict[str, _Call] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, pieces: Iterable[CallReply]) -> None:
        """Take the next pieces."""
        for piece in pieces:
            self._add(piece)

    def _add(self, piece: CallReply) -> None:
        if len(self._calls) == _MOST_CALLS:
            return
        function = piece.function or FunctionReply()
        name = function.name or ""
        arguments = function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        index = "" if piece.index is None else f"index {piece.index}"
        last = self._by.get(index) or (self._calls[-1] if self._calls and not name else None)
        call = self._by.get(piece.id) if piece.id else None
        begins = name and arguments.lstrip()[:1] in ("", "{")
        if call is None and not (
            begins and (piece.id or (not index and last and last.arguments not in ([], ["{}"])))
        ):
            call = last
        if call is None:
            call = _Call()
            self._calls.append(call)
        self._by.update({"": call, index: call, piece.id or "": call})
        call.name = name if name.startswith(call.name) else call.name + name
        call.arguments += [arguments] if arguments else []

    def text(self, *, cut: bool) -> str:
        """All calls as text. `cut`: the last one has not come to its end."""
        return CALL_END.join(call.text for call in self._calls) + ("" if cut else CALL_END)


_decode_from = json.JSONDecoder().raw_decode
_NEXT = re.compile(r"\s*(?=\S)")
_LONGEST_ARGUMENTS = 50_000
"""Characters; no turn of a model is read as far."""
_MOST_VALUES = 4_096


def _json_values(text: str) -> list[tuple[int, Any]]:
    """The values of JSON that follow each other, each with its start; UNSET for a rest that is
    none, or comes after `_MOST_VALUES`.
    """
    values: list[tuple[int, Any]] = []
    end = 0
    while begun := _NEXT.match(text, end):
        value: Any = msgspec.UNSET
        end = len(text)
        if len(values) < _MOST_VALUES:
            with suppress(ValueError, RecursionError):
                value, end = _decode_from(text, begun.end())
        values.append((begun.end(), value))
    return values


def _last_object(pieces: Sequence[str]) -> str:
    """The arguments in `pieces`, which may begin again once they were complete, or with the
    last piece.
    """
    text = "".join(pieces)[:_LONGEST_ARGUMENTS]
    start, value = (_json_values(text) or [(0, None)])[-1]
    again = start == 0 and value is msgspec.UNSET and _is_object(pieces[-1])
    return pieces[-1] if again else text[start:]


def _messages(prompt: Prompt) -> Sequence[Message | dict[str, Any]]:
    """The messages of a prompt with tools, in which the calls that stand as text are tool calls,
    and what was said to them their results.
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
    text: str | None = None
    """The output, as of the older API of completions."""
    finish_reason: Any = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string that was met, or the id of the stop token."""
    provider_specific_fields: ProviderFields | None = None

    @property
    def said(self) -> MessageReply:
        """The message or the piece of one; of both, the one that says anything."""
        if self.message is None or self.delta not in (None, _NOTHING):
            return self.delta or MessageReply(self.text)
        return self.message

    @property
    def ended(self) -> str | None:
        """The finish reason, in OpenAI's words where an output was cut or filtered."""
        reason = self.finish_reason
        if not isinstance(reason, str):
            return "stop" if reason else None
        if reason.lower() in _FILTERED:
            return FILTERED
        return "length" if reason.lower() in _CUT else reason

    @property
    def matched(self) -> str | None:
        """The stop string that was met, where the engine names it."""
        reason = self.stop_reason or (
            self.provider_specific_fields and self.provider_specific_fields.stop_reason
        )
        return reason if isinstance(reason, str) else None


_NOTHING = MessageReply()


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """An engine's words about its failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None
    param: str | None = None

    @property
    def said(self) -> str:
        """Its words, its name for the failure where it has one, and the parameter that it names."""
        name = self.code if isinstance(self.code, str) and not self.code.isdecimal() else self.type
        said = f"{self.message} ({name})".lstrip() if name else self.message
        return f"{said} (parameter {self.param})" if self.param else said


_DEEPEST_FAILURE = 4


def _reported(raw: Any) -> ErrorReply | None:
    """Return the failure that a server reports: an object, maybe within others or in a list,
    words, or a status.
    """
    for _ in range(_DEEPEST_FAILURE):
        if isinstance(raw, list):
            raw = raw[0] if raw else None
        inner = raw.get("error") if isinstance(raw, dict) else None
        raw = inner or raw
    if not raw:
        return None
    if isinstance(raw, str):
        return ErrorReply(type=raw)
    if isinstance(raw, int):
        return ErrorReply(code=raw)
    failure: ErrorReply | None = readable(ErrorReply, raw)
    return None if failure == ErrorReply() else failure


class ChatReply(msgspec.Struct, frozen=True, gc=False):
    """A whole reply or one chunk of a stream; or an error, which some servers send with status
    200.
    """

    choices: tuple[Choice, ...] | None = None
    usage: Any = None
    error: Any = None
    errors: Any = None
    detail: Any = None
    """FastAPI's words about a failure."""
    message: str | None = None
    """An older vLLM's words about its failure, next to their type and code."""
    type: str | None = None
    code: str | int | None = None

    @property
    def failure(self) -> ErrorReply | None:
        """The failure that it reports; None where it reports none."""
        reported = _reported(self.error or self.errors or (None if self.choices else self.detail))
        if reported:
            return reported
        reason = self.choice.finish_reason if self.choice else None
        if isinstance(reason, str) and reason.lower() in _BROKEN:
            return ErrorReply(f"the engine gave the output up: {reason}", "server_error")
        return (
            ErrorReply(self.message, self.type, self.code)
            if self.message and not self.choices
            else None
        )

    @property
    def choice(self) -> Choice | None:
        """The first output; no more than one is ever asked for."""
        for choice in self.choices or ():
            if choice.index == 0:
                return choice
        return self.choices[0] if self.choices else None

    @property
    def told(self) -> UsageReply | None:
        """The usage, possible or not; None where there is none. What is no count at all is one
        that cannot be.
        """
        if self.usage is None or isinstance(self.usage, UsageReply):
            return self.usage
        try:
            return convert_usage(self.usage)
        except msgspec.ValidationError:
            return UsageReply(-1, -1)


class _UsualReply(ChatReply, frozen=True, gc=False):
    usage: UsageReply | None = None


_read_usual = msgspec.json.Decoder(_UsualReply).decode


def read_replies(body: bytes | bytearray) -> tuple[ChatReply, ...]:
    """The replies in these bytes, which are nearly always one. What is none, and fields that are no
    such, are left out. Raises `JSON_ERRORS`.
    """
    try:
        return (_read_usual(body),)
    except msgspec.ValidationError:
        return (readable(ChatReply, msgspec.json.decode(body)) or ChatReply(),)
    except msgspec.DecodeError:  # several values, or numbers that are none of JSON's
        values = _json_values(bytes(body).decode("utf-8-sig").strip().removesuffix("[DONE]"))
        if not values or values[-1][1] is msgspec.UNSET:
            raise
        return tuple(readable(ChatReply, value) or ChatReply() for _, value in values)


def readable(kind: Any, raw: Any) -> Any:
    """`raw` as a `kind`, without the parts of it that are none; None where nothing is left."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(raw, kind)
    for inner in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(raw, list) and get_origin(inner) is tuple:
            items = (readable(get_args(inner)[0], item) for item in raw)
            return tuple(item for item in items if item is not None)
        if isinstance(raw, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            fields = [
                (field.name, field.type)
                for field in msgspec.structs.fields(inner)
                if field.name in raw
            ]
            values = ((name, readable(of, raw[name])) for name, of in fields)
            return inner(**{name: value for name, value in values if value is not None})
    return None


def convert_usage(raw: object) -> UsageReply:
    """The usage in a table, or in an object with such attributes. Raises
    `msgspec.ValidationError`.
    """
    return msgspec.convert(raw, UsageReply, from_attributes=True)


class FailureReply(msgspec.Struct, frozen=True):
    """The body of a reply with an error status: OpenAI's shape, that of older vLLMs, or
    FastAPI's.
    """

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
    omit: Collection[str] = (),
) -> dict[str, Any]:
    """The request for `prompt`, ready for JSON; what is not set is not sent. `options`: what a
    stream tells beside its text. `interval`: tokens that vLLM sends at a time. `thinking`: vLLM's
    `enable_thinking` of the chat template; None leaves it alone. A last message of the assistant's
    is continued.

    `extra`: further fields. They win over those here, but for model, messages and stream; tables
    are merged. `omit`: fields that are left out.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(prompt) if prompt.tools else prompt.messages,
    }
    body |= {
        name: value
        for name, value in msgspec.structs.asdict(prompt.sampling).items()
        if value is not None
    }
    if prompt.messages and prompt.messages[-1].role == "assistant":
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    further = {
        "stop": None if prompt.unstopped else list(prompt.stop) or None,
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
    return {name: value for name, value in body.items() if name not in omit} if omit else body


def _function(tool: Function) -> dict[str, Any]:
    return {**msgspec.structs.asdict(tool), "parameters": msgspec.json.decode(tool.parameters)}


MAX_EVENT_BYTES = 2**20
"""No chat completion chunk comes near; a line without an end must not fill the memory."""


class EventTooLong(ValueError):
    """An event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it what arrives; it returns the data of every event that is complete by then.

    Comments, fields other than `data` and events without data are passed over; what stands after
    the last blank line is no event, as the standard has it.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = bytearray()
        self._returned = False
        """Whether the last byte was a carriage return, which ends a line with or without a line
        feed behind it.
        """

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes. Raises `EventTooLong`."""
        if (
            received.startswith(b"data: ")
            and received.endswith(b"\n\n")
            and not (self._line or self._data)
        ):
            events = received[6:-2].split(b"\n\ndata: ")
            if (
                received.count(b"\n") == 2 * len(events)
                and b"\r" not in received
                and b"" not in events
            ):
                return events  # whole events of one line each, as nearly always
        events = []
        if received:
            begins = 1 if self._returned and received.startswith(b"\n") else 0
            self._returned = received.endswith(b"\r")
            received = received[begins:]
        first, *others = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
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
        line = self._line
        if not line:
            event = bytes(self._data[:-1])
            self._data = bytearray()
            return event
        field, _, value = line.removeprefix(BOM_UTF8).partition(b":")
        if field == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        return b""
