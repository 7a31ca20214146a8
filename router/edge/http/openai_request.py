"""Requests of the OpenAI-compatible server. Requests of both APIs, chat completions and responses,
are decoded to a `ChatRequest`.
"""

import re
from typing import Annotated, ClassVar

import msgspec
from msgspec.structs import replace

from router.edge.asked_table import is_widesearch
from router.edge.grpc.convert_request import checked_documents
from router.edge.http.chat_tasks import cut, is_chat_task
from router.edge.limits import MAX_REPEATED
from router.edge.rendering import SOURCES
from router.errors import BadRequest
from router.frozen import Frozen
from router.models import Message
from router.protocol.style import MAX_INSTRUCTIONS_CHARS, AnswerStyle
from router.runs.gateway import latest
from router.trace.scope import NO_FILTER, DocumentFilter

ANSWERING = "rolegate"
EXECUTING = "rolegate-executor"
FILLING = "rolegate-table"
MODELS = (ANSWERING, EXECUTING, FILLING)
OPTION = re.compile(
    "no.?cach|ind[ei]|filters?$|max.?total.?tok|max.?cost|topolog|resume.?run|rolegate|extra.?body",
    re.IGNORECASE,
)
"""Matches names of fields that look like an option of this gateway. A request with such a field is
refused if the field is unknown. All other unknown fields are ignored.
"""
OPTIONS = ("no_cache", "rolegate")
"""Names of fields that are options of this gateway."""
_TEXTS = ("text", "input_text", "output_text")
"""Types of parts that contain text."""
_NULL = msgspec.Raw(b"null")
MaxTokens = Annotated[int, msgspec.Meta(ge=0)] | None
_FEW = msgspec.Meta(max_length=MAX_REPEATED)
_MANY = msgspec.Meta(max_length=10_000)
"""Max entries of a list: `_MANY` for messages, `_FEW` for others. A conversation may be long,
although only its latest messages are used.
"""


class Part(Frozen):
    """A part of a message's content. Only texts are supported."""

    type: str
    text: str = ""


