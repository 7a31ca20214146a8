"""The delegator. In each round it decides either to dispatch sub-queries or to stop (TBSS 3.1)."""

from collections.abc import Callable, Sequence

from router.calls import Role
from router.frozen import Frozen
from router.ledger import Ledger
from router.models import Completion
from router.protocol import parse_decision, prompts
from router.protocol.decision import Decision, Dispatch, EarlyReader, Stop
from router.protocol.tags import Malformed
from router.protocol.turns import ExecutionTurn, ReportTurn
from router.search.dispatch import Dispatching
from router.trace import Conversation, Execution
from router.trace.call import Purpose

STOP = ("</search>",)
HOST_STOP = ("<search_results",)
"""Stop string for a delegator with managers. The model may write one block of sub-queries per
manager, so its output must not stop at the end of the first block.
"""


class Delegator(Frozen):
    """The role that splits the question into sub-queries. It never writes the answer.

    A manager also contains a `Delegator`. It splits the manager's sub-query into smaller ones for
    the manager's workers.
    """

    role: Role
    max_sub_queries: int = 8
    """Max sub-queries dispatched per decision. If the model writes more, the next message to it
    lists those that were not dispatched.
    """
    stop: tuple[str, ...] = STOP
    managed: bool = False
    """Whether the model may name the manager that its sub-queries are for."""
    report: Callable[[str, bool], ExecutionTurn] | None = None
    """Parser of a manager's turns, the last of which is a report. Arguments: the text of a turn,
    and whether the length limit cut the text. None for the run's own delegator, which writes no
    report.
    """

    def open(self, question: str) -> Conversation:
        """Return a new conversation that contains only the system prompt and the question."""
        return Conversation(self.role.opening(prompts.request(question)))

    async def decide(
        self,
        conversation: Conversation,
        ledger: Ledger,
        early: Dispatching | None = None,
    ) -> tuple[Decision, Conversation]:
        """Ask the model for its next decision. Return the decision and the extended conversation.

        If the output is malformed, the model is asked once to correct it. If the correction is
        malformed too, `Malformed` is returned. `early`: starts work on sub-queries while the
        decision is still being written; None to wait until it is complete. Raises `UpstreamError`
        and `BudgetExhausted`.
        """
        purposes: tuple[Purpose, ...] = ("first", "correction")
        on_text = (lambda: EarlyReader(self.max_sub_queries, early.begin).feed) if early else None
        for purpose in purposes:
            # A correction has no stop strings: a model that wrote one while reasoning would
            # probably write it again.
            stop = self.stop if purpose == "first" else ()
            output = await self.role.ask(
                conversation.messages,
                stop,
                ledger,
                purpose=purpose,
                on_text=on_text,
            )
            decision = self._parsed(output)
            conversation = conversation.with_output(output)
            if purpose == "correction" or not isinstance(decision, Malformed):
                break
            if early:
                await early.drop()
            conversation = conversation.with_user_turn(prompts.CORRECT_DELEGATION)
        return decision, conversation

    def inform(
        self,
        conversation: Conversation,
        executions: Sequence[Execution],
        over_limit: Sequence[str],
    ) -> Conversation:
        """Return the conversation, extended by a user message with the reports on one decision's
        sub-queries.

        `over_limit`: sub-queries of the decision that were not dispatched because of
        `max_sub_queries`; the message lists them too.
        """
        pairs = [(execution.sub_query, execution.report) for execution in executions]
        managed = self.managed or self.report is not None
        return conversation.with_user_turn(
            prompts.search_results(pairs, over_limit, managed=managed)
        )

    def over_limit(self, conversation: Conversation) -> tuple[str, ...]:
        """Return the last decision's sub-queries that were not dispatched because of
        `max_sub_queries`.
        """
        decision = self._parsed(conversation.outputs[-1])
        return decision.over_limit if isinstance(decision, Dispatch) else ()

    def _parsed(self, output: Completion) -> Decision:
        cut = output.finish_reason == "length"
        if self.report and isinstance(self.report(output.text, cut), ReportTurn):
            return Stop()
        return parse_decision(
            output.text, limit=self.max_sub_queries, cut=cut, managed=self.managed
        )
