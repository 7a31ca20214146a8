"""Runs that were cut off by something else than their models: these say nothing of an executor."""

from router.errors import OutOfTime, UpstreamRefused, UpstreamUnavailable
from router.search.context import RunContext
from router.trace.values import Execution, Trajectory

_TIME = "time ran out; allow more with server.timeout_s, or ask for less at once with --concurrency."


def check(trajectory: Trajectory, first: int, context: RunContext) -> None:
    """Raise what a run has kept to itself: that it was cut off, or that an endpoint failed it. `first`: the number of
    the first sub-query that was worked on in `context`.
    """
    for index, execution in enumerate(trajectory.executions[first:], first):
        check_execution(execution, index, context)
    if trajectory.outcome == "time_exhausted":
        raise OutOfTime(_TIME)


def check_execution(execution: Execution, index: int, context: RunContext) -> None:
    """The same of one execution."""
    match execution.outcome:
        case "timed_out":
            raise OutOfTime(_TIME)
        case "retrieval_failed":
            raise UpstreamUnavailable("passages cannot be had", endpoint="the config's address or index")
        case "model_failed":
            calls = [call for call in context.ledger.calls if call.sub_query == index]
            last = next((call for call in reversed(calls) if call.outcome != "completed"), None)
            if last is None:  # nobody was asked
                raise UpstreamUnavailable("left alone, as its last calls failed", endpoint="the executor's endpoint")
            passing = last.outcome in ("unavailable", "unreachable")
            error = (UpstreamUnavailable if passing else UpstreamRefused)(
                f"model {last.model!r}: {last.outcome}", endpoint=last.deployment
            )
            error.role = last.role
            raise error
