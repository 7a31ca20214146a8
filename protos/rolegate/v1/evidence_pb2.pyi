from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutionOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_OUTCOME_UNSPECIFIED: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_REPORTED: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_NO_REPORT: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_TIMED_OUT: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_MODEL_FAILED: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_RETRIEVAL_FAILED: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_BUDGET_EXHAUSTED: _ClassVar[ExecutionOutcome]
    EXECUTION_OUTCOME_ESCALATED: _ClassVar[ExecutionOutcome]
EXECUTION_OUTCOME_UNSPECIFIED: ExecutionOutcome
EXECUTION_OUTCOME_REPORTED: ExecutionOutcome
EXECUTION_OUTCOME_NO_REPORT: ExecutionOutcome
EXECUTION_OUTCOME_TIMED_OUT: ExecutionOutcome
EXECUTION_OUTCOME_MODEL_FAILED: ExecutionOutcome
EXECUTION_OUTCOME_RETRIEVAL_FAILED: ExecutionOutcome
EXECUTION_OUTCOME_BUDGET_EXHAUSTED: ExecutionOutcome
EXECUTION_OUTCOME_ESCALATED: ExecutionOutcome

class Passage(_message.Message):
    __slots__ = ("passage_id", "title", "text", "score", "document", "page", "location")
    PASSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    passage_id: str
    title: str
    text: str
    score: float
    document: str
    page: int
    location: str
    def __init__(self, passage_id: _Optional[str] = ..., title: _Optional[str] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., document: _Optional[str] = ..., page: _Optional[int] = ..., location: _Optional[str] = ...) -> None: ...

class Citation(_message.Message):
    __slots__ = ("passage_id", "title", "document", "page", "quote", "location")
    PASSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    QUOTE_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    passage_id: str
    title: str
    document: str
    page: int
    quote: str
    location: str
    def __init__(self, passage_id: _Optional[str] = ..., title: _Optional[str] = ..., document: _Optional[str] = ..., page: _Optional[int] = ..., quote: _Optional[str] = ..., location: _Optional[str] = ...) -> None: ...

class EvidencePoint(_message.Message):
    __slots__ = ("text", "citations")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    text: str
    citations: _containers.RepeatedCompositeFieldContainer[Citation]
    def __init__(self, text: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[Citation, _Mapping]]] = ...) -> None: ...

class SubQueryResult(_message.Message):
    __slots__ = ("sub_query", "answer", "evidence", "outcome", "search_queries", "shared_from", "manager", "workers", "cut")
    SUB_QUERY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    SEARCH_QUERIES_FIELD_NUMBER: _ClassVar[int]
    SHARED_FROM_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    sub_query: str
    answer: str
    evidence: _containers.RepeatedCompositeFieldContainer[EvidencePoint]
    outcome: ExecutionOutcome
    search_queries: _containers.RepeatedScalarFieldContainer[str]
    shared_from: _containers.RepeatedScalarFieldContainer[str]
    manager: str
    workers: _containers.RepeatedCompositeFieldContainer[SubQueryResult]
    cut: bool
    def __init__(self, sub_query: _Optional[str] = ..., answer: _Optional[str] = ..., evidence: _Optional[_Iterable[_Union[EvidencePoint, _Mapping]]] = ..., outcome: _Optional[_Union[ExecutionOutcome, str]] = ..., search_queries: _Optional[_Iterable[str]] = ..., shared_from: _Optional[_Iterable[str]] = ..., manager: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[SubQueryResult, _Mapping]]] = ..., cut: _Optional[bool] = ...) -> None: ...
