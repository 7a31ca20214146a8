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
from msgspec.structs import asdict, replace

from router.errors import JSON_ERRORS
from router.frozen import Frozen
from router.models.model import Message, Prompt, Usage

_CUT = frozenset({"length", "max_tokens", "model_length", "insufficient_system_resource"})
"""Finish reasons of an output that a limit on its length cut off."""
FILTERED = "content_filter"
_FILTERED = re.compile(
    "content.?filter|refus|(?:image_)?(?:safety|recitation|prohibited_content)|blocklist|spii"
    "|sensitive|guardrail",
    re.IGNORECASE,
)
"""Matches finish reasons of an output that a filter ended or the model refused to write."""
_BROKEN = frozenset({"error", "abort", "aborted", "engine_error", "server_error"})
"""Finish reasons of an output that the engine aborted."""


class PromptDetails(Frozen, gc=False):
    """Breakdown of the prompt tokens (`prompt_tokens_details`)."""

    cached_tokens: int | None = None


class CompletionDetails(Frozen, gc=False):
    """Breakdown of the completion tokens (`completion_tokens_details`)."""

    reasoning_tokens: int | None = None


class UsageReply(Frozen, gc=False):
    """The `usage` object of a reply."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    """Number of output tokens. The type is `Any`, so that a malformed number is not mistaken for a
    missing one. `usage` replaces a malformed number by -1, which is impossible.
    """
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    """DeepSeek's name for the cached tokens."""

    def usage(self) -> Usage | None:
        """Return the token counts, without checking whether they are plausible. Return None if the
        prompt's or the output's count is missing.
        """
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
            written += reasoning  # xAI's completion tokens exclude the reasoning
        return Usage(self.prompt_tokens, written, cached, reasoning)


class FunctionReply(Frozen, gc=False):
    """The `function` of a tool call, or a piece of it in a chunk."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class CallReply(Frozen, gc=False):
    """Tool call, or a piece of a tool call in a chunk."""

    index: int | str | None = None
    """Number of the call that the piece belongs to; None in a whole message."""
    id: str | None = None
    function: FunctionReply | None = None


_MAX_ITEMS = 256
"""Max items that are read from a list in a reply. Normal replies have one output with a few parts
and tool calls.
"""
_MAX_ODD = 16
"""Max items that are read from a list with an unreadable item. Such a list is read item by item,
which is slower.
"""
_THINKING = re.compile("think|reason|thought|summary")
"""Matches the type of a content part that is reasoning."""
_NO_TEXT = re.compile("tool|citation|reference")
"""Matches the type of a content part that is not the model's own text."""


class MessageReply(Frozen, gc=False):
    """Message of a reply, or a piece of a message in a chunk."""

    content: str | list[Any] | dict[str, Any] | None = None
    """The text, or a list of content parts."""
    reasoning: str | None = None
    """Reasoning, as vLLM names it."""
    reasoning_content: str | None = None
    """Reasoning, as DeepSeek's API and LiteLLM name it."""
    thinking: str | None = None
    """Reasoning, as Ollama names it."""
    refusal: str | None = None
    tool_calls: tuple[CallReply, ...] | None = None
    function_call: FunctionReply | None = None
    """The tool call in OpenAI's older API, which allowed only one."""

    @property
    def calls(self) -> tuple[CallReply, ...]:
        """The message's tool calls, or pieces of them."""
        if self.tool_calls or not self.function_call:
            return self.tool_calls or ()
        return (CallReply(function=self.function_call),)

    @property
    def parts(self) -> tuple[str, str, str]:
        """The message's text, reasoning and refusal, each joined from all content parts."""
        texts = list[str]()
        thoughts = [self.reasoning or self.reasoning_content or self.thinking or ""]
        refusals = [self.refusal or ""]
        parts = self.content if isinstance(self.content, list) else [self.content]
        for part in parts[:_MAX_ITEMS]:
            fields = part if isinstance(part, dict) else {}
            kind = str(fields.get("type"))
            kept = thoughts if _THINKING.search(kind) else texts
            kept.append("" if _NO_TEXT.search(kind) else _part_text(part))
            thoughts += [_part_text(fields.get(name)) for name in ("thinking", "reasoning")]
            refusals.append(_part_text(fields.get("refusal")))
        return "".join(texts), "".join(thoughts), "".join(refusals)


