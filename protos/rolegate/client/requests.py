"""From a client's arguments to requests."""

from datetime import UTC, datetime

from rolegate.v1.run_service_pb2 import VERDICT_ACCEPTED, VERDICT_REJECTED, VERDICT_UNSPECIFIED, SubmitFeedbackRequest
from rolegate.v1.usage_service_pb2 import GetUsageRequest

ADDRESS = "127.0.0.1:50551"
"""Where a gateway listens unless told otherwise."""
SHORT_S = 30.0
"""The deadline of calls that ask no model, seconds."""
_VERDICTS = {None: VERDICT_UNSPECIFIED, True: VERDICT_ACCEPTED, False: VERDICT_REJECTED}


def feedback_request(
    run_id: str, accepted: bool | None, score: float | None, gold_answer: str, comment: str
) -> SubmitFeedbackRequest:
    """Feedback on a run."""
    verdict = _VERDICTS[accepted]
    return SubmitFeedbackRequest(run_id=run_id, verdict=verdict, score=score, gold_answer=gold_answer, comment=comment)


def usage_request(start: datetime | None, end: datetime | None) -> GetUsageRequest:
    """A span of time; a moment without a time zone is local time."""
    return GetUsageRequest(
        start_time=None if start is None else start.astimezone(UTC),
        end_time=None if end is None else end.astimezone(UTC),
    )
