import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from rolegate.v1 import answer_service_pb2 as _answer_service_pb2
from rolegate.v1 import table_service_pb2 as _table_service_pb2
from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_KIND_UNSPECIFIED: _ClassVar[RunKind]
    RUN_KIND_ANSWER: _ClassVar[RunKind]
    RUN_KIND_COMPLETE: _ClassVar[RunKind]
    RUN_KIND_EXECUTE: _ClassVar[RunKind]
    RUN_KIND_SHADOW: _ClassVar[RunKind]
    RUN_KIND_TABLE: _ClassVar[RunKind]

class RunStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATUS_UNSPECIFIED: _ClassVar[RunStatus]
    RUN_STATUS_RUNNING: _ClassVar[RunStatus]
    RUN_STATUS_FINISHED: _ClassVar[RunStatus]
    RUN_STATUS_FAILED: _ClassVar[RunStatus]
    RUN_STATUS_CANCELLED: _ClassVar[RunStatus]
    RUN_STATUS_INTERRUPTED: _ClassVar[RunStatus]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_ACCEPTED: _ClassVar[Verdict]
    VERDICT_REJECTED: _ClassVar[Verdict]
RUN_KIND_UNSPECIFIED: RunKind
RUN_KIND_ANSWER: RunKind
RUN_KIND_COMPLETE: RunKind
RUN_KIND_EXECUTE: RunKind
RUN_KIND_SHADOW: RunKind
RUN_KIND_TABLE: RunKind
RUN_STATUS_UNSPECIFIED: RunStatus
RUN_STATUS_RUNNING: RunStatus
RUN_STATUS_FINISHED: RunStatus
RUN_STATUS_FAILED: RunStatus
RUN_STATUS_CANCELLED: RunStatus
RUN_STATUS_INTERRUPTED: RunStatus
VERDICT_UNSPECIFIED: Verdict
VERDICT_ACCEPTED: Verdict
VERDICT_REJECTED: Verdict

