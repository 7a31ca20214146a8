"""The condenser, which rewrites a question so that it can be understood without the conversation
before it.
"""

from router.calls import Role
from router.frozen import Frozen
from router.ledger import Ledger
from router.models import Message
from router.protocol import prompts
from router.protocol.tags import blocks, one_line, without_thinking
from router.trace import Conversation
from router.trace.values import Condensing

STOP = ("</question>", "</clarify>")


class Condenser(Frozen):
    """The role that rewrites a question before the search. Its model sees only the history and the
    question. The search sees only the rewritten question, not the history.
    """

    role: Role

    async def condense(
        self,
        history: tuple[Message, ...],
        question: str,
        ledger: Ledger,
    ) -> tuple[Condensing, str]:
        """Rewrite `question` so that it can be understood without `history`. If the model's output
        is malformed, the model is asked once to correct it.

        Return the record of the rewriting, and a question to the user. The question to the user is
        empty, unless the model could not resolve a reference in `question`. If the correction is
        malformed too, the rewritten question in the record and the question to the user are both
        empty. Raises `UpstreamError` and `BudgetExhausted`.
        """
        conversation = Conversation(self.role.opening(prompts.condense_request(history, question)))
        # A stop string may have cut off the first output, so the correction has no stop strings.
        for stop in (STOP, ()):
            output = await self.role.ask(conversation.messages, stop, ledger, purpose="condense")
            conversation = conversation.with_output(output)
            read = read_condensed(output.text, cut=output.finish_reason == "length")
            if read or not stop:
                break
            conversation = conversation.with_user_turn(prompts.CORRECT_CONDENSING)
        condensed, asked_back = read or ("", "")
        return Condensing(history, condensed, conversation), asked_back


def read_condensed(text: str, *, cut: bool) -> tuple[str, str] | None:
    """Return the rewritten question and the question to the user in a condenser's output; one of
    the two is empty. Return None if the output contains neither. `cut`: whether the length limit
    cut the output off.
    """
    visible = without_thinking(text)
    condensed = "" if cut else _last(visible, "question")
    asked_back = "" if condensed else _last(visible, "clarify")
    return (condensed, asked_back) if condensed or asked_back else None


def _last(text: str, tag: str) -> str:
    bodies = [one_line(block.body) for block in blocks(text, tag)]
    return bodies[-1] if bodies else ""
