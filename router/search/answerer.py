"""The answerer: the answer, from the question and the reports alone (TBSS 3.1)."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from router.amount import NOTHING, Amount
from router.calls import Role
from router.ledger import Ledger
from router.models import Message
from router.protocol import Report, prompts
from router.protocol.tags import blocks, element, one_line, without_thinking
from router.protocol.turns import parse_answer
from router.trace import Conversation, Execution

STOP = ("</answer>",)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Sees no reasoning, no trajectories and no passages."""

    role: Role
    stop: tuple[str, ...] = STOP

    async def answer(
        self, question: str, executions: Sequence[Execution], ledger: Ledger
    ) -> tuple[str, Conversation]:
        """The answer, possibly empty, and the call behind it."""
        messages = self._messages(
            question, [(execution.sub_query, execution.report) for execution in executions]
        )
        output = await self.role.ask(messages, self.stop, ledger)
        return parse_answer(output.text), Conversation(messages, (output,))

    async def reserve_for_answer(
        self,
        question: str,
        pairs: Sequence[tuple[str, Report]],
        coming_tokens: int,
        ledger: Ledger,
        beside: Amount = NOTHING,
    ) -> None:
        """Keep back what answering from these pairs, and from `coming_tokens` tokens more, may cost
        at most; where they hold no evidence yet, for a short answer, so that there is more to find
        some with. `beside`: kept as well. Raises `BudgetExhausted` and `StoreFailed`.
        """
        nothing_yet = not any(report.evidence for _, report in pairs)
        messages = self._messages(question, pairs)
        await self.role.reserve_for_answer(
            messages, coming_tokens, ledger, least=nothing_yet, beside=beside
        )

    def _messages(self, question: str, pairs: Sequence[tuple[str, Report]]) -> tuple[Message, ...]:
        return self.role.opening(prompts.answer_request(question, pairs))


_VERDICTS = {
    "correct": True,
    "true": True,
    "yes": True,
    "incorrect": False,
    "false": False,
    "no": False,
}
_AROUND = string.punctuation + string.whitespace + "“”‘’"


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares answers by their meaning, in a context that holds nothing else."""

    role: Role

    async def accepts(
        self,
        question: str,
        golds: Sequence[str],
        answer: str,
        ledger: Ledger,
        evidence: Sequence[str] = (),
    ) -> bool | None:
        """Judge whether `answer` is right; None where the reply cannot be read. `evidence`: what it
        rests on, to go by where `golds` is empty. Raises `UpstreamError`.
        """
        known = [element("right_answer", gold) for gold in golds] or [
            element("evidence", point) for point in evidence
        ]
        shown = f"{element('question', question)}{''.join(known)}{element('answer', answer)}"
        output = await self.role.ask(self.role.opening(shown), (), ledger)
        return None if output.finish_reason == "length" else parse_verdict(output.text)


def parse_verdict(text: str) -> bool | None:
    """The verdict in a judge's reply: in `<verdict>`, closed, or as the whole reply, one word that
    says yes or no.

    None for everything else, "not true" and verdicts that differ included. Never raises, in linear
    time.
    """
    visible = without_thinking(text)
    said = [block.body for block in blocks(visible, "verdict") if block.closed] or [visible]
    verdicts = {_VERDICTS.get(one_line(words).strip(_AROUND).casefold()) for words in said}
    return verdicts.pop() if len(verdicts) == 1 else None
