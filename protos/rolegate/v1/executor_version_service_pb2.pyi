import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutorVersionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTOR_VERSION_STATE_UNSPECIFIED: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_REGISTERED: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_SHADOW: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_CANARY: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_ACTIVE: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_RETIRED: _ClassVar[ExecutorVersionState]
    EXECUTOR_VERSION_STATE_ROLLED_BACK: _ClassVar[ExecutorVersionState]
EXECUTOR_VERSION_STATE_UNSPECIFIED: ExecutorVersionState
EXECUTOR_VERSION_STATE_REGISTERED: ExecutorVersionState
EXECUTOR_VERSION_STATE_SHADOW: ExecutorVersionState
EXECUTOR_VERSION_STATE_CANARY: ExecutorVersionState
EXECUTOR_VERSION_STATE_ACTIVE: ExecutorVersionState
EXECUTOR_VERSION_STATE_RETIRED: ExecutorVersionState
EXECUTOR_VERSION_STATE_ROLLED_BACK: ExecutorVersionState

class ExecutorVersion(_message.Message):
    __slots__ = ("version", "state", "canary_share", "state_time", "register_time", "manifest_json", "figures")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    STATE_TIME_FIELD_NUMBER: _ClassVar[int]
    REGISTER_TIME_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ExecutorVersionState
    canary_share: float
    state_time: _timestamp_pb2.Timestamp
    register_time: _timestamp_pb2.Timestamp
    manifest_json: str
    figures: TrialFigures
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ExecutorVersionState, str]] = ..., canary_share: _Optional[float] = ..., state_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., register_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., manifest_json: _Optional[str] = ..., figures: _Optional[_Union[TrialFigures, _Mapping]] = ...) -> None: ...

class TrialFigures(_message.Message):
    __slots__ = ("trials", "judged", "right", "active_right", "failed", "active_failed", "tokens", "active_tokens", "evidence", "sources")
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    JUDGED_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RIGHT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FAILED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    trials: int
    judged: int
    right: int
    active_right: int
    failed: int
    active_failed: int
    tokens: int
    active_tokens: int
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    sources: _containers.RepeatedCompositeFieldContainer[EvidenceSource]
    def __init__(self, trials: _Optional[int] = ..., judged: _Optional[int] = ..., right: _Optional[int] = ..., active_right: _Optional[int] = ..., failed: _Optional[int] = ..., active_failed: _Optional[int] = ..., tokens: _Optional[int] = ..., active_tokens: _Optional[int] = ..., evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[EvidenceSource, _Mapping]]] = ...) -> None: ...

class EvidenceSource(_message.Message):
    __slots__ = ("source", "tenant", "decisive", "counted")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DECISIVE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    source: str
    tenant: str
    decisive: int
    counted: int
    def __init__(self, source: _Optional[str] = ..., tenant: _Optional[str] = ..., decisive: _Optional[int] = ..., counted: _Optional[int] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("measure", "in_favour", "against")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    IN_FAVOUR_FIELD_NUMBER: _ClassVar[int]
    AGAINST_FIELD_NUMBER: _ClassVar[int]
    measure: str
    in_favour: float
    against: float
    def __init__(self, measure: _Optional[str] = ..., in_favour: _Optional[float] = ..., against: _Optional[float] = ...) -> None: ...

class ExecutorVersionDecision(_message.Message):
    __slots__ = ("number", "version", "decision", "from_state", "to_state", "decided_by", "time", "reason", "figures")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    FROM_STATE_FIELD_NUMBER: _ClassVar[int]
    TO_STATE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: str
    decision: str
    from_state: ExecutorVersionState
    to_state: ExecutorVersionState
    decided_by: str
    time: _timestamp_pb2.Timestamp
    reason: str
    figures: TrialFigures
    def __init__(self, number: _Optional[int] = ..., version: _Optional[str] = ..., decision: _Optional[str] = ..., from_state: _Optional[_Union[ExecutorVersionState, str]] = ..., to_state: _Optional[_Union[ExecutorVersionState, str]] = ..., decided_by: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., figures: _Optional[_Union[TrialFigures, _Mapping]] = ...) -> None: ...

class ListExecutorVersionsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListExecutorVersionsResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[ExecutorVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[ExecutorVersion, _Mapping]]] = ...) -> None: ...

class RegisterExecutorVersionRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class RegisterExecutorVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: ExecutorVersion
    def __init__(self, version: _Optional[_Union[ExecutorVersion, _Mapping]] = ...) -> None: ...

class SetExecutorVersionTrafficRequest(_message.Message):
    __slots__ = ("version", "state", "canary_share")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CANARY_SHARE_FIELD_NUMBER: _ClassVar[int]
    version: str
    state: ExecutorVersionState
    canary_share: float
    def __init__(self, version: _Optional[str] = ..., state: _Optional[_Union[ExecutorVersionState, str]] = ..., canary_share: _Optional[float] = ...) -> None: ...

class SetExecutorVersionTrafficResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: ExecutorVersion
    def __init__(self, version: _Optional[_Union[ExecutorVersion, _Mapping]] = ...) -> None: ...

class PromoteExecutorVersionRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class PromoteExecutorVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: ExecutorVersion
    def __init__(self, version: _Optional[_Union[ExecutorVersion, _Mapping]] = ...) -> None: ...

class RollBackExecutorVersionRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: str
    def __init__(self, version: _Optional[str] = ...) -> None: ...

class RollBackExecutorVersionResponse(_message.Message):
    __slots__ = ("active",)
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    active: ExecutorVersion
    def __init__(self, active: _Optional[_Union[ExecutorVersion, _Mapping]] = ...) -> None: ...

class ListExecutorVersionDecisionsRequest(_message.Message):
    __slots__ = ("version", "after_number")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AFTER_NUMBER_FIELD_NUMBER: _ClassVar[int]
    version: str
    after_number: int
    def __init__(self, version: _Optional[str] = ..., after_number: _Optional[int] = ...) -> None: ...

class ListExecutorVersionDecisionsResponse(_message.Message):
    __slots__ = ("decisions",)
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    decisions: _containers.RepeatedCompositeFieldContainer[ExecutorVersionDecision]
    def __init__(self, decisions: _Optional[_Iterable[_Union[ExecutorVersionDecision, _Mapping]]] = ...) -> None: ...
