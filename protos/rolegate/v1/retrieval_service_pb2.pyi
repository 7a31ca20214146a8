from rolegate.v1 import document_filter_pb2 as _document_filter_pb2
from rolegate.v1 import evidence_pb2 as _evidence_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchRequest(_message.Message):
    __slots__ = ("queries", "top_k", "document", "index", "filter")
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    queries: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    document: str
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    def __init__(self, queries: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., document: _Optional[str] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("results", "index_id", "filtered")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_ID_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[QueryPassages]
    index_id: str
    filtered: bool
    def __init__(self, results: _Optional[_Iterable[_Union[QueryPassages, _Mapping]]] = ..., index_id: _Optional[str] = ..., filtered: _Optional[bool] = ...) -> None: ...

class QueryPassages(_message.Message):
    __slots__ = ("passages",)
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    passages: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Passage]
    def __init__(self, passages: _Optional[_Iterable[_Union[_evidence_pb2.Passage, _Mapping]]] = ...) -> None: ...
