"""An event of a run as a line for people."""

from rolegate.v1 import answer_service_pb2 as pb
from rolegate.v1 import evidence_pb2


def event_line(event: pb.StreamAnswerResponse) -> str | None:
    """Rounds, sub-queries, searches and reports, each under what it belongs to; None for other events."""
    match event.WhichOneof("event"):
        case "round_started":
            return f"round {event.round_started.round}"
        case "sub_query_dispatched":
            return f"  → {event.sub_query_dispatched.index + 1}. {event.sub_query_dispatched.sub_query}"
        case "search_done":
            found = ", ".join(event.search_done.titles) or "nothing"
            return f"    searched “{event.search_done.query}”: {found}"
        case "reported":
            result = event.reported.result
            failed = result.outcome not in (evidence_pb2.EXECUTION_OUTCOME_REPORTED, 0)
            return f"  ← {event.reported.index + 1}. {'could not be looked up' if failed else result.answer}"
        case _:
            return None
