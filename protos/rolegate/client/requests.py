"""From a client's arguments to requests."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TypedDict

from rolegate.v1.answer_service_pb2 import AnswerRequest, StreamAnswerRequest
from rolegate.v1.budget_pb2 import Budget
from rolegate.v1.executor_version_service_pb2 import SetExecutorVersionTrafficRequest
from rolegate.v1.run_service_pb2 import (
    VERDICT_ACCEPTED,
    VERDICT_REJECTED,
    VERDICT_UNSPECIFIED,
    ExportRunsRequest,
    ListRunsRequest,
    SubmitFeedbackRequest,
)
from rolegate.v1.usage_service_pb2 import GetUsageRequest

ADDRESS = "127.0.0.1:50551"
"""Where a gateway listens unless told otherwise."""
ANSWER_S = 120.0
"""The deadline of questions, seconds."""
SHORT_S = 30.0
"""The deadline of calls that ask no model, seconds."""
TriedState = Literal["registered", "shadow", "canary"]
"""What a version of the executor can be told to do; nothing, while it is registered."""
TopologyName = Literal["factorized", "single_agent", "homogeneous", "searcher", "no_retrieval"]
"""Who searches and who answers: three roles, or one of the baselines that they are compared with."""
_PAGE = 100
_VERDICTS = {None: VERDICT_UNSPECIFIED, True: VERDICT_ACCEPTED, False: VERDICT_REJECTED}


class Terms(TypedDict, total=False):
    """On which terms a question is asked."""

    request_id: str
    """A name for the request; within a day, the same name gets the same answer and spends nothing."""
    max_total_tokens: int
    """Prompt and completion tokens of all models together."""
    max_cost_usd: float
    fresh: bool
    """Have every sub-query worked on anew, instead of using what other runs have found."""
    topology: TopologyName
    """Who searches and who answers."""


class Opinion(TypedDict, total=False):
    """What became of an answer; at least one of these."""

    accepted: bool | None
    score: float | None
    """From 0 to 1."""
    gold_answer: str
    comment: str


class Filter(TypedDict, total=False):
    """Which runs are meant; what is absent leaves nothing out. A moment without a time zone is local time."""

    tenant: str
    kind: Literal["answer", "complete", "execute", "shadow"] | None
    start: datetime | None
    """Started at this time or later."""
    end: datetime | None
    """Started before this time."""


class ListFilter(Filter, total=False):
    """Which runs are to be listed."""

    status: Literal["running", "finished", "failed", "cancelled", "interrupted"] | None


class ExportFilter(Filter, total=False):
    """Which runs are to be exported."""

    for_training: bool
    """Leave out tenants whose runs must not train."""


class Sums(TypedDict, total=False):
    """Which calls are summed, and how. A moment without a time zone is local time."""

    start: datetime | None
    """Calls that started at this time or later."""
    end: datetime | None
    """Calls that started before this time."""
    by: Sequence[Literal["tenant", "role", "model", "executor_version"]]
    """What the sums are split by; role and model, if it is empty."""
    bucket: Literal["hour", "day", "month"] | None
    """How time is split, in UTC."""
    tenant: str


def answer_request(question: str, terms: Terms) -> AnswerRequest:
    """A question; it has a name in any case, so that it can be asked again and spends nothing twice.

    Raises `ValueError` for a topology that there is not.
    """
    request = AnswerRequest(question=question, **_terms(terms))
    request.request_id = request.request_id or str(uuid.uuid4())
    return request


def stream_request(question: str, terms: Terms) -> StreamAnswerRequest:
    """A question whose progress is to be told. Raises `ValueError` for a topology that there is not."""
    return StreamAnswerRequest(question=question, **_terms(terms))


def feedback_request(run_id: str, opinion: Opinion) -> SubmitFeedbackRequest:
    """Feedback on a run."""
    return SubmitFeedbackRequest(
        run_id=run_id,
        verdict=_VERDICTS[opinion.get("accepted")],
        score=opinion.get("score"),
        gold_answer=opinion.get("gold_answer", ""),
        comment=opinion.get("comment", ""),
    )


def list_request(wanted: ListFilter) -> ListRunsRequest:
    """The first page of runs. Raises `ValueError` for a kind or status that there is not."""
    status = wanted.get("status")
    return ListRunsRequest(
        page_size=_PAGE,
        tenant=wanted.get("tenant", ""),
        kind=_kind(wanted),
        status=status and f"RUN_STATUS_{status.upper()}",
        start_time=_utc(wanted.get("start")),
        end_time=_utc(wanted.get("end")),
    )


def export_request(wanted: ExportFilter) -> ExportRunsRequest:
    """Runs with their traces. Raises `ValueError` for a kind that there is not."""
    return ExportRunsRequest(
        tenant=wanted.get("tenant", ""),
        kind=_kind(wanted),
        start_time=_utc(wanted.get("start")),
        end_time=_utc(wanted.get("end")),
        for_training=wanted.get("for_training", False),
    )


def usage_request(sums: Sums) -> GetUsageRequest:
    """Sums. Raises `ValueError` for a dimension or a bucket that there is not."""
    bucket = sums.get("bucket")
    return GetUsageRequest(
        start_time=_utc(sums.get("start")),
        end_time=_utc(sums.get("end")),
        tenant=sums.get("tenant", ""),
        group_by=[f"USAGE_DIMENSION_{name.upper()}" for name in sums.get("by", ())],
        bucket=bucket and f"USAGE_BUCKET_{bucket.upper()}",
    )


def traffic_request(version: str, state: TriedState, share: float) -> SetExecutorVersionTrafficRequest:
    """What a version is to do. Raises `ValueError` for a state that there is not."""
    return SetExecutorVersionTrafficRequest(
        version=version, state=f"EXECUTOR_VERSION_STATE_{state.upper()}", canary_share=share
    )


def _terms(terms: Terms) -> dict[str, Any]:
    """The fields that both requests for an answer have."""
    topology = terms.get("topology")
    return {
        "request_id": terms.get("request_id", ""),
        "budget": _budget(terms),
        "fresh": terms.get("fresh", False),
        "topology": topology and f"TOPOLOGY_{topology.upper()}",
    }


def _budget(terms: Terms) -> Budget | None:
    tokens, cost = terms.get("max_total_tokens"), terms.get("max_cost_usd")
    if tokens is None and cost is None:
        return None
    if cost is not None and not isfinite(cost):
        raise ValueError(f"max_cost_usd is {cost}; it must be a number of dollars.")
    return Budget(max_total_tokens=tokens, max_cost_nano_usd=None if cost is None else round(cost * 1e9))


def _kind(wanted: Filter) -> str | None:
    kind = wanted.get("kind")
    return kind and f"RUN_KIND_{kind.upper()}"


def _utc(moment: datetime | None) -> datetime | None:
    return None if moment is None else moment.astimezone(UTC)
