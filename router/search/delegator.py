"""The delegator: one decision a round, dispatch or stop (TBSS 3.1)."""

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
"""Of a delegator of managers, who may write a block for each of several."""


@dataclass(frozen=True, slots=True)
class Delegator:
    """Splits the question into sub-queries; it never writes the answer."""

    role: Role
    max_sub_queries: int = 8
    """The most sub-queries of one block that are dispatched."""
    stop: tuple[str, ...] = STOP
    managed: bool = False
    """Whether its blocks may name managers."""
    report: Callable[[str, bool], ExecutionTurn] | None = None
    """Read a turn of a manager, who stops by reporting; None for the run's own."""

    def open(self, question: str) -> Conversation:
        """A conversation that holds the question and nothing else."""
        return Conversation(self.role.opening(prompts.request(question)))

    async def decide(
        self, conversation: Conversation, ledger: Ledger, early: Dispatching | None = None
    ) -> tuple[Decision, Conversation]:
        """The next decision; malformed output is corrected once. `early`: who begins with what is
        certain to be dispatched while the decision is still being written.
        """
        purposes: tuple[Purpose, ...] = ("first", "correction")
        on_text = (lambda: EarlyReader(self.max_sub_queries, early.begin).feed) if early else None
        for purpose in purposes:
            # No stop string in a correction: one that was met while the model was thinking would be
            # met again.
            stop = self.stop if purpose == "first" else ()
            output = await self.role.ask(
                conversation.messages, stop, ledger, purpose=purpose, on_text=on_text
            )
            decision = self._parsed(output)
            said = Message("assistant", prompts.said(output.text))
            conversation = Conversation(
                (*conversation.messages, said), (*conversation.outputs, output)
            )
            if purpose == "correction" or not isinstance(decision, Malformed):
                break
            if early:
                await early.drop()
            conversation = told(conversation, prompts.CORRECT_DELEGATION)
        return decision, conversation

    def inform(
        self, conversation: Conversation, executions: Sequence[Execution], over_limit: Sequence[str]
    ) -> Conversation:
        """The conversation with the reports of a block, and what of the block was not
        dispatched.
        """
        pairs = [(execution.sub_query, execution.report) for execution in executions]
        managed = self.managed or self.report is not None
        return told(conversation, prompts.search_results(pairs, over_limit, managed=managed))

    def over_limit(self, conversation: Conversation) -> tuple[str, ...]:
        """The sub-queries that the last decision would have dispatched besides."""
        decision = self._parsed(conversation.outputs[-1])
        return decision.over_limit if isinstance(decision, Dispatch) else ()

    def _parsed(self, output: Completion) -> Decision:
        cut = output.finish_reason == "length"
        if self.report and isinstance(self.report(output.text, cut), ReportTurn):
            return Stop()
        return parse_decision(
            output.text, limit=self.max_sub_queries, cut=cut, managed=self.managed
        )


def told(conversation: Conversation, text: str) -> Conversation:
    """The conversation with another turn of the user's."""
    return Conversation((*conversation.messages, Message("user", text)), conversation.outputs)
