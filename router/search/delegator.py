"""The delegator: one decision per round, to dispatch or to stop (TBSS 3.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from router.calls import Role
from router.ledger import Ledger
from router.models import Completion, Message
from router.protocol import parse_decision, prompts
from router.protocol.decision import Decision, Dispatch, EarlyReader, Stop
from router.protocol.tags import Malformed
from router.protocol.turns import ExecutionTurn, ReportTurn
from router.search.dispatch import Dispatching
from router.trace import Conversation, Execution
from router.trace.call import Purpose

STOP = ("</search>",)
HOST_STOP = ("<search_results",)
"""For a delegator of managers, which may write one block per manager."""


@dataclass(frozen=True, slots=True)
class Delegator:
    """Splits the question into sub-queries. It never writes the answer."""

    role: Role
    max_sub_queries: int = 8
    """Max sub-queries of a block that are dispatched."""
    stop: tuple[str, ...] = STOP
    managed: bool = False
    """Whether its blocks may name managers."""
    report: Callable[[str, bool], ExecutionTurn] | None = None
    """Parse a manager's turn, in which a report is its way to stop; None for the run's own
    delegator.
    """

    def open(self, question: str) -> Conversation:
        """Return a conversation that holds only the question."""
        return Conversation(self.role.opening(prompts.request(question)))

    async def decide(
        self,
        conversation: Conversation,
        ledger: Ledger,
        early: Dispatching | None = None,
    ) -> tuple[Decision, Conversation]:
        """Return the next decision. Malformed output is corrected once. `early`: starts sub-queries
        that are certain to be dispatched while the decision is being written.
        """
        purposes: tuple[Purpose, ...] = ("first", "correction")
        on_text = (lambda: EarlyReader(self.max_sub_queries, early.begin).feed) if early else None
        for purpose in purposes:
            # No stop string in a correction: one that the model met while reasoning would be met
            # again.
            stop = self.stop if purpose == "first" else ()
            output = await self.role.ask(
                conversation.messages,
                stop,
                ledger,
                purpose=purpose,
                on_text=on_text,
            )
            decision = self._parsed(output)
            conversation = with_output(conversation, output)
            if purpose == "correction" or not isinstance(decision, Malformed):
                break
            if early:
                await early.drop()
            conversation = with_user_turn(conversation, prompts.CORRECT_DELEGATION)
        return decision, conversation

    def inform(
        self,
        conversation: Conversation,
        executions: Sequence[Execution],
        over_limit: Sequence[str],
    ) -> Conversation:
        """Return the conversation with the reports of a block, and the sub-queries that were not
        dispatched.
        """
        pairs = [(execution.sub_query, execution.report) for execution in executions]
        managed = self.managed or self.report is not None
        return with_user_turn(
            conversation, prompts.search_results(pairs, over_limit, managed=managed)
        )

    def over_limit(self, conversation: Conversation) -> tuple[str, ...]:
        """Return the sub-queries beyond the limit in the last decision."""
        decision = self._parsed(conversation.outputs[-1])
        return decision.over_limit if isinstance(decision, Dispatch) else ()

    def _parsed(self, output: Completion) -> Decision:
        cut = output.finish_reason == "length"
        if self.report and isinstance(self.report(output.text, cut), ReportTurn):
            return Stop()
        return parse_decision(
            output.text, limit=self.max_sub_queries, cut=cut, managed=self.managed
        )


def with_output(conversation: Conversation, output: Completion) -> Conversation:
    """Return the conversation with the model's next turn."""
    message = Message("assistant", prompts.shown_turn(output.text))
    return Conversation((*conversation.messages, message), (*conversation.outputs, output))


def with_user_turn(conversation: Conversation, text: str) -> Conversation:
    """Return the conversation with another user turn."""
    return Conversation((*conversation.messages, Message("user", text)), conversation.outputs)
