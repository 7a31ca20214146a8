"""Small turns of each role, of a world that nobody knows, and whether a model takes them as the gateway reads them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from router.errors import UpstreamError
from router.models.model import Completion, Message
from router.protocol import prompts
from router.protocol.decision import Dispatch, Stop, parse_decision
from router.protocol.evidence import Passage, Report
from router.protocol.tags import blocks, without_thinking
from router.protocol.turns import ReportTurn, Search, parse_turn, turn_pattern
from router.search import answerer, delegator, executor
from router.trace.call import RoleName
from serving.live_check.cell import Cell, failed

_QUOTED_CHARS = 80


@dataclass(frozen=True, slots=True)
class Turn:
    """A question to a role, as the gateway asks it, and what has to be written then."""

    due: str
    follows: Callable[[Completion], bool]
    stop: tuple[str, ...]
    text: str
    then: tuple[Message, ...] = ()
    """What was said after `text`."""
    pattern: str | None = None


async def protocol(first: Completion, turns: tuple[Turn, ...], ask: Callable[[Turn], Awaitable[Completion]]) -> Cell:
    """Count the turns that are what was due; more than half have to be. `first`: what came of the first one. `ask`:
    gets what comes of another one; raises `UpstreamError`.
    """
    slips: list[str] = []
    unasked: list[str] = []
    for number, turn in enumerate(turns):
        try:
            said = await ask(turn) if number else first
        except UpstreamError as error:
            unasked.append(str(error.args[0]))
        else:
            if not turn.follows(said):
                slips.append(f"{turn.due} was due, but it wrote {_quoted(said.text)}")
    asked = len(turns) - len(unasked)
    word = f"{asked - len(slips)} of {asked}"
    if not slips:
        missed = f"{len(unasked)} of {len(turns)} turns could not be asked: {unasked[0]}; try again" if unasked else ""
        return Cell(not unasked, word, missed)
    advice = f"in {word} small turns it followed the protocol of its role: {slips[0]}"
    if 2 * len(slips) < asked:
        return Cell(False, word, f"{advice}; each slip costs a correction, or what was to be found")
    return failed(word, f"{advice}; it cannot do this work, so name another model, or another prompt")


def _quoted(text: str) -> str:
    """The beginning, on one line and with what a terminal would obey made visible."""
    short = text if len(text) <= _QUOTED_CHARS else f"{text[: _QUOTED_CHARS - 1]}…"
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in short)
    return f"“{shown}”" if text.strip() else "nothing"


def _decides(kind: type[Dispatch | Stop]) -> Callable[[Completion], bool]:
    def decides(said: Completion) -> bool:
        return isinstance(parse_decision(said.text, limit=8, cut=said.finish_reason == "length"), kind)

    return decides


def _executes(kind: type[Search | ReportTurn]) -> Callable[[Completion], bool]:
    def executes(said: Completion) -> bool:
        return isinstance(parse_turn(said.text, cut=said.finish_reason == "length"), kind)

    return executes


def _answers(said: Completion) -> bool:
    """More strictly than answers are read: what has no tag is taken whole, whatever it is."""
    return any(block.body for block in blocks(without_thinking(said.text), "answer"))


def _delegation(question: str, *reports: tuple[str, Report]) -> Turn:
    if not reports:
        return Turn("a <search> block", _decides(Dispatch), delegator.STOP, prompts.request(question))
    asked = "".join(f'"{sub_query}", ' for sub_query, _ in reports).rstrip(", ")
    then = Message("assistant", f"<search>[{asked}]</search>"), Message("user", prompts.search_results(reports))
    return Turn("a stop", _decides(Stop), delegator.STOP, prompts.request(question), then)


def _execution(sub_query: str, *passages: Passage) -> Turn:
    text, searched = prompts.request(sub_query), bool(passages)
    pattern = turn_pattern(searched=searched, may_search=not searched)
    if not searched:
        return Turn("a <search> block", _executes(Search), executor.STOP, text, pattern=pattern)
    then = Message("assistant", f"<search>{text}</search>"), Message("user", prompts.documents(passages, last=True))
    return Turn("an <answer> with its <evidence>", _executes(ReportTurn), executor.STOP, text, then, pattern)


def _answer(question: str, *reports: tuple[str, Report]) -> Turn:
    return Turn("an <answer>", _answers, answerer.STOP, prompts.answer_request(question, reports))


_FOUNDER = (
    "Who is the founder of Fluskaes House?",
    Report("Skilneist Pingir", ("The founder of Fluskaes House is Skilneist Pingir.",)),
)
_MOTHER = (
    "Who is the mother of Skilneist Pingir?",
    Report("Shoarbith Skeishoa", ("Skilneist Pingir had Shoarbith Skeishoa as mother.",)),
)
_LETTERS = "When was The Tarour Letters published?", Report("1747", ("The Tarour Letters was published in 1747.",))
_GARDEN = "When was The Heilchix Garden published?", Report("1826", ("In 1826, The Heilchix Garden was published.",))
_HOP = "Who is the mother of the founder of Fluskaes House?"
_COMPARISON = "Which book was published earlier, The Tarour Letters or The Heilchix Garden?"

# In the words of the demo's world, whose models know no others; to all other models these are English, too.
TURNS: dict[RoleName, tuple[Turn, ...]] = {
    "delegation": (
        _delegation(_HOP),
        _delegation(_COMPARISON),
        _delegation("In which country is the seat of the publisher of The Keiloas Winter?"),
        _delegation(_COMPARISON, _LETTERS, _GARDEN),
    ),
    "execution": (
        _execution(_FOUNDER[0]),
        _execution(_LETTERS[0]),
        _execution(
            _FOUNDER[0],
            Passage("1", "Fluskaes House", "The founder of Fluskaes House is Skilneist Pingir..", 1),
            Passage("2", "Skilneist Pingir", "The birthplace of Skilneist Pingir is Vende.", 0.5),
        ),
        _execution(
            _LETTERS[0],
            Passage("1", "The Tarour Letters", "The Tarour Letters was published in 1747.", 1),
        ),
    ),
    "answer": (
        _answer(_HOP, _FOUNDER, _MOTHER),
        _answer(_COMPARISON, _LETTERS, _GARDEN),
        _answer(*_FOUNDER[:1], _FOUNDER),
    ),
}
"""For each role, its first turn first."""
