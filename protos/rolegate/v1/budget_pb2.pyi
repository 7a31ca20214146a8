from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Budget(_message.Message):
    __slots__ = ("max_total_tokens", "max_cost_nano_usd", "role_budgets")
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_COST_NANO_USD_FIELD_NUMBER: _ClassVar[int]
    ROLE_BUDGETS_FIELD_NUMBER: _ClassVar[int]
    max_total_tokens: int
    max_cost_nano_usd: int
    role_budgets: _containers.RepeatedCompositeFieldContainer[RoleBudget]
    def __init__(self, max_total_tokens: _Optional[int] = ..., max_cost_nano_usd: _Optional[int] = ..., role_budgets: _Optional[_Iterable[_Union[RoleBudget, _Mapping]]] = ...) -> None: ...

class RoleBudget(_message.Message):
    __slots__ = ("role", "max_total_tokens")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    role: _usage_pb2.Role
    max_total_tokens: int
    def __init__(self, role: _Optional[_Union[_usage_pb2.Role, str]] = ..., max_total_tokens: _Optional[int] = ...) -> None: ...
