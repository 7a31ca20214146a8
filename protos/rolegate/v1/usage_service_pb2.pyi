import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UsageDimension(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_DIMENSION_UNSPECIFIED: _ClassVar[UsageDimension]
    USAGE_DIMENSION_TENANT: _ClassVar[UsageDimension]
    USAGE_DIMENSION_ROLE: _ClassVar[UsageDimension]
    USAGE_DIMENSION_MODEL: _ClassVar[UsageDimension]
    USAGE_DIMENSION_EXECUTOR_VERSION: _ClassVar[UsageDimension]
    USAGE_DIMENSION_MANAGER: _ClassVar[UsageDimension]
    USAGE_DIMENSION_KEY_ID: _ClassVar[UsageDimension]

class UsageBucket(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_BUCKET_UNSPECIFIED: _ClassVar[UsageBucket]
    USAGE_BUCKET_HOUR: _ClassVar[UsageBucket]
    USAGE_BUCKET_DAY: _ClassVar[UsageBucket]
    USAGE_BUCKET_MONTH: _ClassVar[UsageBucket]

class ReconciliationVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECONCILIATION_VERDICT_UNSPECIFIED: _ClassVar[ReconciliationVerdict]
    RECONCILIATION_VERDICT_EQUAL: _ClassVar[ReconciliationVerdict]
    RECONCILIATION_VERDICT_WITHIN_BOUNDS: _ClassVar[ReconciliationVerdict]
    RECONCILIATION_VERDICT_DIFFERENT: _ClassVar[ReconciliationVerdict]
    RECONCILIATION_VERDICT_UNKNOWN: _ClassVar[ReconciliationVerdict]
USAGE_DIMENSION_UNSPECIFIED: UsageDimension
USAGE_DIMENSION_TENANT: UsageDimension
USAGE_DIMENSION_ROLE: UsageDimension
USAGE_DIMENSION_MODEL: UsageDimension
USAGE_DIMENSION_EXECUTOR_VERSION: UsageDimension
USAGE_DIMENSION_MANAGER: UsageDimension
USAGE_DIMENSION_KEY_ID: UsageDimension
USAGE_BUCKET_UNSPECIFIED: UsageBucket
USAGE_BUCKET_HOUR: UsageBucket
USAGE_BUCKET_DAY: UsageBucket
USAGE_BUCKET_MONTH: UsageBucket
RECONCILIATION_VERDICT_UNSPECIFIED: ReconciliationVerdict
RECONCILIATION_VERDICT_EQUAL: ReconciliationVerdict
RECONCILIATION_VERDICT_WITHIN_BOUNDS: ReconciliationVerdict
RECONCILIATION_VERDICT_DIFFERENT: ReconciliationVerdict
RECONCILIATION_VERDICT_UNKNOWN: ReconciliationVerdict

class GetUsageRequest(_message.Message):
    __slots__ = ("start_time", "end_time", "tenant", "group_by", "bucket")
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    tenant: str
    group_by: _containers.RepeatedScalarFieldContainer[UsageDimension]
    bucket: UsageBucket
    def __init__(self, start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., group_by: _Optional[_Iterable[_Union[UsageDimension, str]]] = ..., bucket: _Optional[_Union[UsageBucket, str]] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("bucket_start_time", "tenant", "executor_version", "usage", "key_id")
    BUCKET_START_TIME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    EXECUTOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    bucket_start_time: _timestamp_pb2.Timestamp
    tenant: str
    executor_version: str
    usage: _usage_pb2.RoleUsage
    key_id: str
    def __init__(self, bucket_start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tenant: _Optional[str] = ..., executor_version: _Optional[str] = ..., usage: _Optional[_Union[_usage_pb2.RoleUsage, _Mapping]] = ..., key_id: _Optional[str] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("runs", "rows")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    runs: int
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    def __init__(self, runs: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ...) -> None: ...

class ReconcileUsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReconciledTokens(_message.Message):
    __slots__ = ("engine", "ledger", "ledger_max")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    LEDGER_MAX_FIELD_NUMBER: _ClassVar[int]
    engine: int
    ledger: int
    ledger_max: int
    def __init__(self, engine: _Optional[int] = ..., ledger: _Optional[int] = ..., ledger_max: _Optional[int] = ...) -> None: ...

class Reconciliation(_message.Message):
    __slots__ = ("deployment", "verdict", "reason", "start_time", "completed_calls", "uncertain_calls", "prompt_tokens", "completion_tokens")
    DEPLOYMENT_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_CALLS_FIELD_NUMBER: _ClassVar[int]
    UNCERTAIN_CALLS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    deployment: str
    verdict: ReconciliationVerdict
    reason: str
    start_time: _timestamp_pb2.Timestamp
    completed_calls: int
    uncertain_calls: _containers.RepeatedScalarFieldContainer[str]
    prompt_tokens: ReconciledTokens
    completion_tokens: ReconciledTokens
    def __init__(self, deployment: _Optional[str] = ..., verdict: _Optional[_Union[ReconciliationVerdict, str]] = ..., reason: _Optional[str] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., completed_calls: _Optional[int] = ..., uncertain_calls: _Optional[_Iterable[str]] = ..., prompt_tokens: _Optional[_Union[ReconciledTokens, _Mapping]] = ..., completion_tokens: _Optional[_Union[ReconciledTokens, _Mapping]] = ...) -> None: ...

class ReconcileUsageResponse(_message.Message):
    __slots__ = ("reconciliations",)
    RECONCILIATIONS_FIELD_NUMBER: _ClassVar[int]
    reconciliations: _containers.RepeatedCompositeFieldContainer[Reconciliation]
    def __init__(self, reconciliations: _Optional[_Iterable[_Union[Reconciliation, _Mapping]]] = ...) -> None: ...
