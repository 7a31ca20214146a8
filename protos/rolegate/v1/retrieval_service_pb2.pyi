from rolegate.v1 import evidence_pb2 as _evidence_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchRequest(_message.Message):
    __slots__ = ("queries", "top_k", "document")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    document: str
    def __init__(self, queries: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., document: _Optional[str] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("results", "index_id")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_ID_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QueryPassages]
    index_id: str
    def __init__(self, results: _Optional[_Iterable[_Union[QueryPassages, _Mapping]]] = ..., index_id: _Optional[str] = ...) -> None: ...

class QueryPassages(_message.Message):
    __slots__ = ("passages",)
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    passages: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Passage]
    def __init__(self, passages: _Optional[_Iterable[_Union[_evidence_pb2.Passage, _Mapping]]] = ...) -> None: ...
