import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from rolegate.v1 import budget_pb2 as _budget_pb2
from rolegate.v1 import completion_service_pb2 as _completion_service_pb2
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

class Topology(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOPOLOGY_UNSPECIFIED: _ClassVar[Topology]
    TOPOLOGY_FACTORIZED: _ClassVar[Topology]
    TOPOLOGY_HOST: _ClassVar[Topology]

class AnswerLength(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_LENGTH_UNSPECIFIED: _ClassVar[AnswerLength]
    ANSWER_LENGTH_SHORT: _ClassVar[AnswerLength]
    ANSWER_LENGTH_SENTENCE: _ClassVar[AnswerLength]
    ANSWER_LENGTH_PARAGRAPH: _ClassVar[AnswerLength]

class AnswerOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_OUTCOME_UNSPECIFIED: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_ANSWERED: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_ROUNDS_EXHAUSTED: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_NO_SEARCH: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_TIME_EXHAUSTED: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_OUT_OF_SCOPE: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_NOT_FOUND: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_BUDGET_EXHAUSTED: _ClassVar[AnswerOutcome]
    ANSWER_OUTCOME_CLARIFY: _ClassVar[AnswerOutcome]
TOPOLOGY_UNSPECIFIED: Topology
TOPOLOGY_FACTORIZED: Topology
TOPOLOGY_HOST: Topology
ANSWER_LENGTH_UNSPECIFIED: AnswerLength
ANSWER_LENGTH_SHORT: AnswerLength
ANSWER_LENGTH_SENTENCE: AnswerLength
ANSWER_LENGTH_PARAGRAPH: AnswerLength
ANSWER_OUTCOME_UNSPECIFIED: AnswerOutcome
ANSWER_OUTCOME_ANSWERED: AnswerOutcome
ANSWER_OUTCOME_ROUNDS_EXHAUSTED: AnswerOutcome
ANSWER_OUTCOME_NO_SEARCH: AnswerOutcome
ANSWER_OUTCOME_TIME_EXHAUSTED: AnswerOutcome
ANSWER_OUTCOME_OUT_OF_SCOPE: AnswerOutcome
ANSWER_OUTCOME_NOT_FOUND: AnswerOutcome
ANSWER_OUTCOME_BUDGET_EXHAUSTED: AnswerOutcome
ANSWER_OUTCOME_CLARIFY: AnswerOutcome

class AnswerRequest(_message.Message):
    __slots__ = ("question", "request_id", "budget", "no_cache", "topology", "resume_run_id", "history", "language", "length", "instructions", "max_answer_tokens", "index", "filter")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    RESUME_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    question: str
    request_id: str
    budget: _budget_pb2.Budget
    no_cache: bool
    topology: Topology
    resume_run_id: str
    history: _containers.RepeatedCompositeFieldContainer[_completion_service_pb2.ChatMessage]
    language: str
    length: AnswerLength
    instructions: str
    max_answer_tokens: int
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    def __init__(self, question: _Optional[str] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ..., no_cache: _Optional[bool] = ..., topology: _Optional[_Union[Topology, str]] = ..., resume_run_id: _Optional[str] = ..., history: _Optional[_Iterable[_Union[_completion_service_pb2.ChatMessage, _Mapping]]] = ..., language: _Optional[str] = ..., length: _Optional[_Union[AnswerLength, str]] = ..., instructions: _Optional[str] = ..., max_answer_tokens: _Optional[int] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ...) -> None: ...

class AnswerResponse(_message.Message):
    __slots__ = ("run_id", "answer", "outcome", "results", "usage", "duration", "citations", "unsupported", "question", "sentences")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    answer: str
    outcome: AnswerOutcome
    results: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.SubQueryResult]
    usage: _containers.RepeatedCompositeFieldContainer[_usage_pb2.RoleUsage]
    duration: _duration_pb2.Duration
    citations: _containers.RepeatedCompositeFieldContainer[_evidence_pb2.Citation]
    unsupported: bool
    question: str
    sentences: _containers.RepeatedCompositeFieldContainer[AnswerSentence]
    def __init__(self, run_id: _Optional[str] = ..., answer: _Optional[str] = ..., outcome: _Optional[_Union[AnswerOutcome, str]] = ..., results: _Optional[_Iterable[_Union[_evidence_pb2.SubQueryResult, _Mapping]]] = ..., usage: _Optional[_Iterable[_Union[_usage_pb2.RoleUsage, _Mapping]]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., citations: _Optional[_Iterable[_Union[_evidence_pb2.Citation, _Mapping]]] = ..., unsupported: _Optional[bool] = ..., question: _Optional[str] = ..., sentences: _Optional[_Iterable[_Union[AnswerSentence, _Mapping]]] = ...) -> None: ...

class AnswerSentence(_message.Message):
    __slots__ = ("start_char", "end_char", "supported", "citation_indexes")
    START_CHAR_FIELD_NUMBER: _ClassVar[int]
    END_CHAR_FIELD_NUMBER: _ClassVar[int]
    SUPPORTED_FIELD_NUMBER: _ClassVar[int]
    CITATION_INDEXES_FIELD_NUMBER: _ClassVar[int]
    start_char: int
    end_char: int
    supported: bool
    citation_indexes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start_char: _Optional[int] = ..., end_char: _Optional[int] = ..., supported: _Optional[bool] = ..., citation_indexes: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamAnswerRequest(_message.Message):
    __slots__ = ("question", "request_id", "budget", "no_cache", "topology", "resume_run_id", "history", "language", "length", "instructions", "max_answer_tokens", "index", "filter")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    RESUME_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    question: str
    request_id: str
    budget: _budget_pb2.Budget
    no_cache: bool
    topology: Topology
    resume_run_id: str
    history: _containers.RepeatedCompositeFieldContainer[_completion_service_pb2.ChatMessage]
    language: str
    length: AnswerLength
    instructions: str
    max_answer_tokens: int
    index: _containers.RepeatedScalarFieldContainer[str]
    filter: _document_filter_pb2.DocumentFilter
    def __init__(self, question: _Optional[str] = ..., request_id: _Optional[str] = ..., budget: _Optional[_Union[_budget_pb2.Budget, _Mapping]] = ..., no_cache: _Optional[bool] = ..., topology: _Optional[_Union[Topology, str]] = ..., resume_run_id: _Optional[str] = ..., history: _Optional[_Iterable[_Union[_completion_service_pb2.ChatMessage, _Mapping]]] = ..., language: _Optional[str] = ..., length: _Optional[_Union[AnswerLength, str]] = ..., instructions: _Optional[str] = ..., max_answer_tokens: _Optional[int] = ..., index: _Optional[_Iterable[str]] = ..., filter: _Optional[_Union[_document_filter_pb2.DocumentFilter, _Mapping]] = ...) -> None: ...

class StreamAnswerResponse(_message.Message):
    __slots__ = ("event_number", "round_started", "sub_query_dispatched", "search_done", "reported", "answer_written", "usage_counted", "done", "run_started", "answer_delta")
    EVENT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROUND_STARTED_FIELD_NUMBER: _ClassVar[int]
    SUB_QUERY_DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    SEARCH_DONE_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    USAGE_COUNTED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    RUN_STARTED_FIELD_NUMBER: _ClassVar[int]
    ANSWER_DELTA_FIELD_NUMBER: _ClassVar[int]
    event_number: int
    round_started: RoundStarted
    sub_query_dispatched: SubQueryDispatched
    search_done: SearchDone
    reported: Reported
    answer_written: AnswerWritten
    usage_counted: UsageCounted
    done: AnswerResponse
    run_started: RunStarted
    answer_delta: AnswerDelta
    def __init__(self, event_number: _Optional[int] = ..., round_started: _Optional[_Union[RoundStarted, _Mapping]] = ..., sub_query_dispatched: _Optional[_Union[SubQueryDispatched, _Mapping]] = ..., search_done: _Optional[_Union[SearchDone, _Mapping]] = ..., reported: _Optional[_Union[Reported, _Mapping]] = ..., answer_written: _Optional[_Union[AnswerWritten, _Mapping]] = ..., usage_counted: _Optional[_Union[UsageCounted, _Mapping]] = ..., done: _Optional[_Union[AnswerResponse, _Mapping]] = ..., run_started: _Optional[_Union[RunStarted, _Mapping]] = ..., answer_delta: _Optional[_Union[AnswerDelta, _Mapping]] = ...) -> None: ...

class AnswerDelta(_message.Message):
    __slots__ = ("kept_chars", "text")
    KEPT_CHARS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kept_chars: int
    text: str
    def __init__(self, kept_chars: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class RunStarted(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class RoundStarted(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class SubQueryDispatched(_message.Message):
    __slots__ = ("index", "round", "sub_query", "row_id", "columns", "manager")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUB_QUERY_FIELD_NUMBER: _ClassVar[int]
    ROW_ID_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MANAGER_FIELD_NUMBER: _ClassVar[int]
    index: int
    round: int
    sub_query: str
    row_id: str
    columns: _containers.RepeatedScalarFieldContainer[str]
    manager: str
    def __init__(self, index: _Optional[int] = ..., round: _Optional[int] = ..., sub_query: _Optional[str] = ..., row_id: _Optional[str] = ..., columns: _Optional[_Iterable[str]] = ..., manager: _Optional[str] = ...) -> None: ...

class SearchDone(_message.Message):
    __slots__ = ("index", "query", "titles")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TITLES_FIELD_NUMBER: _ClassVar[int]
    index: int
    query: str
    titles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, index: _Optional[int] = ..., query: _Optional[str] = ..., titles: _Optional[_Iterable[str]] = ...) -> None: ...

class Reported(_message.Message):
    __slots__ = ("index", "result")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    index: int
    result: _evidence_pb2.SubQueryResult
    def __init__(self, index: _Optional[int] = ..., result: _Optional[_Union[_evidence_pb2.SubQueryResult, _Mapping]] = ...) -> None: ...

class AnswerWritten(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: str
    def __init__(self, answer: _Optional[str] = ...) -> None: ...

class UsageCounted(_message.Message):
    __slots__ = ("usage",)
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: _containers.RepeatedCompositeFieldContainer[_usage_pb2.RoleUsage]
    def __init__(self, usage: _Optional[_Iterable[_Union[_usage_pb2.RoleUsage, _Mapping]]] = ...) -> None: ...