class ChatMessage(Frozen):
    """A message of the conversation in a request. The responses API also has items of other types
    than `message`. They have no role, and are ignored.
    """

    role: str = ""
    content: str | Annotated[tuple[Part, ...], _FEW] | None = None
    type: str = "message"

    @property
    def text(self) -> str:
        """The text of the message; the texts of several parts are joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content or ())


class StreamOptions(Frozen):
    """Options of a streamed response."""

    include_usage: bool | None = None
    """True if the last event of the stream must contain the usage."""


class SearchOptions(Frozen, forbid_unknown_fields=True):
    """The field `rolegate` of a request: the indexes and documents to search. The gRPC API has
    fields with the same names.
    """

    index: Annotated[tuple[str, ...], _FEW] = ()
    filter: DocumentFilter = NO_FILTER


class JSONSchema(Frozen):
    """The field `json_schema` of a response format."""

    schema: msgspec.Raw = _NULL


class ResponseFormat(JSONSchema, frozen=True):
    """Format of the answer. `type` is `text`, `json_schema` or `table`; OpenAI's API does not have
    `table`.
    """

    type: str = "text"
    columns: str | tuple[str, ...] = ()
    """Columns of the table, such as `city*, founded:integer`. If empty, the columns are those that
    the question names.
    """
    json_schema: JSONSchema | None = None
    """The JSON schema, in chat completions. In the responses API, the schema is a field of the
    format itself.
    """


class ChatRequest(Frozen, kw_only=True):
    """The body of a chat completion request. Fields that are not listed here are ignored, except
    misspelt options (`OPTION`).
    """

    MESSAGES: ClassVar[str] = "messages"
    """Name of the field with the messages, for error messages."""

    model: str
    messages: Annotated[tuple[ChatMessage, ...], _MANY]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tool_choice: msgspec.Raw = _NULL
    """Raw JSON. It is not decoded, because decoding a large object would take long."""
    max_tokens: MaxTokens = None
    max_completion_tokens: MaxTokens = None
    no_cache: bool | None = None
    """True if executors must work on every sub-query, instead of reusing reports of other runs. The
    gRPC API has the same field; OpenAI's API does not.
    """
    rolegate: SearchOptions = SearchOptions()
    """Further options that are not part of OpenAI's API."""
    response_format: ResponseFormat | None = None

    def as_chat(self) -> "ChatRequest":
        """Return the request itself, which already has the form of a chat completion."""
        return self

    @property
    def role(self) -> str:
        """Name of the model, without an index."""
        return self.model.partition(":")[0]

    @property
    def index(self) -> tuple[str, ...]:
        """Names of the indexes to search; empty for all that the caller may search."""
        return (*self.model.split(":", 1)[1:], *self.rolegate.index)

    @property
    def filter(self) -> DocumentFilter:
        """Conditions that the documents to search must meet. Raises `BadRequest` if they are
        invalid.
        """
        documents = self.rolegate.filter
        return checked_documents(documents, len(msgspec.json.encode(documents)))

    @property
    def question(self) -> str:
        """The text of the last user message. Raises `BadRequest` if there is none, or if the
        request uses features that are not supported.
        """
        if self.n not in (None, 1):
            raise BadRequest(f"n must be 1, got {self.n}; a question has one answer.")
        if bytes(self.tool_choice) not in (b"null", b'"auto"', b'"none"'):
            raise BadRequest(
                "tool_choice requires a tool call, but this model cannot call the client's tools; "
                "leave tool_choice out."
            )
        at = self._last
        if at < 0:
            raise BadRequest(
                f"{self.MESSAGES} has no message with the role `user`; add one with the question."
            )
        last = self.messages[at]
        parts = () if isinstance(last.content, str) else last.content or ()
        for number, part in enumerate(parts):
            if part.type not in _TEXTS:
                raise BadRequest(
                    f"{self.MESSAGES}[{at}].content[{number}] is of type {part.type[:100]!r}; "
                    "only parts of type 'text' are supported; leave it out."
                )
        return last.text

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages of user and assistant before the last user message, without the sources
        below the gateway's answers. If there are more than a request may have, the oldest are left
        out.
        """
        messages = list[Message]()
        for message in self.messages[: self._last]:
            text = message.text.partition(SOURCES)[0].strip()
            match message.role:
                case "user" | "assistant" as role if text:
                    messages.append(Message(role, text))
        return latest(messages)

    @property
    def _last(self) -> int:
        """The index of the last user message in `messages`; -1 if there is none."""
        numbers = (at for at, message in enumerate(self.messages) if message.role == "user")
        return max(numbers, default=-1)

    @property
    def style(self) -> AnswerStyle:
        """The style of the answer: the system messages are instructions for the answerer, and the
        max tokens limit the answer.
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
    def schema(self) -> bytes:
        """The JSON schema of the answer; empty if there is none. Raises `BadRequest` for a format
        that is not supported.
        """
        wanted = self.response_format or ResponseFormat()
        if wanted.type not in ("text", "table", "json_schema"):
            raise BadRequest(
                f"The type {wanted.type[:100]!r} of the response format is not supported; use "
                "text, json_schema or table."
            )
        if wanted.type != "json_schema":
            return b""
        return bytes((wanted.json_schema or wanted).schema)

    @property
    def wants_table(self) -> bool:
        """True if the request is for a table: its model or its response format says so, or its
        question has the form of the questions of the benchmark WideSearch.
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


class TextOptions(Frozen):
    """The field `text` of a request of the responses API."""

    format: ResponseFormat | None = None


_TEXT = msgspec.Raw(b'{"format":{"type":"text"}}')


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """The body of a request of the responses API. As in a `ChatRequest`, fields that are not listed
    here are ignored.
    """

    MESSAGES: ClassVar[str] = "input"

    messages: tuple[ChatMessage, ...] = ()
    input: str | Annotated[tuple[ChatMessage, ...], _MANY] = ()
    instructions: str | None = None
    max_output_tokens: MaxTokens = None
    text: msgspec.Raw = _TEXT
    """The field `text` as JSON (see `TextOptions`). The response repeats it."""
    tools: msgspec.Raw = _NULL
    previous_response_id: msgspec.Raw = _NULL
    conversation: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL
    background: msgspec.Raw = _NULL

    def as_chat(self) -> ChatRequest:
        """Return the request in the form of a chat completion: `messages`, `max_tokens` and
        `response_format` are set from the fields of the responses API. Raises `BadRequest` for
        features that this gateway does not have, and `JSON_ERRORS` if `text` is invalid.
        """
        for name in ("tools", "previous_response_id", "conversation", "prompt", "background"):
            value = bytes(getattr(self, name))
            if value not in (b"null", b"false") and value.strip(b"[] \t\r\n"):
                raise BadRequest(
                    f"{name} is not supported: the gateway cannot call the client's tools, and "
                    f"stores no responses. Leave {name} out, and send earlier messages in input."
                )
        messages = self.input
        if isinstance(messages, str):
            messages = (ChatMessage("user", messages),)
        for number, message in enumerate(messages):
            if message.type == "item_reference":
                raise BadRequest(
                    f"input[{number}] refers to a stored item, but this gateway stores none; send "
                    "the message itself."
                )
        text = msgspec.json.decode(self.text, type=TextOptions | None)
        return replace(
            self,
            # The instructions come last, so that the numbers of messages in errors are those of the
            # client's own list.
            messages=(*messages, ChatMessage("system", self.instructions)),
            max_tokens=self.max_output_tokens,
            response_format=text and text.format,
        )
