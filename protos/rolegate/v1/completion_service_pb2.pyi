from rolegate.v1 import budget_pb2 as _budget_pb2
from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("role", "messages", "stop", "max_tokens", "request_id", "budget")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    role: _usage_pb2.Role
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    stop: _containers.RepeatedScalarFieldContainer[str]
    max_tokens: int
    request_id: str
    budget: _budget_pb2.Budget
    def __init__(self, role: _Optional[_Union[_usage_pb2.Role, str]] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., stop: _Optional[_Iterable[str]] = ..., max_tokens: _Optional[int] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ...) -> None: ...

class CompleteResponse(_message.Message):
    __slots__ = ("text", "reasoning", "finish_reason", "usage", "run_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    reasoning: str
    finish_reason: str
    usage: _usage_pb2.RoleUsage
    run_id: str
    def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., finish_reason: _Optional[str] = ..., usage: _Optional[_Union[_usage_pb2.RoleUsage, _Mapping]] = ..., run_id: _Optional[str] = ...) -> None: ...

class StreamCompleteRequest(_message.Message):
    __slots__ = ("role", "messages", "stop", "max_tokens", "request_id", "budget")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    role: _usage_pb2.Role
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    stop: _containers.RepeatedScalarFieldContainer[str]
    max_tokens: int
    request_id: str
    budget: _budget_pb2.Budget
    def __init__(self, role: _Optional[_Union[_usage_pb2.Role, str]] = ..., messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., stop: _Optional[_Iterable[str]] = ..., max_tokens: _Optional[int] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ...) -> None: ...

class StreamCompleteResponse(_message.Message):
    __slots__ = ("text", "reasoning", "finish_reason", "usage", "run_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    reasoning: str
    finish_reason: str
    usage: _usage_pb2.RoleUsage
    run_id: str
    def __init__(self, text: _Optional[str] = ..., reasoning: _Optional[str] = ..., finish_reason: _Optional[str] = ..., usage: _Optional[_Union[_usage_pb2.RoleUsage, _Mapping]] = ..., run_id: _Optional[str] = ...) -> None: ...
