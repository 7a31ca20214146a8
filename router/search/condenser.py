"""The condenser, which writes a question of a conversation so that it can be understood alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.calls import Role
from router.ledger import Ledger
from router.models import Message
from router.protocol import prompts
from router.protocol.tags import blocks, one_line, without_thinking
from router.trace import Conversation
from router.trace.values import Condensing

UNCLEAR = "I do not know what this question refers to. Please name the person or the thing in it."
"""Answer if the model wrote neither a question nor a question back."""
STOP = ("</question>", "</clarify>")


@dataclass(frozen=True, slots=True)
class Condenser:
    """The delegator's model, or another model, in front of the search. It sees the history and
    the question, and nothing else. What it writes is all that the search sees of the conversation.
    """

    role: Role
    stop: tuple[str, ...] = STOP

    async def condense(
        self,
        history: tuple[Message, ...],
        question: str,
        ledger: Ledger,
    ) -> tuple[Condensing, str]:
        """Write `question` so that it can be understood without `history`, by one call of the
        model.

        Return the result, and a question back to the user, which is empty unless the model could
        not resolve what `question` refers to. Raises `UpstreamError` and `BudgetExhausted`.
        """
        messages = self.role.opening(prompts.condense_request(history, question))
        output = await self.role.ask(messages, self.stop, ledger, purpose="condense")
        conversation = Conversation(messages, (output,))
        visible = without_thinking(output.text)
        condensed = _last(visible, "question")
        if condensed and output.finish_reason != "length":
            return Condensing(history, condensed, conversation), ""
        asked_back = _last(visible, "clarify") or UNCLEAR
        return Condensing(history, "", conversation), asked_back


def _last(text: str, tag: str) -> str:
    bodies: Sequence[str] = [one_line(block.body) for block in blocks(text, tag)]
    return bodies[-1] if bodies else ""
