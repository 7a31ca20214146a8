import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from rolegate.v1 import answer_service_pb2 as _answer_service_pb2
from rolegate.v1 import budget_pb2 as _budget_pb2
from rolegate.v1 import document_filter_pb2 as _document_filter_pb2
from rolegate.v1 import evidence_pb2 as _evidence_pb2
from rolegate.v1 import usage_pb2 as _usage_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ColumnType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COLUMN_TYPE_UNSPECIFIED: _ClassVar[ColumnType]
    COLUMN_TYPE_TEXT: _ClassVar[ColumnType]
    COLUMN_TYPE_INTEGER: _ClassVar[ColumnType]
    COLUMN_TYPE_NUMBER: _ClassVar[ColumnType]
    COLUMN_TYPE_DATE: _ClassVar[ColumnType]
    COLUMN_TYPE_URL: _ClassVar[ColumnType]
    COLUMN_TYPE_BOOLEAN: _ClassVar[ColumnType]
    COLUMN_TYPE_CHOICE: _ClassVar[ColumnType]

class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATOR_UNSPECIFIED: _ClassVar[Operator]
    OPERATOR_EQUALS: _ClassVar[Operator]
    OPERATOR_ONE_OF: _ClassVar[Operator]
    OPERATOR_BEFORE: _ClassVar[Operator]
    OPERATOR_AFTER: _ClassVar[Operator]
    OPERATOR_AT_LEAST: _ClassVar[Operator]
    OPERATOR_AT_MOST: _ClassVar[Operator]
    OPERATOR_CONTAINS: _ClassVar[Operator]

class CheckState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHECK_STATE_UNSPECIFIED: _ClassVar[CheckState]
    CHECK_STATE_MET: _ClassVar[CheckState]
    CHECK_STATE_CONTRADICTED: _ClassVar[CheckState]
    CHECK_STATE_NOT_CHECKED: _ClassVar[CheckState]

class TableOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TABLE_OUTCOME_UNSPECIFIED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_FILLED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_ROUNDS_EXHAUSTED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_ROWS_EXHAUSTED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_TASKS_EXHAUSTED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_TIME_EXHAUSTED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_BUDGET_EXHAUSTED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_DELEGATION_FAILED: _ClassVar[TableOutcome]
    TABLE_OUTCOME_NO_SEARCH: _ClassVar[TableOutcome]
    TABLE_OUTCOME_OUT_OF_SCOPE: _ClassVar[TableOutcome]

