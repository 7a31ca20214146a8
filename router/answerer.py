"""The answerer: the answer, from the question and the reports alone (TBSS 3.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from router import prompts
from router.answer_text import parse_answer
from router.execution import Conversation, Execution
from router.ledger import Ledger
from router.model import Message
from router.report import Report
from router.role import Role

STOP = ("</answer>",)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Sees no reasoning, no trajectories and no passages."""

    role: Role

    async def answer(self, question: str, executions: Sequence[Execution], ledger: Ledger) -> tuple[str, Conversation]:
        """The answer, possibly empty, and the call behind it."""
        messages = self._messages(question, [(execution.sub_query, execution.report) for execution in executions])
        output = await self.role.ask(messages, STOP, ledger)
        return parse_answer(output.text), Conversation(messages, (output,))

    async def hold(
        self, question: str, pairs: Sequence[tuple[str, Report]], coming_tokens: int, ledger: Ledger
    ) -> None:
        """Keep back what answering from these pairs, and from `coming_tokens` tokens more, may cost at most; where they
        hold no evidence yet, for a short answer, so that there is more to find some with. Raises `BudgetExhausted` and
        `StoreFailed`.
        """
        nothing_yet = not any(report.evidence for _, report in pairs)
        await self.role.hold(self._messages(question, pairs), coming_tokens, ledger, least=nothing_yet)

    def _messages(self, question: str, pairs: Sequence[tuple[str, Report]]) -> tuple[Message, ...]:
        return self.role.opening(prompts.answer_request(question, pairs))