class Run(_message.Message):
    __slots__ = ("run_id", "tenant", "kind", "status", "request", "request_id", "outcome", "start_time", "duration", "table_outcome", "unsupported", "key_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_OUTCOME_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    tenant: str
    kind: RunKind
    status: RunStatus
    request: str
    request_id: str
    outcome: _answer_service_pb2.AnswerOutcome
    start_time: _timestamp_pb2.Timestamp
    duration: _duration_pb2.Duration
    table_outcome: _table_service_pb2.TableOutcome
    unsupported: bool
    key_id: str
    def __init__(self, run_id: _Optional[str] = ..., tenant: _Optional[str] = ..., kind: _Optional[_Union[RunKind, str]] = ..., status: _Optional[_Union[RunStatus, str]] = ..., request: _Optional[str] = ..., request_id: _Optional[str] = ..., outcome: _Optional[_Union[_answer_service_pb2.AnswerOutcome, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., table_outcome: _Optional[_Union[_table_service_pb2.TableOutcome, str]] = ..., unsupported: _Optional[bool] = ..., key_id: _Optional[str] = ...) -> None: ...

class UpstreamCall(_message.Message):
    __slots__ = ("call_id", "role", "model", "deployment", "executor_version", "purpose", "attempt", "outcome", "counted", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost_nano_usd", "start_time", "time_to_first_token", "duration", "sub_query_index", "manager", "worker")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_NANO_USD_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    SUB_QUERY_INDEX_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    role: _usage_pb2.Role
    model: str
    deployment: str
    executor_version: str
    purpose: str
    attempt: int
    outcome: str
    counted: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_nano_usd: int
    start_time: _timestamp_pb2.Timestamp
    time_to_first_token: _duration_pb2.Duration
    duration: _duration_pb2.Duration
    sub_query_index: int
    manager: str
    worker: int
    def __init__(self, call_id: _Optional[str] = ..., role: _Optional[_Union[_usage_pb2.Role, str]] = ..., model: _Optional[str] = ..., deployment: _Optional[str] = ..., executor_version: _Optional[str] = ..., purpose: _Optional[str] = ..., attempt: _Optional[int] = ..., outcome: _Optional[str] = ..., counted: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cost_nano_usd: _Optional[int] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., sub_query_index: _Optional[int] = ..., manager: _Optional[str] = ..., worker: _Optional[int] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id", "include_trace")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_TRACE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    include_trace: bool
    def __init__(self, run_id: _Optional[str] = ..., include_trace: _Optional[bool] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run", "usage", "calls", "error", "trace_json", "output", "feedback", "error_reason")
    RUN_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TRACE_JSON_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    run: Run
    usage: _containers.RepeatedCompositeFieldContainer[_usage_pb2.RoleUsage]
    calls: _containers.RepeatedCompositeFieldContainer[UpstreamCall]
    error: str
    trace_json: str
    output: str
    feedback: _containers.RepeatedCompositeFieldContainer[Feedback]
    error_reason: str
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., usage: _Optional[_Iterable[_Union[_usage_pb2.RoleUsage, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[UpstreamCall, _Mapping]]] = ..., error: _Optional[str] = ..., trace_json: _Optional[str] = ..., output: _Optional[str] = ..., feedback: _Optional[_Iterable[_Union[Feedback, _Mapping]]] = ..., error_reason: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "tenant", "kind", "status", "start_time", "end_time", "unsupported", "key_id")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    tenant: str
    kind: RunKind
    status: RunStatus
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    unsupported: bool
    key_id: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., tenant: _Optional[str] = ..., kind: _Optional[_Union[RunKind, str]] = ..., status: _Optional[_Union[RunStatus, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., unsupported: _Optional[bool] = ..., key_id: _Optional[str] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchRunRequest(_message.Message):
    __slots__ = ("run_id", "after_event_number")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_EVENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_event_number: int
    def __init__(self, run_id: _Optional[str] = ..., after_event_number: _Optional[int] = ...) -> None: ...

class WatchRunResponse(_message.Message):
    __slots__ = ("event", "table_event")
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TABLE_EVENT_FIELD_NUMBER: _ClassVar[int]
    event: _answer_service_pb2.StreamAnswerResponse
    table_event: _table_service_pb2.StreamTableResponse
    def __init__(self, event: _Optional[_Union[_answer_service_pb2.StreamAnswerResponse, _Mapping]] = ..., table_event: _Optional[_Union[_table_service_pb2.StreamTableResponse, _Mapping]] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Feedback(_message.Message):
    __slots__ = ("verdict", "score", "right_answer", "comment", "tenant")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RIGHT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    score: float
    right_answer: str
    comment: str
    tenant: str
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., score: _Optional[float] = ..., right_answer: _Optional[str] = ..., comment: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class SubmitFeedbackRequest(_message.Message):
    __slots__ = ("run_id", "verdict", "score", "right_answer", "comment")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    RIGHT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    COMMENT_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    verdict: Verdict
    score: float
    right_answer: str
    comment: str
    def __init__(self, run_id: _Optional[str] = ..., verdict: _Optional[_Union[Verdict, str]] = ..., score: _Optional[float] = ..., right_answer: _Optional[str] = ..., comment: _Optional[str] = ...) -> None: ...

class SubmitFeedbackResponse(_message.Message):
    __slots__ = ("feedback_id",)
    FEEDBACK_ID_FIELD_NUMBER: _ClassVar[int]
    feedback_id: str
    def __init__(self, feedback_id: _Optional[str] = ...) -> None: ...

class ExportRunsRequest(_message.Message):
    __slots__ = ("tenant", "kind", "start_time", "end_time", "for_training")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    FOR_TRAINING_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    kind: RunKind
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    for_training: bool
    def __init__(self, tenant: _Optional[str] = ..., kind: _Optional[_Union[RunKind, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., for_training: _Optional[bool] = ...) -> None: ...

class ExportRunsResponse(_message.Message):
    __slots__ = ("run", "output", "trace_json", "feedback")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TRACE_JSON_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_FIELD_NUMBER: _ClassVar[int]
    run: Run
    output: str
    trace_json: str
    feedback: _containers.RepeatedCompositeFieldContainer[Feedback]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., output: _Optional[str] = ..., trace_json: _Optional[str] = ..., feedback: _Optional[_Iterable[_Union[Feedback, _Mapping]]] = ...) -> None: ...
