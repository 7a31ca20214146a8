"""The condenser, which writes a question of a conversation so that it can be understood alone."""

from router.calls import Role
from router.frozen import Frozen
from router.ledger import Ledger
from router.models import Message
from router.protocol import prompts
from router.protocol.tags import blocks, one_line, without_thinking
from router.search.delegator import with_output, with_user_turn
from router.trace import Conversation
from router.trace.values import Condensing

STOP = ("</question>", "</clarify>")


class Condenser(Frozen):
    """The delegator's model, or another model, in front of the search. It sees the history and
    the question, and nothing else. What it writes is all that the search sees of the conversation.
    """

    role: Role

    async def condense(
        self,
        history: tuple[Message, ...],
        question: str,
        ledger: Ledger,
    ) -> tuple[Condensing, str]:
        """Write `question` so that it can be understood without `history`. If the model's output is
        malformed, it is asked once to correct it.

        Return the result, and a question back to the user, which is empty unless the model could
        not resolve what `question` refers to. Both questions are empty if the correction is
        malformed too. Raises `UpstreamError` and `BudgetExhausted`.
        """
        conversation = Conversation(self.role.opening(prompts.condense_request(history, question)))
        # Stop strings may be what cut the first output off, so the correction has none
        for stop in (STOP, ()):
            output = await self.role.ask(conversation.messages, stop, ledger, purpose="condense")
            conversation = with_output(conversation, output)
            read = read_condensed(output.text, cut=output.finish_reason == "length")
            if read or not stop:
                break
            conversation = with_user_turn(conversation, prompts.CORRECT_CONDENSING)
        condensed, asked_back = read or ("", "")
        return Condensing(history, condensed, conversation), asked_back


def read_condensed(text: str, *, cut: bool) -> tuple[str, str] | None:
    """Return the question in a condenser's output, and its question back to the user, of which one
    is empty; None if there is neither. `cut`: whether the length limit cut the output off.
    """
    visible = without_thinking(text)
    condensed = "" if cut else _last(visible, "question")
    asked_back = "" if condensed else _last(visible, "clarify")
    return (condensed, asked_back) if condensed or asked_back else None


def _last(text: str, tag: str) -> str:
    bodies = [one_line(block.body) for block in blocks(text, tag)]
    return bodies[-1] if bodies else ""