class Support(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SUPPORT_UNSPECIFIED: _ClassVar[Support]
    SUPPORT_STATED: _ClassVar[Support]
    SUPPORT_VALUE_ONLY: _ClassVar[Support]
    SUPPORT_UNSUPPORTED: _ClassVar[Support]

class CellState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CELL_STATE_UNSPECIFIED: _ClassVar[CellState]
    CELL_STATE_MISSING: _ClassVar[CellState]
    CELL_STATE_GIVEN: _ClassVar[CellState]
    CELL_STATE_SINGLE: _ClassVar[CellState]
    CELL_STATE_AGREED: _ClassVar[CellState]
    CELL_STATE_CONFLICT: _ClassVar[CellState]
    CELL_STATE_NOT_FOUND: _ClassVar[CellState]
COLUMN_TYPE_UNSPECIFIED: ColumnType
COLUMN_TYPE_TEXT: ColumnType
COLUMN_TYPE_INTEGER: ColumnType
COLUMN_TYPE_NUMBER: ColumnType
COLUMN_TYPE_DATE: ColumnType
COLUMN_TYPE_URL: ColumnType
COLUMN_TYPE_BOOLEAN: ColumnType
COLUMN_TYPE_CHOICE: ColumnType
OPERATOR_UNSPECIFIED: Operator
OPERATOR_EQUALS: Operator
OPERATOR_ONE_OF: Operator
OPERATOR_BEFORE: Operator
OPERATOR_AFTER: Operator
OPERATOR_AT_LEAST: Operator
OPERATOR_AT_MOST: Operator
OPERATOR_CONTAINS: Operator
CHECK_STATE_UNSPECIFIED: CheckState
CHECK_STATE_MET: CheckState
CHECK_STATE_CONTRADICTED: CheckState
CHECK_STATE_NOT_CHECKED: CheckState
TABLE_OUTCOME_UNSPECIFIED: TableOutcome
TABLE_OUTCOME_FILLED: TableOutcome
TABLE_OUTCOME_ROUNDS_EXHAUSTED: TableOutcome
TABLE_OUTCOME_ROWS_EXHAUSTED: TableOutcome
TABLE_OUTCOME_TASKS_EXHAUSTED: TableOutcome
TABLE_OUTCOME_TIME_EXHAUSTED: TableOutcome
TABLE_OUTCOME_BUDGET_EXHAUSTED: TableOutcome
TABLE_OUTCOME_DELEGATION_FAILED: TableOutcome
TABLE_OUTCOME_NO_SEARCH: TableOutcome
TABLE_OUTCOME_OUT_OF_SCOPE: TableOutcome
SUPPORT_UNSPECIFIED: Support
SUPPORT_STATED: Support
SUPPORT_VALUE_ONLY: Support
SUPPORT_UNSUPPORTED: Support
CELL_STATE_UNSPECIFIED: CellState
CELL_STATE_MISSING: CellState
CELL_STATE_GIVEN: CellState
CELL_STATE_SINGLE: CellState
CELL_STATE_AGREED: CellState
CELL_STATE_CONFLICT: CellState
CELL_STATE_NOT_FOUND: CellState

class Column(_message.Message):
    __slots__ = ("name", "type", "key", "about", "ask", "choices", "unit")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: ColumnType
    key: bool
    about: str
    ask: str
    choices: _containers.RepeatedScalarFieldContainer[str]
    unit: str
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[ColumnType, str]] = ..., key: _Optional[bool] = ..., about: _Optional[str] = ..., ask: _Optional[str] = ..., choices: _Optional[_Iterable[str]] = ..., unit: _Optional[str] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("column", "operator", "values", "text")
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    column: Column
    operator: Operator
    values: _containers.RepeatedScalarFieldContainer[str]
    text: str
    def __init__(self, column: _Optional[_Union[Column, _Mapping]] = ..., operator: _Optional[_Union[Operator, str]] = ..., values: _Optional[_Iterable[str]] = ..., text: _Optional[str] = ...) -> None: ...

class Check(_message.Message):
    __slots__ = ("state", "value", "citations")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    state: CheckState
    value: str
    citations: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Citation]
    def __init__(self, state: _Optional[_Union[CheckState, str]] = ..., value: _Optional[str] = ..., citations: _Optional[_Iterable[_Union[_evidence_pb2.Citation, _Mapping]]] = ...) -> None: ...

class GivenRow(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class FillTableRequest(_message.Message):
    __slots__ = ("question", "columns", "rows", "closed", "max_rows", "request_id", "budget", "no_cache", "detached", "resume_run_id", "index", "filter", "conditions")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    RESUME_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    question: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    rows: _containers.RepeatedCompositeFieldContainer[GivenRow]
    closed: bool
    max_rows: int
    request_id: str
    budget: _budget_pb2.Budget
    no_cache: bool
    detached: bool
    resume_run_id: str
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, question: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[GivenRow, _Mapping]]] = ..., closed: _Optional[bool] = ..., max_rows: _Optional[int] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ..., no_cache: _Optional[bool] = ..., detached: _Optional[bool] = ..., resume_run_id: _Optional[str] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class Claim(_message.Message):
    __slots__ = ("value", "support", "citations", "sub_query_index")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    SUB_QUERY_INDEX_FIELD_NUMBER: _ClassVar[int]
    value: str
    support: Support
    citations: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Citation]
    sub_query_index: int
    def __init__(self, value: _Optional[str] = ..., support: _Optional[_Union[Support, str]] = ..., citations: _Optional[_Iterable[_Union[_evidence_pb2.Citation, _Mapping]]] = ..., sub_query_index: _Optional[int] = ...) -> None: ...

