"""Small turns of each role, and whether a model takes them as the gateway reads them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from router.models import Completion, Message
from router.protocol import Passage, Report, parse_decision, parse_turn, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import ReportTurn, SearchTurn, turn_pattern
from router.search import answerer, delegator, executor
from router.trace import RoleName


class ProbeTurn(NamedTuple):
    """A question to a role, as the gateway asks it, and the kind of turn that is due."""

    due: type
    text: str
    then: tuple[Message, ...] = ()
    """The conversation after `text`."""

    def pattern(self, name: RoleName) -> str | None:
        """Return the pattern that structured output is held to."""
        if name != "execution":
            return None
        return turn_pattern(searched=bool(self.then), may_search=not self.then)

    def follows(self, name: RoleName, completion: Completion) -> bool:
        """Return whether a role's output is the turn that is due."""
        cut = completion.finish_reason == "length"
        return isinstance(_READERS[name](completion.text, cut=cut), self.due)


def _answer(text: str, **_cut: bool) -> str | None:
    """Return the text of the answer tag. The gateway itself also accepts text without tags."""
    answers = blocks(without_thinking(text), "answer")
    return next((block.body for block in answers if block.body), None)


_READERS: dict[RoleName, Callable[..., object]] = {
    "delegation": partial(parse_decision, limit=8),
    "execution": parse_turn,
    "answer": _answer,
}
STOPS: dict[RoleName, tuple[str, ...]] = {
    "delegation": delegator.STOP,
    "execution": executor.STOP,
    "answer": answerer.STOP,
}
DUE = {
    Dispatch: "a <search> block",
    SearchTurn: "a <search> block",
    Stop: "a stop",
    ReportTurn: "an <answer> with its <evidence>",
    str: "an <answer>",
}
"""Kinds of turns in words."""

# In the words of the demo's world, whose models know no others; to all other models these are
# English, too.
_FOUNDER = "Who is the founder of Fluskaes House?"
_FOUNDED = "The founder of Fluskaes House is Skilneist Pingir."
_LETTERS = "When was The Tarour Letters published?"
_GARDEN = "When was The Heilchix Garden published?"
_PAIRS = (
    (_LETTERS, Report("1747", ("The Tarour Letters was published in 1747.",))),
    (_GARDEN, Report("1826", ("In 1826, The Heilchix Garden was published.",))),
)
_HOP = prompts.request("Who is the mother of the founder of Fluskaes House?")
_BOOKS = "Which book was published earlier, The Tarour Letters or The Heilchix Garden?"
_COMPARISON = prompts.request(_BOOKS)
_ASKED = (
    Message("assistant", f'<search>["{_LETTERS}", "{_GARDEN}"]</search>'),
    Message("user", prompts.search_results(_PAIRS)),
)


def _read(sub_query: str, title: str, sentence: str) -> ProbeTurn:
    """Return an executor's turn after its search."""
    passages = (Passage("1", title, sentence, 1),)
    searched = (
        Message("assistant", f"<search>{sub_query}</search>"),
        Message("user", prompts.documents(passages, last=True)),
    )
    return ProbeTurn(ReportTurn, prompts.request(sub_query), searched)


TURNS: dict[RoleName, tuple[ProbeTurn, ...]] = {
    "delegation": (
        ProbeTurn(Dispatch, _HOP),
        ProbeTurn(Dispatch, _COMPARISON),
        ProbeTurn(Stop, _COMPARISON, _ASKED),
    ),
    "execution": (
        ProbeTurn(SearchTurn, prompts.request(_FOUNDER)),
        ProbeTurn(SearchTurn, prompts.request(_LETTERS)),
        _read(_FOUNDER, "Fluskaes House", _FOUNDED),
        _read(_LETTERS, "The Tarour Letters", _PAIRS[0][1].evidence[0]),
    ),
    "answer": (
        ProbeTurn(str, prompts.answer_request(_BOOKS, _PAIRS)),
        ProbeTurn(
            str,
            prompts.answer_request(_FOUNDER, [(_FOUNDER, Report("Skilneist Pingir", (_FOUNDED,)))]),
        ),
    ),
}
"""For each role, its first turn first."""
