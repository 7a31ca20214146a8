"""Calls that nobody has booked yet."""

from collections.abc import Container, Iterable, Mapping

from executor_sft.call_cache import CallCache
from router.trace.call import Call

_DIGITS = 16


def first_calls(
    calls: Iterable[Call], memories: Mapping[str, CallCache], booked: Container[str], beside: Iterable[Call]
) -> dict[str, Call]:
    """Those of `calls` that were paid for, each once, by a key that is the same in every run of a sweep: not those
    whose keys are `booked`, nor what one of `beside` asked too. `memories`: by a name, as a call that two of them keep
    was paid for twice.
    """

    def key(call: Call) -> str:
        known = ((name, memory.key(call)) for name, memory in memories.items())
        return next((f"{name} {found[:_DIGITS]}" for name, found in known if found), call.request_id)

    said = set(map(key, beside))
    return {key(call): call for call in calls if key(call) not in said and key(call) not in booked}
