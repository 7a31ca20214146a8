from rolegate.v1 import budget_pb2 as _budget_pb2
from rolegate.v1 import document_filter_pb2 as _document_filter_pb2
from rolegate.v1 import evidence_pb2 as _evidence_pb2
from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("sub_query", "request_id", "budget", "no_cache", "index", "filter")
    SUB_QUERY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    sub_query: str
    request_id: str
    budget: _budget_pb2.Budget
    no_cache: bool
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    def __init__(self, sub_query: _Optional[str] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ..., no_cache: _Optional[bool] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("run_id", "result", "usage")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    result: _evidence_pb2.SubQueryResult
    usage: _containers.RepeatedCompositeFieldContainer[_usage_pb2.RoleUsage]
    def __init__(self, run_id: _Optional[str] = ..., result: _Optional[_Union[_evidence_pb2.SubQueryResult, _Mapping]] = ..., usage: _Optional[_Iterable[_Union[_usage_pb2.RoleUsage, _Mapping]]] = ...) -> None: ...
