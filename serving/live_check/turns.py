"""Small turns of each role, and whether a model takes them as the gateway reads them."""

from collections.abc import Callable
from dataclasses import dataclass

from router.models import Completion, Message
from router.protocol import Passage, Report, parse_decision, parse_turn, prompts
from router.protocol.decision import Dispatch, Stop
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import ReportTurn, SearchTurn, turn_pattern
from router.search import answerer, delegator, executor
from router.trace import RoleName


@dataclass(frozen=True, slots=True)
class ProbeTurn:
    """A question to a role, as the gateway asks it, and what has to be written then."""

    due: str
    follows: Callable[[Completion], bool]
    stop: tuple[str, ...]
    text: str
    then: tuple[Message, ...] = ()
    """The conversation after `text`."""
    pattern: str | None = None


def _decides(kind: type[Dispatch | Stop]) -> Callable[[Completion], bool]:
    return lambda said: isinstance(
        parse_decision(said.text, limit=8, cut=said.finish_reason == "length"), kind
    )


def _executes(kind: type[SearchTurn | ReportTurn]) -> Callable[[Completion], bool]:
    return lambda said: isinstance(parse_turn(said.text, cut=said.finish_reason == "length"), kind)


def _answers(completion: Completion) -> bool:
    """Return whether there is an answer tag. The gateway itself also accepts text without tags."""
    return any(block.body for block in blocks(without_thinking(completion.text), "answer"))


# In the words of the demo's world, whose models know no others; to all other models these are
# English, too.
_FOUNDER = "Who is the founder of Fluskaes House?"
_FOUNDED = "The founder of Fluskaes House is Skilneist Pingir."
_PAIRS = (
    (
        "When was The Tarour Letters published?",
        Report("1747", ("The Tarour Letters was published in 1747.",)),
    ),
    (
        "When was The Heilchix Garden published?",
        Report("1826", ("In 1826, The Heilchix Garden was published.",)),
    ),
)
_HOP = "Who is the mother of the founder of Fluskaes House?"
_COMPARISON = "Which book was published earlier, The Tarour Letters or The Heilchix Garden?"
_ASKED = (
    Message("assistant", f'<search>["{_PAIRS[0][0]}", "{_PAIRS[1][0]}"]</search>'),
    Message("user", prompts.search_results(_PAIRS)),
)
_SEARCHED = (
    Message("assistant", f"<search>{_FOUNDER}</search>"),
    Message("user", prompts.documents((Passage("1", "Fluskaes House", _FOUNDED, 1),), last=True)),
)
_LETTERS = Passage("1", "The Tarour Letters", _PAIRS[0][1].evidence[0], 1)
_READ = (
    Message("assistant", f"<search>{_PAIRS[0][0]}</search>"),
    Message("user", prompts.documents((_LETTERS,), last=True)),
)
_FIRST, _LAST = (
    turn_pattern(searched=searched, may_search=not searched) for searched in (False, True)
)
_SUB_QUERY = prompts.request(_FOUNDER)
_REPORT = "an <answer> with its <evidence>"
_PAIR = (_FOUNDER, Report("Skilneist Pingir", (_FOUNDED,)))

TURNS: dict[RoleName, tuple[ProbeTurn, ...]] = {
    "delegation": (
        ProbeTurn("a <search> block", _decides(Dispatch), delegator.STOP, prompts.request(_HOP)),
        ProbeTurn(
            "a <search> block", _decides(Dispatch), delegator.STOP, prompts.request(_COMPARISON)
        ),
        ProbeTurn("a stop", _decides(Stop), delegator.STOP, prompts.request(_COMPARISON), _ASKED),
    ),
    "execution": (
        ProbeTurn(
            "a <search> block", _executes(SearchTurn), executor.STOP, _SUB_QUERY, pattern=_FIRST
        ),
        ProbeTurn(
            "a <search> block",
            _executes(SearchTurn),
            executor.STOP,
            prompts.request(_PAIRS[0][0]),
            pattern=_FIRST,
        ),
        ProbeTurn(
            _REPORT,
            _executes(ReportTurn),
            executor.STOP,
            _SUB_QUERY,
            _SEARCHED,
            _LAST,
        ),
        ProbeTurn(
            _REPORT,
            _executes(ReportTurn),
            executor.STOP,
            prompts.request(_PAIRS[0][0]),
            _READ,
            _LAST,
        ),
    ),
    "answer": (
        ProbeTurn(
            "an <answer>", _answers, answerer.STOP, prompts.answer_request(_COMPARISON, _PAIRS)
        ),
        ProbeTurn(
            "an <answer>", _answers, answerer.STOP, prompts.answer_request(_FOUNDER, [_PAIR])
        ),
    ),
}
"""For each role, its first turn first."""
