"""What a run comes to, by its kind."""

from router.execution import Conversation, Execution
from router.trajectory import Trajectory

Result = Trajectory | Execution | Conversation
