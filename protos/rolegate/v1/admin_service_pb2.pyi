import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Key(_message.Message):
    __slots__ = ("key_id", "tenant", "scopes", "label", "create_time", "revoke_time", "requests_per_minute", "tokens_per_minute")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TIME_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    tenant: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    label: str
    create_time: _timestamp_pb2.Timestamp
    revoke_time: _timestamp_pb2.Timestamp
    requests_per_minute: int
    tokens_per_minute: int
    def __init__(self, key_id: _Optional[str] = ..., tenant: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., label: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., revoke_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("name", "tokens_per_day", "tokens_per_month", "nano_usd_per_day", "nano_usd_per_month", "requests_per_day", "requests_per_month", "runs_in_flight", "redact", "training", "indexes", "requests_per_minute", "tokens_per_minute")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MONTH_FIELD_NUMBER: _ClassVar[int]
    NANO_USD_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    NANO_USD_PER_MONTH_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MONTH_FIELD_NUMBER: _ClassVar[int]
    RUNS_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REDACT_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    name: str
    tokens_per_day: int
    tokens_per_month: int
    nano_usd_per_day: int
    nano_usd_per_month: int
    requests_per_day: int
    requests_per_month: int
    runs_in_flight: int
    redact: bool
    training: bool
    indexes: _containers.RepeatedScalarFieldContainer[str]
    requests_per_minute: int
    tokens_per_minute: int
    def __init__(self, name: _Optional[str] = ..., tokens_per_day: _Optional[int] = ..., tokens_per_month: _Optional[int] = ..., nano_usd_per_day: _Optional[int] = ..., nano_usd_per_month: _Optional[int] = ..., requests_per_day: _Optional[int] = ..., requests_per_month: _Optional[int] = ..., runs_in_flight: _Optional[int] = ..., redact: _Optional[bool] = ..., training: _Optional[bool] = ..., indexes: _Optional[_Iterable[str]] = ..., requests_per_minute: _Optional[int] = ..., tokens_per_minute: _Optional[int] = ...) -> None: ...

class Spent(_message.Message):
    __slots__ = ("period", "requests", "tokens", "nano_usd")
    PERIOD_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NANO_USD_FIELD_NUMBER: _ClassVar[int]
    period: str
    requests: int
    tokens: int
    nano_usd: int
    def __init__(self, period: _Optional[str] = ..., requests: _Optional[int] = ..., tokens: _Optional[int] = ..., nano_usd: _Optional[int] = ...) -> None: ...

class CreateKeyRequest(_message.Message):
    __slots__ = ("tenant", "scopes", "label")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    scopes: _containers.RepeatedScalarFieldContainer[str]
    label: str
    def __init__(self, tenant: _Optional[str] = ..., scopes: _Optional[_Iterable[str]] = ..., label: _Optional[str] = ...) -> None: ...

class CreateKeyResponse(_message.Message):
    __slots__ = ("key_text", "key", "first")
    KEY_TEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    key_text: str
    key: Key
    first: bool
    def __init__(self, key_text: _Optional[str] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., first: _Optional[bool] = ...) -> None: ...

class ListKeysRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListKeysResponse(_message.Message):
    __slots__ = ("keys", "next_page_token")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[Key]
    next_page_token: str
    def __init__(self, keys: _Optional[_Iterable[_Union[Key, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class RotateKeyRequest(_message.Message):
    __slots__ = ("key_id", "grace")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    grace: _duration_pb2.Duration
    def __init__(self, key_id: _Optional[str] = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RotateKeyResponse(_message.Message):
    __slots__ = ("key_text", "key", "replaced")
    KEY_TEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REPLACED_FIELD_NUMBER: _ClassVar[int]
    key_text: str
    key: Key
    replaced: Key
    def __init__(self, key_text: _Optional[str] = ..., key: _Optional[_Union[Key, _Mapping]] = ..., replaced: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class ExpireKeyRequest(_message.Message):
    __slots__ = ("key_id", "expire_time")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    expire_time: _timestamp_pb2.Timestamp
    def __init__(self, key_id: _Optional[str] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ExpireKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class RevokeKeyRequest(_message.Message):
    __slots__ = ("key_id",)
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    key_id: str
    def __init__(self, key_id: _Optional[str] = ...) -> None: ...

class RevokeKeyResponse(_message.Message):
    __slots__ = ("key", "last")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    key: Key
    last: bool
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., last: _Optional[bool] = ...) -> None: ...

class UpdateKeyRequest(_message.Message):
    __slots__ = ("key", "update_mask")
    KEY_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    key: Key
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateKeyResponse(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: Key
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ...) -> None: ...

class GetTenantRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetTenantResponse(_message.Message):
    __slots__ = ("tenant", "spent")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    spent: _containers.RepeatedCompositeFieldContainer[Spent]
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., spent: _Optional[_Iterable[_Union[Spent, _Mapping]]] = ...) -> None: ...

class ListTenantsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListTenantsResponse(_message.Message):
    __slots__ = ("tenants", "next_page_token")
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tenants: _containers.RepeatedCompositeFieldContainer[Tenant]
    next_page_token: str
    def __init__(self, tenants: _Optional[_Iterable[_Union[Tenant, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class UpdateTenantRequest(_message.Message):
    __slots__ = ("tenant", "update_mask", "allow_missing")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    update_mask: _field_mask_pb2.FieldMask
    allow_missing: bool
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., allow_missing: _Optional[bool] = ...) -> None: ...

class UpdateTenantResponse(_message.Message):
    __slots__ = ("tenant", "unpriced_models")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    UNPRICED_MODELS_FIELD_NUMBER: _ClassVar[int]
    tenant: Tenant
    unpriced_models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant: _Optional[_Union[Tenant, _Mapping]] = ..., unpriced_models: _Optional[_Iterable[str]] = ...) -> None: ...

class AuditEvent(_message.Message):
    __slots__ = ("number", "time", "act", "target", "tenant", "details_json", "key_id", "door", "address", "result")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DETAILS_JSON_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    DOOR_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    act: str
    target: str
    tenant: str
    details_json: str
    key_id: str
    door: str
    address: str
    result: str
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., act: _Optional[str] = ..., target: _Optional[str] = ..., tenant: _Optional[str] = ..., details_json: _Optional[str] = ..., key_id: _Optional[str] = ..., door: _Optional[str] = ..., address: _Optional[str] = ..., result: _Optional[str] = ...) -> None: ...

class ListAuditEventsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListAuditEventsResponse(_message.Message):
    __slots__ = ("events", "next_page_token")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[AuditEvent]
    next_page_token: str
    def __init__(self, events: _Optional[_Iterable[_Union[AuditEvent, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
