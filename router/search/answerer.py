"""The answerer, which writes the answer from the question and the executors' reports alone (TBSS
3.1), and the judge, which decides whether an answer is right.
"""

import re
import string
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from router.calls import Role
from router.calls.attempts import OnText
from router.errors import BudgetExhausted, ContextTooLong
from router.frozen import Frozen
from router.ledger import Ledger
from router.models import Message
from router.protocol import Report, prompts
from router.protocol.style import DEFAULT_STYLE, AnswerStyle
from router.protocol.tags import Malformed, blocks, element, one_line, without_thinking
from router.protocol.turns import read_answer
from router.trace import Conversation, Execution

STOP = ("</answer>",)


class Answerer(Frozen):
    """The role that writes the answer. It is shown only the question, the sub-queries and their
    reports: no reasoning and no passages.
    """

    role: Role
    stop: tuple[str, ...] = STOP

    def styled(self, style: AnswerStyle) -> "Answerer":
        """Return an answerer whose prompt and output limit are adapted to `style`."""
        if style == DEFAULT_STYLE:
            return self
        return replace(
            self, role=self.role.limited(style.max_answer_tokens).with_system(style.system)
        )

    async def answer(
        self,
        question: str,
        executions: Sequence[Execution],
        ledger: Ledger,
        on_text: OnText | None = None,
    ) -> tuple[str | Malformed, Conversation]:
        """Return the answer and the conversation. If the output contains no answer, the model is
        asked once for a correction, unless the budget or the model's context is too small for that.
        Return `Malformed` instead of the answer if the model has not written any. `on_text`: see
        `OnText`. Raises `UpstreamError` and `BudgetExhausted`.
        """
        pairs = [(execution.sub_query, execution.report) for execution in executions]
        messages = self.messages(question, pairs)
        output = await self.role.ask(messages, self.stop, ledger, on_text=on_text)
        answer = read_answer(output.text)
        if not isinstance(answer, Malformed):
            return answer, Conversation(messages, (output,))

        asked = Conversation(messages).with_output(output).with_user_turn(prompts.CORRECT_ANSWER)
        with suppress(BudgetExhausted, ContextTooLong):
            output = await self.role.ask(
                asked.messages, self.stop, ledger, purpose="correction", on_text=on_text
            )
            asked = Conversation(asked.messages, (*asked.outputs, output))
        return read_answer(output.text), asked

    def messages(self, question: str, pairs: Sequence[tuple[str, Report]]) -> tuple[Message, ...]:
        """Return the messages that ask for an answer to `question`. `pairs`: sub-queries, each with
        its report.
        """
        return self.role.opening(prompts.answer_request(question, pairs))


_YES = ("correct", "true", "yes")
_NO = ("incorrect", "false", "no")
_CORRECT = re.compile(r"^\W{0,4}correct\W{0,4}:(.*)", re.IGNORECASE | re.MULTILINE)
"""Matches a line such as `correct: yes`, the form of verdicts in the benchmark BrowseComp (Wei et
al., 2025).
"""
_AROUND = string.punctuation + string.whitespace + "“”‘’"


class Judge(Frozen):
    """The role that decides whether an answer means the same as one of the right answers. Each
    decision is a new conversation with the model.
    """

    role: Role

    async def accepts(
        self,
        question: str,
        golds: Sequence[str],
        answer: str,
        ledger: Ledger,
        evidence: Sequence[str] = (),
    ) -> bool | None:
        """Return whether `answer` is a right answer to `question`; None if the judge's reply cannot
        be parsed.

        `golds`: the right answers. `evidence`: sentences with which the judge compares `answer` if
        `golds` is empty. Raises `UpstreamError`.
        """
        known = [element("right_answer", gold) for gold in golds]
        if not golds:
            known = [element("evidence", point) for point in evidence]
        shown = f"{element('question', question)}{''.join(known)}{element('answer', answer)}"
        output = await self.role.ask(self.role.opening(shown), (), ledger)
        return None if output.finish_reason == "length" else parse_verdict(output.text)


def parse_verdict(text: str) -> bool | None:
    """Return the verdict in a judge's reply. It is one of the words in `_YES` or `_NO`: within
    `<verdict>` and `</verdict>`, in a line `correct: yes`, or as the whole reply.

    Return None for every other reply, including "not true" and contradictory verdicts. Never
    raises, and takes linear time.
    """
    visible = without_thinking(text)
    tagged = [block.body for block in blocks(visible, "verdict") if block.closed]
    candidates = tagged or _CORRECT.findall(visible) or [visible]
    words = {one_line(candidate).strip(_AROUND).casefold() for candidate in candidates}
    if words.issubset(_YES):
        return True
    return False if words.issubset(_NO) else None
