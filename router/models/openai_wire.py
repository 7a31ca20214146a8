"""Requests and replies of OpenAI's chat completions API, as vLLM and other servers write them.

Real servers deviate, so reading is lenient: a field that has the wrong type counts as absent, and
only a reply without any readable output is an error.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec

from router.errors import JSON_ERRORS
from router.models.model import Function, Message, Prompt, Usage

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Finish reasons of an output that reached a limit."""
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
"""Finish reasons of an output that a filter ended or the model refused to write."""
_BROKEN = frozenset({"error", "abort", "aborted", "engine_error", "server_error"})
"""Finish reasons of an output that the engine gave up."""


class PromptDetails(msgspec.Struct, frozen=True, gc=False):
    """Breakdown of the prompt tokens."""

    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct, frozen=True, gc=False):
    """Breakdown of the completion tokens."""

    reasoning_tokens: int | None = None


class UsageReply(msgspec.Struct, frozen=True, gc=False):
    """Usage as the engine counted it."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    """Not typed: a count that is no whole number makes the usage impossible, not unknown."""
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for the cached tokens."""

    def usage(self) -> Usage | None:
        """Return the counts, plausible or not; None if the prompt's or the output's is missing."""
        counts = (self.prompt_tokens, self.completion_tokens)
        if None in counts:
            return None
        if not all(type(count) is int for count in counts):
            return Usage(-1, -1)
        cached = self.prompt_cache_hit_tokens
        if self.prompt_tokens_details and self.prompt_tokens_details.cached_tokens is not None:
            cached = self.prompt_tokens_details.cached_tokens
        reasoning = (self.completion_tokens_details or CompletionDetails()).reasoning_tokens
        written = self.completion_tokens
        if reasoning and self.total_tokens == self.prompt_tokens + written + reasoning:
            written += reasoning  # xAI does not count it as completion tokens
        return Usage(self.prompt_tokens, written, cached, reasoning)


class FunctionReply(msgspec.Struct, frozen=True, gc=False):
    """Function of a tool call, or a chunk's piece of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallReply(msgspec.Struct, frozen=True, gc=False):
    """Tool call, or a chunk's piece of one."""

    index: int | str | None = None
    """Number of the call that a piece belongs to; None in a whole message."""
    id: str | None = None
    function: FunctionReply | None = None


_MAX_ITEMS = 256
"""Max items of a list that are read; a reply has one output with a few parts and calls."""
_MAX_ODD = 16
"""Max items of a list with an unreadable item that are read, as each costs more."""
_THINKING = re.compile("think|reason|thought")
"""Marks the type of a content part as reasoning."""


class MessageReply(msgspec.Struct, frozen=True, gc=False):
    """Message, or a chunk's piece of one."""

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
    function_call: FunctionReply | None = None
    """The only call in the older API."""

    @property
    def calls(self) -> tuple[CallReply, ...]:
        """Tool calls, or pieces of them."""
        if self.tool_calls or not self.function_call:
            return self.tool_calls or ()
        return (CallReply(function=self.function_call),)

    @property
    def parts(self) -> tuple[str, str, str]:
        """Text, reasoning and refusal."""
        texts: list[str] = []
        thoughts = [self.reasoning or self.reasoning_content or self.thinking or ""]
        refusals = [self.refusal or ""]
        parts = self.content if isinstance(self.content, list) else [self.content]
        for part in parts[:_MAX_ITEMS]:
            fields = part if isinstance(part, dict) else {"text": part}
            thinks = _THINKING.search(str(fields.get("type")))
            (thoughts if thinks else texts).append(_part_text(fields.get("text")))
            thoughts += [_part_text(fields.get(name)) for name in ("thinking", "reasoning")]
            refusals.append(_part_text(fields.get("refusal")))
        return "".join(texts), "".join(thoughts), "".join(refusals)


def _part_text(value: Any) -> str:
    """Return the text of a content part's field; Mistral's thoughts have parts themselves."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, list):
        parts = (part for part in value[:_MAX_ITEMS] if isinstance(part, dict))
        return "".join(str(part.get("text", "")) for part in parts)
    return value if isinstance(value, str) else ""


CALL_BEGIN = '<call tool="'
CALL_END = "</call>"
_CALL = re.compile(r'<call tool="([^"<>]*)">([^<]*)</call>')
_MAX_CALLS = 128
"""Max calls of one turn that are kept; only the first is ever made."""


class _Call:
    """Tool call, as far as it has arrived."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []

    @property
    def text(self) -> str:
        """The call without its end tag; `<` is escaped in its arguments, so they hold no tag."""
        arguments = _last_object(self.arguments).replace("<", r"\u003c")
        # Some servers name it `functions.fetch:0`
        name = self.name.strip().removeprefix("functions.")
        before, _, number = name.rpartition(":")
        name = before if before and number.isdecimal() else name
        return f'{CALL_BEGIN}{name}">{arguments}'