def _part_text(value: Any) -> str:
    """Return the text of a content part, or of a field of one. In Mistral's replies, the field of a
    thought is itself a list of parts.
    """
    for name in "text content value parts".split():
        if isinstance(value, dict):
            value = value.get(name) or value
    if isinstance(value, list):
        with suppress(RecursionError):
            return "".join(map(_part_text, value[:_MAX_ITEMS]))
    return value if isinstance(value, str) else ""


CALL_BEGIN = '<call tool="'
CALL_END = "</call>"
_CALL = re.compile(r'<call tool="([^"<>]*)">([^<]*)</call>')
_MAX_CALLS = 128
"""Max tool calls that are kept of one turn. Of these, only the first is carried out."""


class _Call:
    """The part of a tool call that has arrived so far."""

    def __init__(self) -> None:
        self.name = ""
        self.arguments = list[str]()

    @property
    def text(self) -> str:
        """The call as text, without its end tag. `<` is escaped in the arguments, so that they
        cannot contain a tag.
        """
        arguments = _last_object(self.arguments).replace("<", r"\u003c")
        # Some servers write the name `fetch` as `functions.fetch:0`
        name = self.name.removeprefix("functions.")
        before, _, number = name.rpartition(":")
        name = before if before and number.isdecimal() else name
        return f'{CALL_BEGIN}{name}">{arguments}'


class Calls:
    """Joins the pieces of streamed tool calls. Pieces with the same id belong to the same call.
    Without ids, pieces with the same index do. Without both, a piece continues the latest call, or
    begins the next one. Pieces before the first name are ignored.
    """

    def __init__(self) -> None:
        self._calls = list[_Call]()
        self._by = dict[str, _Call]()
        """Calls by id, and by `index N`. The empty string maps to the latest call."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, pieces: Sequence[CallReply]) -> None:
        """Add the pieces of the next chunk."""
        for piece in pieces[:_MAX_ITEMS]:
            self._add(piece)

    def _add(self, piece: CallReply) -> None:
        if len(self._calls) == _MAX_CALLS:
            return
        function = piece.function or FunctionReply()
        name = (function.name or "").strip()
        arguments = function.arguments or ""
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)

        index = "" if piece.index is None else f"index {piece.index}"
        latest = self._by.get(index) or (self._calls[-1] if self._calls and not name else None)
        call = self._by.get(piece.id) if piece.id else None
        if call is None:
            # A piece that has a name, and arguments that are empty or begin with `{`, opens a new
            # call, unless it may only repeat the name of the latest call.
            opens = name and arguments.lstrip()[:1] in ("", "{")
            follows = not index and latest and latest.arguments not in ([], ["{}"])
            if not (opens and (piece.id or follows)):
                call = latest
        if call is None:
            if not name:
                return
            call = _Call()
            self._calls.append(call)

        self._by.update({"": call, index: call, piece.id or "": call})
        call.name = name if name.startswith(call.name) else call.name + name
        call.arguments += [arguments] if arguments else []

    def text(self, *, cut: bool) -> str:
        """Return all calls as text. `cut`: True if the last call is incomplete, so that it gets no
        end tag.
        """
        return CALL_END.join(call.text for call in self._calls) + ("" if cut else CALL_END)


_decode_from = json.JSONDecoder().raw_decode
_NEXT = re.compile(r"\s*(?=\S)")
_LONGEST_ARGUMENTS = 50_000
"""Max characters of a call's arguments."""
_MAX_VALUES = 4_096
"""Max JSON values that are read from one text, because each takes some time."""


