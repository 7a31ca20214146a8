"""The judge: whether an answer says what a right answer says (TBSS 3.4 and appendix B)."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

from router.ledger import Ledger
from router.markup import blocks, element, one_line, without_thinking
from router.role import Role

_VERDICTS = {"correct": True, "true": True, "yes": True, "incorrect": False, "false": False, "no": False}
_AROUND = string.punctuation + string.whitespace + "“”‘’"


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares answers by their meaning, in a context that holds nothing else."""

    role: Role

    async def accepts(
        self, question: str, golds: Sequence[str], answer: str, ledger: Ledger, evidence: Sequence[str] = ()
    ) -> bool | None:
        """Whether `answer` is right; None where the reply cannot be read. `evidence`: what it rests on, to go by where
        `golds` is empty. Raises `UpstreamError`.
        """
        known = [element("right_answer", gold) for gold in golds] or [element("evidence", point) for point in evidence]
        shown = f"{element('question', question)}{''.join(known)}{element('answer', answer)}"
        output = await self.role.ask(self.role.opening(shown), (), ledger)
        return None if output.finish_reason == "length" else parse_verdict(output.text)


def parse_verdict(text: str) -> bool | None:
    """The verdict in a judge's reply: in `<verdict>`, closed, or as the whole reply, one word that says yes or no.

    None for everything else, "not true" and verdicts that differ included. Never raises, in linear time.
    """
    visible = without_thinking(text)
    said = [block.body for block in blocks(visible, "verdict") if block.closed] or [visible]
    verdicts = {_VERDICTS.get(one_line(words).strip(_AROUND).casefold()) for words in said}
    return verdicts.pop() if len(verdicts) == 1 else None
