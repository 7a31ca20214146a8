from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_DELEGATION: _ClassVar[Role]
    ROLE_EXECUTION: _ClassVar[Role]
    ROLE_ANSWER: _ClassVar[Role]
    ROLE_JUDGE: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_DELEGATION: Role
ROLE_EXECUTION: Role
ROLE_ANSWER: Role
ROLE_JUDGE: Role

class RoleUsage(_message.Message):
    __slots__ = ("role", "model", "attempts", "attempts_without_usage", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "wasted_tokens", "attempts_without_cost", "cost_nano_usd", "manager")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_WITHOUT_USAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WASTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_WITHOUT_COST_FIELD_NUMBER: _ClassVar[int]
    COST_NANO_USD_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    role: Role
    model: str
    attempts: int
    attempts_without_usage: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    wasted_tokens: int
    attempts_without_cost: int
    cost_nano_usd: int
    manager: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., model: _Optional[str] = ..., attempts: _Optional[int] = ..., attempts_without_usage: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., wasted_tokens: _Optional[int] = ..., attempts_without_cost: _Optional[int] = ..., cost_nano_usd: _Optional[int] = ..., manager: _Optional[str] = ...) -> None: ...