def _json_values(text: str) -> list[tuple[int, Any]]:
    """Return the consecutive JSON values in `text`, each with its start position. If the text is
    unreadable from some position on, or has more than `_MAX_VALUES` values, the last item is UNSET,
    with the position at which the unread rest starts.
    """
    values = list[tuple[int, Any]]()
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
    """Join the pieces of a call's arguments, and return their JSON object as text. Some servers
    send the whole object again after the last piece or after an incomplete piece, append further
    text, or encode the object twice.
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
    """Return the messages of a prompt that offers tools, in the API's form. A call in the text of
    an assistant message becomes a tool call, and the user message after it becomes the tool's
    result.
    """
    messages = list[Message | dict[str, Any]]()
    call_id = ""
    for number, message in enumerate(prompt.messages):
        call = _CALL.search(message.content) if message.role == "assistant" else None
        if call and _is_object(call[2]):
            call_id = f"call{number:05}"  # Mistral requires nine letters and digits
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


class ProviderFields(Frozen, gc=False):
    """Fields of a choice that LiteLLM passes on from the provider unchanged."""

    stop_reason: str | int | None = None


class Choice(Frozen, gc=False):
    """One output of a reply, or a piece of an output in a chunk."""

    index: int = 0
    message: MessageReply | None = None
    delta: MessageReply | None = None
    text: str | None = None
    """The output's text in OpenAI's older completions API."""
    finish_reason: Any = None
    stop_reason: str | int | None = None
    """In vLLM's replies: the stop string at which the output ended, or the id of the stop token."""
    matched_stop: str | int | None = None
    """SGLang's name for `stop_reason`."""
    provider_specific_fields: ProviderFields | None = None

    @property
    def content(self) -> MessageReply:
        """The content of this piece: `delta` if it has content, else `message`, else `text`."""
        if self.message is None or self.delta not in (None, _EMPTY):
            return self.delta or MessageReply(self.text)
        return self.message

    @property
    def reason(self) -> str | None:
        """The finish reason. Other servers' names for an output that reached a limit or was
        filtered are translated to OpenAI's `length` and `content_filter`.
        """
        reason = self.finish_reason
        if not isinstance(reason, str):
            return "stop" if reason else None
        if reason.lower() in ("", "null", "none"):
            return None
        if _FILTERED.match(reason):
            return FILTERED
        return "length" if reason.lower() in _CUT else reason

    @property
    def matched(self) -> str | None:
        """The stop string at which the output ended; None if the engine does not report it."""
        nested = (self.provider_specific_fields or ProviderFields()).stop_reason
        reasons = (self.stop_reason, self.matched_stop, nested)
        return next((reason for reason in reasons if isinstance(reason, str)), None)


_EMPTY = MessageReply()


class ErrorReply(Frozen, gc=False):
    """A server's report of a failure."""

    message: str = ""
    type: str | None = None
    code: str | int | None = None
    param: str | None = None
    details: tuple[Any, ...] = ()
    """Further reports in Google's errors, such as the pause to make before a retry."""

    @property
    def words(self) -> str:
        """The message, followed by the failure's name, parameter and details if the report has
        them.
        """
        name = self.type
        if isinstance(self.code, str) and not self.code.isdecimal():
            name = self.code
        words = self.message
        if name and name != words:
            words = f"{words} ({name})".lstrip()
        if self.param:
            words = f"{words} (parameter {self.param})"
        return f"{words} {self.details or ''}".strip()


_MAX_NESTED = 4
"""Max levels of objects and lists around a failure."""


def _failure(report: Any) -> ErrorReply | None:
    """Return the failure in `report`, which may be an object (perhaps nested or in a list), a text,
    or an HTTP status. Return None if `report` contains no failure.
    """
    for _ in range(_MAX_NESTED):
        if isinstance(report, list):
            report = report[0] if report else None
        if isinstance(report, dict):
            if reason := report.get("blockReason"):
                return ErrorReply(str(reason), FILTERED)
            report = report.get("error") or report
    if not report:
        return None
    if isinstance(report, str):
        return ErrorReply(report, report)
    if isinstance(report, int):
        return ErrorReply(code=report)
    failure: ErrorReply | None = readable(ErrorReply, report)
    return None if failure == ErrorReply() else failure