class Calls:
    """Joins the pieces of tool calls by their ids, else by their indices, else by their order."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by: dict[str, _Call] = {}
        """Calls by id, by index, and the latest one under the empty string."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, pieces: Sequence[CallReply]) -> None:
        """Add the next pieces."""
        for piece in pieces[:_MAX_ITEMS]:
            self._add(piece)

    def _add(self, piece: CallReply) -> None:
        if len(self._calls) == _MAX_CALLS:
            return
        function = piece.function or FunctionReply()
        name = function.name or ""
        arguments = function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)

        index = "" if piece.index is None else f"index {piece.index}"
        latest = self._by.get(index) or (self._calls[-1] if self._calls and not name else None)
        call = self._by.get(piece.id) if piece.id else None
        if call is None:
            # A name with the start of an object opens a call, unless it may repeat the latest one
            opens = name and arguments.lstrip()[:1] in ("", "{")
            follows = not index and latest and latest.arguments not in ([], ["{}"])
            if not (opens and (piece.id or follows)):
                call = latest
        if call is None:
            call = _Call()
            self._calls.append(call)

        self._by.update({"": call, index: call, piece.id or "": call})
        call.name = name if name.startswith(call.name) else call.name + name
        call.arguments += [arguments] if arguments else []

    def text(self, *, cut: bool) -> str:
        """Return all calls as text. `cut`: the last one is incomplete."""
        return CALL_END.join(call.text for call in self._calls) + ("" if cut else CALL_END)


_decode_from = json.JSONDecoder().raw_decode
_NEXT = re.compile(r"\s*(?=\S)")
_LONGEST_ARGUMENTS = 50_000
"""Max characters of a call's arguments."""
_MAX_VALUES = 4_096
"""Max JSON values in one text, as each costs a step."""


def _json_values(text: str) -> list[tuple[int, Any]]:
    """Return consecutive JSON values, each with its start; UNSET for an unreadable rest, or one
    after `_MAX_VALUES`.
    """
    values: list[tuple[int, Any]] = []
    end = 0
    while start := _NEXT.match(text, end):
        value: Any = msgspec.UNSET
        end = len(text)
        if len(values) < _MAX_VALUES:
            with suppress(ValueError, RecursionError):
                value, end = _decode_from(text, start.end())
        values.append((start.end(), value))
    return values


def _last_object(pieces: Sequence[str]) -> str:
    """Return the arguments in `pieces`; some servers send them again after the last or an
    incomplete piece, write more after them, or encode them twice.
    """
    text = "".join(pieces)[:_LONGEST_ARGUMENTS]
    values = _json_values(text)
    end = len(text)
    for start, value in reversed(values):
        if isinstance(value, str) and _is_object(value):
            return value
        if isinstance(value, dict):
            return text[start:end].rstrip()
        end = start
    if not values:
        return text
    if values[0][1] is msgspec.UNSET and _is_object(pieces[-1]):
        return pieces[-1]
    return text[values[-1][0] :]


def _messages(prompt: Prompt) -> Sequence[Message | dict[str, Any]]:
    """Return the messages of a prompt with tools: calls in the text become tool calls, and the
    message after each its result.
    """
    messages: list[Message | dict[str, Any]] = []
    call_id = ""
    for number, message in enumerate(prompt.messages):
        call = _CALL.search(message.content) if message.role == "assistant" else None
        if call and _is_object(call[2]):
            call_id = f"call{number:05}"  # Mistral wants nine letters and digits
            function = {"name": call[1], "arguments": call[2]}
            tool_calls = [{"id": call_id, "type": "function", "function": function}]
            text = message.content[: call.start()].strip() or None
            messages.append({"role": "assistant", "content": text, "tool_calls": tool_calls})
        elif call_id and message.role == "user":
            messages.append({"role": "tool", "tool_call_id": call_id, "content": message.content})
            call_id = ""
        else:
            messages.append(message)
    return messages


