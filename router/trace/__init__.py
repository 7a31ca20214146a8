"""A run as it is kept: its values, its calls, and how they are exported."""

from router.trace.call import Call, Price, RoleName
from router.trace.run import Run
from router.trace.values import (
    Conversation,
    Event,
    Execution,
    Trajectory,
)

__all__ = ["Call", "Conversation", "Event", "Execution", "Price", "RoleName", "Run", "Trajectory"]
