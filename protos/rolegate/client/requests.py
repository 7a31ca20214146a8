"""Options of the clients' calls, and their conversion to fields of requests."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypedDict, TypeVar

from google.protobuf.message import Message

from rolegate.client.options import enum_number
from rolegate.v1.budget_pb2 import Budget
from rolegate.v1.document_filter_pb2 import DocumentFilter
from rolegate.v1.table_service_pb2 import Condition

M = TypeVar("M", bound=Message)

ADDRESS = "127.0.0.1:50551"
"""Default address of the gateway."""
ANSWER_S = 120.0
"""Deadline, in seconds, of calls that register, try or promote a version of the executor."""
UPLOAD_S = 600.0
"""Default deadline of an upload, in seconds."""
SHORT_S = 30.0
"""Default deadline of calls that need no model, in seconds."""
TriedState = Literal["registered", "shadow", "canary"]
"""States into which `set_version_traffic` can put a version of the executor. A version that is
`registered` is not used in any run.
"""
TopologyName = Literal["factorized", "host"]
"""Topology of the search: the roles that take part in it. `factorized`: a delegator writes
sub-queries, executors search, and an answerer writes the answer. `host`: in addition, managers pass
the delegator's sub-queries on to the executors.
"""


_WIRE_NAMES = {"start": "start_time", "end": "end_time", "by": "group_by"}
"""Mapping from the name of an option to the name of its field in the request, if the two differ."""


class ChatMessage(TypedDict):
    """A message of a conversation."""

    role: Literal["user", "assistant"]
    content: str


_MAX_HISTORY = 40
_MAX_HISTORY_CHARS = 32_000
"""`_MAX_HISTORY`: max messages of a history. `_MAX_HISTORY_CHARS`: max characters of these messages
together. The gateway refuses a longer history.
"""


def extended(history: Sequence[ChatMessage], question: str, answer: str) -> tuple[ChatMessage, ...]:
    """Return `history` with a further question and answer. The oldest messages are left out if the
    gateway would refuse the history as too long.
    """
    messages = [
        *history,
        ChatMessage(role="user", content=question),
        ChatMessage(role="assistant", content=answer),
    ][-_MAX_HISTORY:]
    while sum(len(message["content"]) for message in messages) > _MAX_HISTORY_CHARS:
        del messages[0]
    return tuple(messages)


class IndexOptions(TypedDict, total=False):
    """Options that select the documents to search."""

    index: Sequence[str]
    """Names of the indexes to search, or one name; by default, all indexes that the caller's tenant
    may search.
    """
    filter: DocumentFilter
    """Search only documents with these properties; by default, all documents are searched."""


class SearchOptions(IndexOptions, total=False):
    """Options of both questions and tables."""

    request_id: str
    """Idempotency key. Within a day, a repeated request with the same key returns the first result
    and spends nothing.
    """
    max_total_tokens: int
    """Max prompt and completion tokens of all model calls together."""
    max_cost_usd: float
    """Max cost of all model calls, in US dollars. The gateway must know the prices of all models.
    """
    no_cache: bool
    """True to search again for every sub-query (question to one executor), instead of reusing
    reports of other runs.
    """
    resume_run_id: str
    """Identifier of an interrupted run to resume. Leave the question empty, because the run has its
    own request.
    """


class RequestOptions(SearchOptions, total=False):
    """Options of a question."""

    topology: TopologyName
    """The roles that search and answer; `factorized` by default."""
    history: Sequence[ChatMessage]
    """The conversation before the question, oldest message first. The question may refer to this
    conversation.
    """
    language: str
    """Language of the answer, such as `German`; by default, the language in the gateway's config,
    or else the question's language.
    """
    length: Literal["short", "sentence", "paragraph"]
    """Length of the answer; by default, the length in the gateway's config."""
    instructions: str
    """Text added to the system prompt of the model that writes the answer. The models that search
    do not get it.
    """
    max_answer_tokens: int
    """Max tokens of the output of the model that writes the answer."""