def _is_object(text: str) -> bool:
    with suppress(*JSON_ERRORS):
        return isinstance(msgspec.json.decode(text), dict)
    return False


class ProviderFields(msgspec.Struct, frozen=True, gc=False):
    """Fields of a choice that LiteLLM has no name for."""

    stop_reason: str | int | None = None


class Choice(msgspec.Struct, frozen=True, gc=False):
    """One output, or a chunk's piece of it."""

    index: int = 0
    message: MessageReply | None = None
    delta: MessageReply | None = None
    text: str | None = None
    """Output in the older API of completions."""
    finish_reason: Any = None
    stop_reason: str | int | None = None
    """vLLM's: the stop string that was met, or the id of the stop token."""
    matched_stop: str | int | None = None
    """SGLang's name."""
    provider_specific_fields: ProviderFields | None = None

    @property
    def content(self) -> MessageReply:
        """The message or delta, whichever holds anything."""
        if self.message is None or self.delta not in (None, _EMPTY):
            return self.delta or MessageReply(self.text)
        return self.message

    @property
    def reason(self) -> str | None:
        """The finish reason, in OpenAI's words if the output was cut or filtered."""
        reason = self.finish_reason
        if not isinstance(reason, str):
            return "stop" if reason else None
        if reason.lower() in ("", "null", "none"):
            return None
        if reason.lower() in _FILTERED:
            return FILTERED
        return "length" if reason.lower() in _CUT else reason

    @property
    def matched(self) -> str | None:
        """The stop string that was met, if the engine names it."""
        nested = (self.provider_specific_fields or ProviderFields()).stop_reason
        reasons = (self.stop_reason, self.matched_stop, nested)
        return next((reason for reason in reasons if isinstance(reason, str)), None)


_EMPTY = MessageReply()


class ErrorReply(msgspec.Struct, frozen=True, gc=False):
    """A server's report of a failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None
    param: str | None = None

    @property
    def words(self) -> str:
        """The message, with the failure's name and parameter if it has them."""
        name = self.type
        if isinstance(self.code, str) and not self.code.isdecimal():
            name = self.code
        words = self.message
        if name and name != words:
            words = f"{words} ({name})".lstrip()
        return f"{words} (parameter {self.param})" if self.param else words


_MAX_NESTED = 4
"""Max levels of objects and lists around a failure."""


def _failure(report: Any) -> ErrorReply | None:
    """Return the reported failure: an object, perhaps nested or in a list, a text or a status."""
    for _ in range(_MAX_NESTED):
        if isinstance(report, list):
            report = report[0] if report else None
        if isinstance(report, dict):
            report = report.get("error") or report
    if not report:
        return None
    if isinstance(report, str):
        return ErrorReply(report, report)
    if isinstance(report, int):
        return ErrorReply(code=report)
    failure: ErrorReply | None = readable(ErrorReply, report)
    return None if failure == ErrorReply() else failure


class ChatReply(msgspec.Struct, frozen=True, gc=False):
    """Whole reply, chunk of a stream, or error; some servers send errors with status 200."""

    choices: tuple[Choice, ...] | None = None
    usage: UsageReply | None = None
    error: Any = None
    errors: Any = None
    detail: Any = None
    """FastAPI's report of a failure."""
    message: str | None = None
    """An older vLLM's report of a failure, next to its type and code."""
    type: str | None = None
    code: str | int | None = None

    @property
    def failure(self) -> ErrorReply | None:
        """The failure that it reports, if any."""
        report = self.error or self.errors or (None if self.choices else self.detail)
        if failure := _failure(report):
            return failure
        if self.message and not self.choices:
            return ErrorReply(self.message, self.type, self.code)
        reason = self.choice.finish_reason if self.choice else None
        if isinstance(reason, str) and reason.lower() in _BROKEN:
            return ErrorReply(f"the engine gave the output up: {reason}", "server_error")
        return None

    @property
    def choice(self) -> Choice | None:
        """The only output that was asked for."""
        for choice in (self.choices or ())[:_MAX_ITEMS]:
            if choice.index == 0:
                return choice
        return self.choices[0] if self.choices else None


_read_reply = msgspec.json.Decoder(ChatReply).decode


