"""What a run has kept to itself."""

import pytest

from executor_sft.rollouts import check_execution
from router.errors import UpstreamUnavailable
from router.ledger.ledger import Ledger
from router.protocol.evidence import NO_EVIDENCE
from router.search.context import RunContext
from router.trace.values import Conversation, Execution


async def test_a_model_that_was_left_alone() -> None:
    """Where too many calls had failed before, nobody was asked, and there is no row that says why."""
    context = RunContext.lasting(10.0, lambda _event: None, Ledger())
    execution = Execution("Who?", NO_EVIDENCE, "model_failed", (), Conversation(()))
    with pytest.raises(UpstreamUnavailable, match="left alone"):
        check_execution(execution, 0, context)
