from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DocumentFilter(_message.Message):
    __slots__ = ("title", "author", "from_date", "to_date", "path_prefix", "tags")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    FROM_DATE_FIELD_NUMBER: _ClassVar[int]
    TO_DATE_FIELD_NUMBER: _ClassVar[int]
    PATH_PREFIX_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    title: str
    author: str
    from_date: str
    to_date: str
    path_prefix: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, title: _Optional[str] = ..., author: _Optional[str] = ..., from_date: _Optional[str] = ..., to_date: _Optional[str] = ..., path_prefix: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...
