import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DocumentState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DOCUMENT_STATE_UNSPECIFIED: _ClassVar[DocumentState]
    DOCUMENT_STATE_WAITING: _ClassVar[DocumentState]
    DOCUMENT_STATE_INDEXED: _ClassVar[DocumentState]
    DOCUMENT_STATE_SKIPPED: _ClassVar[DocumentState]

class BuildState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUILD_STATE_UNSPECIFIED: _ClassVar[BuildState]
    BUILD_STATE_IDLE: _ClassVar[BuildState]
    BUILD_STATE_BUILDING: _ClassVar[BuildState]
    BUILD_STATE_FAILED: _ClassVar[BuildState]
DOCUMENT_STATE_UNSPECIFIED: DocumentState
DOCUMENT_STATE_WAITING: DocumentState
DOCUMENT_STATE_INDEXED: DocumentState
DOCUMENT_STATE_SKIPPED: DocumentState
BUILD_STATE_UNSPECIFIED: BuildState
BUILD_STATE_IDLE: BuildState
BUILD_STATE_BUILDING: BuildState
BUILD_STATE_FAILED: BuildState

class Document(_message.Message):
    __slots__ = ("name", "size_bytes", "upload_time", "state", "passages", "not_read")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_TIME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    NOT_READ_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    upload_time: _timestamp_pb2.Timestamp
    state: DocumentState
    passages: int
    not_read: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., upload_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., state: _Optional[_Union[DocumentState, str]] = ..., passages: _Optional[int] = ..., not_read: _Optional[str] = ...) -> None: ...

class UploadDocumentRequest(_message.Message):
    __slots__ = ("name", "size_bytes", "content", "wait")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    content: bytes
    wait: bool
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., content: _Optional[bytes] = ..., wait: _Optional[bool] = ...) -> None: ...

class UploadDocumentResponse(_message.Message):
    __slots__ = ("document",)
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    document: Document
    def __init__(self, document: _Optional[_Union[Document, _Mapping]] = ...) -> None: ...

class ListDocumentsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListDocumentsResponse(_message.Message):
    __slots__ = ("documents", "next_page_token")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[Document]
    next_page_token: str
    def __init__(self, documents: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class DeleteDocumentRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteDocumentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBuildRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetBuildResponse(_message.Message):
    __slots__ = ("state", "start_time", "end_time", "documents", "passages", "up_to_date", "skipped", "error")
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    UP_TO_DATE_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    state: BuildState
    start_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    documents: int
    passages: int
    up_to_date: bool
    skipped: _containers.RepeatedCompositeFieldContainer[Document]
    error: str
    def __init__(self, state: _Optional[_Union[BuildState, str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., documents: _Optional[int] = ..., passages: _Optional[int] = ..., up_to_date: _Optional[bool] = ..., skipped: _Optional[_Iterable[_Union[Document, _Mapping]]] = ..., error: _Optional[str] = ...) -> None: ...
