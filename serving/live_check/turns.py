"""Probe turns: small requests to the model of each role. They show whether the model's output has
the format that the role needs.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from router.models import Completion, Message
from router.protocol import Passage, Report, parse_decision, parse_turn, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import ReportTurn, SearchTurn, turn_pattern
from router.search import answerer, condenser, delegator, executor


class ProbeTurn(NamedTuple):
    """The beginning of a conversation that the gateway could have with a role's model, and the kind
    of output that the model must write next.
    """

    due: type
    """Type of the output after parsing, if the output has the right format."""
    text: str
    """The first user message."""
    then: tuple[Message, ...] = ()
    """The messages after the first user message."""

    def pattern(self, name: str) -> str | None:
        """Return the regular expression for structured outputs of the role `name`; None if this
        role never uses structured outputs.
        """
        if name != "execution":
            return None
        return turn_pattern(searched=bool(self.then), may_search=not self.then)

    def follows(self, name: str, completion: Completion) -> bool:
        """Return True if an output of the role `name` has the format that is due."""
        cut = completion.finish_reason == "length"
        return isinstance(PROTOCOLS[name][0](completion.text, cut=cut), self.due)


def _answer(text: str, **_cut: bool) -> str | None:
    """Return the text of the first <answer> element that is not empty; None if there is no such
    element. This is stricter than the gateway, which also accepts text without tags.
    """
    answers = blocks(without_thinking(text), "answer")
    return next((block.body for block in answers if block.body), None)


PROTOCOLS: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "delegation": (partial(parse_decision, limit=8), delegator.STOP),
    "execution": (parse_turn, executor.STOP),
    "answer": (_answer, answerer.STOP),
    "condenser": (condenser.read_condensed, condenser.STOP),
}
"""The parser of outputs, and the stop strings of calls, by role."""
DUE = {
    Dispatch: "a <search> block",
    SearchTurn: "a <search> block",
    Stop: "a stop",
    ReportTurn: "an <answer> with its <evidence>",
    str: "an <answer>",
    tuple: "a <question>, or a <clarify>,",
}
"""Descriptions of the expected outputs, for messages. The keys are the types of the parsed outputs.
"""

# The questions use only words and names of the demo's corpus, because the demo's models know no
# others. For all other models, they are plain English.
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
    """Return a probe turn in which an executor must write its report. The executor's search has
    found a single passage with the text `sentence`, in a document with the title `title`.
    """
    passages = (Passage("1", title, sentence, 1),)
    searched = (
        Message("assistant", f"<search>{sub_query}</search>"),
        Message("user", prompts.documents(passages, last=True)),
    )
    return ProbeTurn(ReportTurn, prompts.request(sub_query), searched)


TURNS: dict[str, tuple[ProbeTurn, ...]] = {
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
    "condenser": (
        ProbeTurn(
            tuple,
            prompts.condense_request(
                (Message("user", _LETTERS), Message("assistant", "1747")),
                "What about The Heilchix Garden?",
            ),
        ),
    ),
}
"""Probe turns of each role. The first turn also shows whether the model can be reached."""