class Cell(_message.Message):
    __slots__ = ("value", "state", "support", "citations", "rivals", "mistyped", "contradicted")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    RIVALS_FIELD_NUMBER: _ClassVar[int]
    MISTYPED_FIELD_NUMBER: _ClassVar[int]
    CONTRADICTED_FIELD_NUMBER: _ClassVar[int]
    value: str
    state: CellState
    support: Support
    citations: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Citation]
    rivals: _containers.RepeatedCompositeFieldContainer[Claim]
    mistyped: bool
    contradicted: bool
    def __init__(self, value: _Optional[str] = ..., state: _Optional[_Union[CellState, str]] = ..., support: _Optional[_Union[Support, str]] = ..., citations: _Optional[_Iterable[_Union[_evidence_pb2.Citation, _Mapping]]] = ..., rivals: _Optional[_Iterable[_Union[Claim, _Mapping]]] = ..., mistyped: _Optional[bool] = ..., contradicted: _Optional[bool] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("row_id", "cells", "tokens", "cost_nano_usd", "merged_row_ids", "checks")
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_NANO_USD_FIELD_NUMBER: _ClassVar[int]
    MERGED_ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    row_id: str
    cells: _containers.RepeatedCompositeFieldContainer[Cell]
    tokens: int
    cost_nano_usd: int
    merged_row_ids: _containers.RepeatedScalarFieldContainer[str]
    checks: _containers.RepeatedCompositeFieldContainer[Check]
    def __init__(self, row_id: _Optional[str] = ..., cells: _Optional[_Iterable[_Union[Cell, _Mapping]]] = ..., tokens: _Optional[int] = ..., cost_nano_usd: _Optional[int] = ..., merged_row_ids: _Optional[_Iterable[str]] = ..., checks: _Optional[_Iterable[_Union[Check, _Mapping]]] = ...) -> None: ...

class Completeness(_message.Message):
    __slots__ = ("rows", "complete_rows", "missing", "not_found", "conflicts", "fill_rate", "rows_seen_once", "estimated_rows", "left_out", "unlisted_rows")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_ROWS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    FILL_RATE_FIELD_NUMBER: _ClassVar[int]
    ROWS_SEEN_ONCE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_ROWS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    UNLISTED_ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    complete_rows: int
    missing: int
    not_found: int
    conflicts: int
    fill_rate: float
    rows_seen_once: int
    estimated_rows: int
    left_out: _containers.RepeatedScalarFieldContainer[str]
    unlisted_rows: int
    def __init__(self, rows: _Optional[int] = ..., complete_rows: _Optional[int] = ..., missing: _Optional[int] = ..., not_found: _Optional[int] = ..., conflicts: _Optional[int] = ..., fill_rate: _Optional[float] = ..., rows_seen_once: _Optional[int] = ..., estimated_rows: _Optional[int] = ..., left_out: _Optional[_Iterable[str]] = ..., unlisted_rows: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("run_id", "outcome", "columns", "rows", "completeness", "usage", "overhead_tokens", "overhead_nano_usd", "duration", "markdown", "next_page_token", "conditions", "excluded", "ignored_conditions")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COMPLETENESS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OVERHEAD_NANO_USD_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    MARKDOWN_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    IGNORED_CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    outcome: TableOutcome
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    completeness: Completeness
    usage: _containers.RepeatedCompositeFieldContainer[_usage_pb2.RoleUsage]
    overhead_tokens: int
    overhead_nano_usd: int
    duration: _duration_pb2.Duration
    markdown: str
    next_page_token: str
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    excluded: _containers.RepeatedCompositeFieldContainer[Row]
    ignored_conditions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., outcome: _Optional[_Union[TableOutcome, str]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., completeness: _Optional[_Union[Completeness, _Mapping]] = ..., usage: _Optional[_Iterable[_Union[_usage_pb2.RoleUsage, _Mapping]]] = ..., overhead_tokens: _Optional[int] = ..., overhead_nano_usd: _Optional[int] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., markdown: _Optional[str] = ..., next_page_token: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., excluded: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., ignored_conditions: _Optional[_Iterable[str]] = ...) -> None: ...

class FillTableResponse(_message.Message):
    __slots__ = ("run_id", "table")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    table: Table
    def __init__(self, run_id: _Optional[str] = ..., table: _Optional[_Union[Table, _Mapping]] = ...) -> None: ...

class StreamTableRequest(_message.Message):
    __slots__ = ("question", "columns", "rows", "closed", "max_rows", "request_id", "budget", "no_cache", "resume_run_id", "index", "filter", "conditions")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    RESUME_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    question: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    rows: _containers.RepeatedCompositeFieldContainer[GivenRow]
    closed: bool
    max_rows: int
    request_id: str
    budget: _budget_pb2.Budget
    no_cache: bool
    resume_run_id: str
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, question: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[GivenRow, _Mapping]]] = ..., closed: _Optional[bool] = ..., max_rows: _Optional[int] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ..., no_cache: _Optional[bool] = ..., resume_run_id: _Optional[str] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class StreamTableResponse(_message.Message):
    __slots__ = ("event_number", "run_started", "round_started", "planned", "sub_query_dispatched", "search_done", "reported", "row_changed", "usage_counted", "done")
    EVENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RUN_STARTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_STARTED_FIELD_NUMBER: _ClassVar[int]
    PLANNED_FIELD_NUMBER: _ClassVar[int]
    SUB_QUERY_DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    SEARCH_DONE_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    ROW_CHANGED_FIELD_NUMBER: _ClassVar[int]
    USAGE_COUNTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    event_number: int
    run_started: _answer_service_pb2.RunStarted
    round_started: _answer_service_pb2.RoundStarted
    planned: Planned
    sub_query_dispatched: _answer_service_pb2.SubQueryDispatched
    search_done: _answer_service_pb2.SearchDone
    reported: _answer_service_pb2.Reported
    row_changed: RowChanged
    usage_counted: _answer_service_pb2.UsageCounted
    done: Table
    def __init__(self, event_number: _Optional[int] = ..., run_started: _Optional[_Union[_answer_service_pb2.RunStarted, _Mapping]] = ..., round_started: _Optional[_Union[_answer_service_pb2.RoundStarted, _Mapping]] = ..., planned: _Optional[_Union[Planned, _Mapping]] = ..., sub_query_dispatched: _Optional[_Union[_answer_service_pb2.SubQueryDispatched, _Mapping]] = ..., search_done: _Optional[_Union[_answer_service_pb2.SearchDone, _Mapping]] = ..., reported: _Optional[_Union[_answer_service_pb2.Reported, _Mapping]] = ..., row_changed: _Optional[_Union[RowChanged, _Mapping]] = ..., usage_counted: _Optional[_Union[_answer_service_pb2.UsageCounted, _Mapping]] = ..., done: _Optional[_Union[Table, _Mapping]] = ...) -> None: ...

class Planned(_message.Message):
    __slots__ = ("columns", "conditions")
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    def __init__(self, columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ...) -> None: ...

class RowChanged(_message.Message):
    __slots__ = ("row_id", "row")
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    row_id: str
    row: Row
    def __init__(self, row_id: _Optional[str] = ..., row: _Optional[_Union[Row, _Mapping]] = ...) -> None: ...

class GetTableRequest(_message.Message):
    __slots__ = ("run_id", "page_size", "page_token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    page_size: int
    page_token: str
    def __init__(self, run_id: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class GetTableResponse(_message.Message):
    __slots__ = ("table", "running", "next_page_token")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    table: Table
    running: bool
    next_page_token: str
    def __init__(self, table: _Optional[_Union[Table, _Mapping]] = ..., running: _Optional[bool] = ..., next_page_token: _Optional[str] = ...) -> None: ...