class TableOptions(SearchOptions, total=False):
    """Options of a table."""

    closed: bool
    """True to fill only the given rows and to search for no further rows."""
    conditions: Sequence[str | Condition]
    """Conditions that rows must meet, such as "founded after 1990" or "Is {city} in Veshoux?"; see
    `rolegate.client.table.parse_conditions`. Rows that contradict a condition are not in `rows` of
    the returned `Table`, but in its `message.excluded`.
    """
    max_rows: int
    """Max number of rows of the table; the gateway's limit by default."""


class FeedbackFields(TypedDict, total=False):
    """Feedback on the answer of a run. At least one field must be set."""

    accepted: bool | None
    """True if the answer was right or useful, False if not; None to leave this open."""
    score: float | None
    """Quality of the answer, from 0 to 1; 1 is best."""
    right_answer: str
    """The right answer, if known."""
    comment: str
    """Comment for people."""


class Filter(TypedDict, total=False):
    """Filter of runs. A run must match all fields that are set. A time without a time zone is local
    time.
    """

    tenant: str
    """Only runs of this tenant."""
    kind: Literal["answer", "complete", "execute", "table", "shadow"] | None
    """Only runs of this kind. If unset, runs of all kinds except shadow runs."""
    start: datetime | None
    """Only runs that started at this time or later."""
    end: datetime | None
    """Only runs that started before this time."""


class ListFilter(Filter, total=False):
    """Filter of the runs to list."""

    status: Literal["running", "finished", "failed", "cancelled", "interrupted"] | None
    """Only runs with this status."""
    key_id: str
    """Identifier of an API key; only runs of requests with this key."""
    unsupported: bool
    """True to list only runs with an unsupported answer: some of its names or numbers are in no
    cited evidence.
    """


class ExportFilter(Filter, total=False):
    """Filter of the runs to export."""

    for_training: bool
    """True to leave out runs that must not be used for training."""


class UsageOptions(TypedDict, total=False):
    """Filter and grouping of the calls whose usage is summed. A time without a time zone is local
    time.
    """

    start: datetime | None
    """Only calls that started at this time or later."""
    end: datetime | None
    """Only calls that started before this time."""
    by: Sequence[Literal["tenant", "role", "model", "executor_version", "manager", "key_id"]]
    """Dimensions to group calls by; if empty, role and model."""
    bucket: Literal["hour", "day", "month"] | None
    """Also group calls by the hour, day or month (UTC) in which they started; None to not group by
    time.
    """
    tenant: str
    """Only calls of this tenant."""


def request(kind: type[M], options: Mapping[str, Any], **fields: Any) -> M:
    """Return a request message of type `kind` with the given fields and options.

    `options`: options by name; options that are None or empty are left out. Times are converted to
    UTC; a time without a time zone is local time. Raises `ValueError` for an unknown choice, and
    for a cost that is not finite.
    """
    limits = dict[str, Any]()
    for option, value in options.items():
        if value is None or value == "":
            continue
        if option == "max_total_tokens":
            limits[option] = value
            continue
        if option == "max_cost_usd":
            limits["max_cost_nano_usd"] = _nano_usd(value)
            continue
        field = kind.DESCRIPTOR.fields_by_name[_WIRE_NAMES.get(option, option)]
        if isinstance(value, datetime):
            fields[field.name] = value.astimezone(UTC)
        elif field.is_repeated and isinstance(value, str):
            fields[field.name] = [value]
        elif field.enum_type is None:
            fields[field.name] = value
        elif field.is_repeated:
            fields[field.name] = [enum_number(field.enum_type, option, name) for name in value]
        else:
            fields[field.name] = enum_number(field.enum_type, option, value)
    if limits:
        fields["budget"] = Budget(**limits)
    return kind(**fields)


def _nano_usd(dollars: float) -> int:
    if not isfinite(dollars):
        raise ValueError(f"max_cost_usd must be a finite number of dollars, got {dollars}.")
    return round(dollars * 1e9)