def read_replies(body: bytes | bytearray) -> tuple[ChatReply, ...]:
    """Return the replies in `body`, nearly always one, without unreadable parts.

    Raises `JSON_ERRORS`.
    """
    try:
        return (_read_reply(body),)
    except msgspec.ValidationError:
        return (_readable_reply(msgspec.json.decode(body)),)
    except msgspec.DecodeError:  # several values, or numbers such as NaN
        values = _json_values(bytes(body).decode("utf-8-sig").strip().removesuffix("[DONE]"))
        if not values or values[-1][1] is msgspec.UNSET:
            raise
        return tuple(_readable_reply(value) for _, value in values)


def _readable_reply(raw: Any) -> ChatReply:
    """Return the readable parts of a reply; a usage that is none counts as an impossible one."""
    reply: ChatReply = readable(ChatReply, raw) or ChatReply()
    if isinstance(raw, dict) and raw.get("usage") is not None and reply.usage is None:
        return msgspec.structs.replace(reply, usage=UsageReply(-1, -1))
    return reply


_fields = cache(msgspec.structs.fields)


def readable(kind: Any, raw: Any) -> Any:
    """Return `raw` as a `kind` without the parts that do not convert; None if nothing is left."""
    for inner in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if isinstance(raw, list) and get_origin(inner) is tuple:
            items = (readable(get_args(inner)[0], item) for item in raw[:_MAX_ODD])
            return tuple(item for item in items if item is not None)
        if isinstance(raw, dict) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            values = {
                field.name: readable(field.type, raw[field.name])
                for field in _fields(inner)
                if field.name in raw
            }
            return inner(**{name: value for name, value in values.items() if value is not None})
        if inner is Any or type(raw) is (get_origin(inner) or inner):
            return raw
    return None


REQUEST_ID = "X-Request-Id"
"""Header that names a call; vLLM logs the call as `chatcmpl-` and that name."""
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
    """Return the request for `prompt`, ready for JSON, without unset fields.

    `options`: stream options. `interval`: tokens per event of vLLM's stream. `thinking`: vLLM's
    `enable_thinking` for the chat template; None leaves it unset. `extra`: further fields, which
    win over all but model, messages and stream; tables are merged. `omit`: fields to leave out.
    """
    tools = [{"type": "function", "function": _function(tool)} for tool in prompt.tools]
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(prompt) if prompt.tools else prompt.messages,
        **msgspec.structs.asdict(prompt.sampling),
        "stop": None if prompt.unstopped else list(prompt.stop) or None,
        "tools": tools or None,
        "stream": stream or None,
        "stream_options": options,
        "stream_interval": interval,
        "chat_template_kwargs": None if thinking is None else {"enable_thinking": thinking},
        "structured_outputs": None if prompt.pattern is None else {"regex": prompt.pattern},
    }
    for name, value in (extra or {}).items():
        if name not in _OURS:
            merges = isinstance(value, Mapping) and isinstance(body.get(name), Mapping)
            body[name] = {**body[name], **value} if merges else value
    return {name: value for name, value in body.items() if value is not None and name not in omit}


def _function(tool: Function) -> dict[str, Any]:
    return {**msgspec.structs.asdict(tool), "parameters": msgspec.json.decode(tool.parameters)}


MAX_EVENT_BYTES = 2**20
"""Max bytes of an event; far more than any chunk has, and a bound for lines without an end."""


class EventTooLong(ValueError):
    """An event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Parser of server-sent events: feed it bytes, and it returns the data of complete events.

    Comments, other fields than `data`, and events without data are skipped. Text after the last
    blank line is no event, as the standard says.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = bytearray()
        self._returned = False
        """Whether the last byte was a carriage return, which a line feed may follow."""

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that `received` completes. Raises `EventTooLong`."""
        # The usual case: whole events of one line each
        starts = received.startswith(b"data: ") and not (self._line or self._data)
        if starts and received.endswith(b"\n\n") and b"\r" not in received:
            events = received[6:-2].split(b"\n\ndata: ")
            if received.count(b"\n") == 2 * len(events) and b"" not in events:
                return events

        events = []
        if received:
            skipped = 1 if self._returned and received.startswith(b"\n") else 0
            self._returned = received.endswith(b"\r")
            received = received[skipped:]
        first, *others = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._line += first
        for line in others:
            if event := self._end_line():
                events.append(event)
            self._line = bytearray(line)
        if len(self._line) + len(self._data) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _end_line(self) -> bytes:
        """Take one line; return the event's data if the line is blank and so ends it."""
        line = self._line
        if not line:
            event = bytes(self._data[:-1])
            self._data = bytearray()
            return event
        field, _, value = line.removeprefix(BOM_UTF8).partition(b":")
        if field == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        return b""