class ChatReply(Frozen, gc=False):
    """A whole reply, a chunk of a stream, or an error. Errors are included because some servers
    send them with status 200.
    """

    choices: tuple[Choice, ...] | None = None
    usage: UsageReply | None = None
    error: Any = None
    errors: Any = None
    detail: Any = None
    """Report of a failure by a server that uses FastAPI."""
    message: str | None = None
    """Report of a failure by an older vLLM, which also sets `type` and `code`."""
    type: str | None = None
    code: str | int | None = None
    promptFeedback: Any = None
    """Gemini's report. Its field `blockReason` names the filter that blocked the prompt."""

    @property
    def failure(self) -> ErrorReply | None:
        """The failure that the reply reports; None if it reports none."""
        other = None if self.choices else self.detail or self.promptFeedback
        report = self.error or self.errors or other
        if failure := _failure(report):
            return failure
        if self.message and not self.choices:
            return ErrorReply(self.message, self.type, self.code)
        reason = self.choice.finish_reason if self.choice else None
        if isinstance(reason, str) and reason.lower() in _BROKEN:
            return ErrorReply(f"the engine aborted the output: {reason}", "server_error")
        return None

    @property
    def choice(self) -> Choice | None:
        """The output with index 0, or else the first one. Requests ask for only one output."""
        for choice in (self.choices or ())[:_MAX_ITEMS]:
            if choice.index == 0:
                return choice
        return self.choices[0] if self.choices else None


_read_reply = msgspec.json.Decoder(ChatReply).decode


def read_replies(body: bytes | bytearray) -> tuple[ChatReply, ...]:
    """Return the replies in `body`; there is nearly always one. Parts of a reply that have the
    wrong type are left out.

    Raises `JSON_ERRORS` if `body` is not JSON.
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
    """Return the readable parts of a reply. A usage that cannot be read becomes an impossible one,
    with counts of -1, so that it is not treated as missing.
    """
    reply: ChatReply = readable(ChatReply, raw) or ChatReply()
    if isinstance(raw, dict) and raw.get("usage") is not None and reply.usage is None:
        return replace(reply, usage=UsageReply(-1, -1))
    return reply


_fields = cache(msgspec.structs.fields)


def readable(kind: Any, raw: Any) -> Any:
    """Convert `raw` to the type `kind`, and leave out the parts that cannot be converted. Return
    None if `raw` as a whole cannot be converted.
    """
    for inner in get_args(kind) if isinstance(kind, UnionType) else (kind,):
        if inner is MessageReply and isinstance(raw, str | list):
            raw = {"content": raw}
        if isinstance(raw, dict) and get_origin(inner) is tuple:
            raw = [raw]
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
"""Header with the identifier of a call. vLLM logs the call as `chatcmpl-` followed by that
identifier.
"""
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
    """Return the body of the request for `prompt`, ready for JSON, without unset fields.

    `options`: value of `stream_options`. `interval`: value of vLLM's `stream_interval`, the tokens
    per event. `thinking`: the chat template's option `enable_thinking`; None leaves it unset.
    `extra`: further fields, which override all fields except model, messages and stream; objects
    are merged with the field of the same name. `omit`: names of fields to leave out.
    """
    tools = [
        {
            "type": "function",
            "function": asdict(tool) | {"parameters": msgspec.json.decode(tool.parameters)},
        }
        for tool in prompt.tools
    ]
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(prompt) if prompt.tools else prompt.messages,
        **asdict(prompt.sampling),
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


MAX_EVENT_BYTES = 2**20
"""Max bytes of a server-sent event. Real events are far smaller; the limit protects against lines
that never end.
"""


class EventTooLong(ValueError):
    """Raised when an event exceeds `MAX_EVENT_BYTES`."""


class EventReader:
    """Parser of server-sent events: `feed` takes bytes and returns the data of complete events.

    Comments, fields other than `data`, and events without data are skipped. As the standard
    requires, text after the last blank line is not an event.
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
            raise EventTooLong(f"an event has over {MAX_EVENT_BYTES} bytes; check the endpoint")
        return events

    def _end_line(self) -> bytes:
        """Process one line. Return the event's data if the line is blank, which ends the event;
        else return empty bytes.
        """
        line = self._line
        if not line:
            event = bytes(self._data[:-1])
            self._data = bytearray()
            return event
        field, _, value = line.removeprefix(BOM_UTF8).partition(b":")
        if field == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        return b""
