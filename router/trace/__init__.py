"""The values of a stored run: its result, its events, its calls, and its exports."""

from router.trace.call import Call, Price, RoleName
from router.trace.run import Run
from router.trace.values import (
    Conversation,
    Event,
    Execution,
    Trajectory,
)

__all__ = ["Call", "Conversation", "Event", "Execution", "Price", "RoleName", "Run", "Trajectory"]
