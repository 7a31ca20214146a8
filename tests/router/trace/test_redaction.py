"""Redaction: redacted runs keep numbers and no texts."""

from typing import Literal, get_args

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from router.models import Completion, Message, Usage
from router.protocol import Passage, Report
from router.trace import Conversation, Execution, Run, Trajectory
from router.trace.redaction import _blank, redacted
from router.trace.run import RoleSetting
from router.trace.table import Ask, Cell, CellState, Claim, Column, ColumnType, Row, Schema, Support
from router.trace.values import (
    AnswerWritten,
    Planned,
    Reported,
    Reranking,
    RoundStarted,
    RowChanged,
    RunStarted,
    SearchDone,
    SearchRecord,
    SubQueryDispatched,
    TableRun,
    TopologyName,
)
from tests.router.store.stored import call

MARK = "§"
texts = st.text(max_size=5).map(lambda text: MARK + text)
"""Marker in every text of users and models, and in no other text."""
usages = st.none() | st.builds(Usage, st.integers(0, 9), st.integers(0, 9))
conversations = st.builds(
    Conversation,
    st.lists(st.builds(Message, st.sampled_from(["system", "user"]), texts), max_size=2).map(tuple),
    st.lists(st.builds(Completion, texts, st.just("stop"), texts, usages), max_size=2).map(tuple),
)
passages = st.builds(
    Passage, texts, texts, texts, st.floats(0, 1), texts, st.none() | st.integers(1, 9)
)
rerankings = st.builds(
    Reranking, st.just("cross"), st.none() | st.integers(0, 9), st.none() | texts
)
searches = st.builds(
    SearchRecord,
    texts,
    st.lists(passages, max_size=2).map(tuple),
    st.integers(0, 3),
    reranking=st.just(msgspec.UNSET) | rerankings,
)
reports = st.builds(Report, texts, st.lists(texts, max_size=3).map(tuple))
executions = st.builds(
    Execution,
    texts,
    reports,
    st.just("reported"),
    st.lists(searches, max_size=2).map(tuple),
    conversations,
    st.just("executor-000001"),
)
trajectories = st.builds(
    Trajectory,
    texts,
    st.just("answered"),
    st.lists(executions, max_size=2).map(tuple),
    st.lists(st.integers(0, 3), max_size=2).map(tuple),
    st.lists(st.integers(0, 9), max_size=2).map(tuple),
    st.none() | conversations,
    st.none() | conversations,
    st.sampled_from(get_args(TopologyName)),
)
words = st.lists(texts, max_size=2).map(tuple)
asks = st.builds(
    Ask, st.just("fill"), words, st.none() | words, st.integers(0, 3), st.integers(1, 2), texts
)
columns = st.builds(
    Column, texts, st.sampled_from(get_args(ColumnType)), st.booleans(), texts, texts, words, texts
)
claims = st.builds(Claim, texts, texts, asks, st.sampled_from(get_args(Support)), st.just(()))
cells = st.builds(
    Cell, texts, st.sampled_from(get_args(CellState)), st.lists(claims, max_size=1).map(tuple)
)
rows = st.builds(
    Row, words, st.lists(cells, max_size=2).map(tuple), st.lists(asks, max_size=1).map(tuple)
)
tables = st.builds(
    TableRun,
    st.builds(Schema, st.lists(columns, max_size=2).map(tuple)),
    st.lists(words, max_size=1).map(tuple),
    st.lists(asks, max_size=2).map(tuple),
    st.lists(executions, max_size=2).map(tuple),
    st.none() | conversations,
)
events = st.one_of(
    st.builds(RunStarted, st.just("run-1")),
    st.builds(RoundStarted, st.integers(1, 4)),
    st.builds(SubQueryDispatched, st.integers(0, 4), st.integers(1, 4), texts, st.none() | asks),
    st.builds(Planned, st.lists(columns, max_size=2).map(tuple)),
    st.builds(RowChanged, words, st.none() | rows),
    st.builds(SearchDone, st.integers(0, 4), texts, st.lists(texts, max_size=2).map(tuple)),
    st.builds(Reported, st.integers(0, 4), st.none() | executions),
    st.builds(AnswerWritten, texts),
)
runs = st.builds(
    Run,
    id=st.just("run-1"),
    kind=st.just("answer"),
    request=texts,
    status=st.sampled_from(["finished", "failed"]),
    error=texts,
    result=st.none() | trajectories | tables | executions | conversations,
    settings=st.just({"answer": RoleSetting("fixed", "0" * 64)}),
    calls=st.just((call("run-1", tenant="acme"),)),
    started_at=st.floats(0, 9),
    duration_s=st.floats(0, 9),
    tenant=st.just("acme"),
    request_id=st.just("mine"),
    events=st.lists(events, max_size=3).map(tuple),
)


def _figures(value: object) -> object:
    """Return a value with its marked texts emptied."""
    if isinstance(value, str):
        return "" if value.startswith(MARK) else value
    if isinstance(value, dict):
        return {key: _figures(member) for key, member in value.items()}
    return tuple(_figures(member) for member in value) if isinstance(value, list | tuple) else value


@given(run=runs)
@settings(max_examples=100, deadline=None)
def test_redaction_removes_all_texts_and_keeps_everything_else(run: Run) -> None:
    """Counts, hashes, names of models and outcomes stay."""
    left = redacted(run)
    assert MARK.encode() not in msgspec.json.encode(left)
    assert _figures(msgspec.to_builtins(left)) == _figures(
        {**msgspec.to_builtins(run), "redacted": True}
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(left), type=Run) == left


class Rated(msgspec.Struct, frozen=True):
    """A value with words of an enumeration."""

    text: str
    confidence: Literal["low", "high"] | None = None


def test_words_of_an_enumeration_are_kept() -> None:
    """A new field of this kind needs no entry in the redaction."""
    assert _blank(Rated("said", "high")) == Rated("", "high")
