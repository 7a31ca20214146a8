"""Multi-agent reinforcement learning in miniature: a lead and its readers share a model of about
60,000 parameters, and learn by the same weights and loss as `rolegate sft reinforce`.

A world has eight pages, each with a topic and some items. The lead is shown the topics of the pages
and the wanted topic, and dispatches readers to pages, in two turns. Each reader is shown its page,
and reports items. The run's reward is the F1 of all reported items against those of the wanted
topic. The start is a model that was taught to do so carelessly, so that it explores.

Every variant trains from the same start, with its own seeds; the variants and what they change are
in `VARIANTS`. Two of them learn from the best of eight runs instead, with as many runs in all.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from benchmarks import harness
from executor_sft.command import Count
from executor_sft.reinforcement.recipe import ObjectiveRecipe
from executor_sft.reinforcement.weights import (
    AgentTurns,
    WeightRecipe,
    advantages,
    token_shares,
    token_weights,
)
from serving.dependencies import need
from serving.files import replacing
from serving.terminal import progress_bar

if TYPE_CHECKING:
    from benchmarks.marl_mini_model import TinyModel

PAGES = 8
TOPICS = 6
ITEMS = 32
LEAD, READ, STOP, SEEN, NONE = range(5)
"""Tokens that begin a lead's and a reader's prompt, end a turn, mark a page as dispatched, and fill
a reader's prompt.
"""
_TOPIC = 5
_PAGE = _TOPIC + TOPICS
_ITEM = _PAGE + PAGES
VOCABULARY = _ITEM + ITEMS
"""Tokens of topics, pages and items begin at `_TOPIC`, `_PAGE` and `_ITEM`."""
_LINES = 6
"""Lines of a page: pairs of a topic and an item."""
_LEAD_TURNS = 2
_MAX_TOKENS = {"delegation": 6, "execution": 6}
"""Max tokens of a turn of each role, with the token that ends it."""
_GROUP = 8
_SHOWN = 10
"""Steps between two points of the picture."""


class Variant(msgspec.Struct, frozen=True):
    """One way to train."""

    weights: WeightRecipe = WeightRecipe()
    roles: tuple[str, ...] = ("delegation", "execution")
    """The roles that are trained."""
    cost: float = 0.0
    """Taken off a run's reward for each reader."""
    rounds: int = 0
    """If not 0, learn from the best run of each group, in this many rounds, by imitation."""


VARIANTS = {
    "Eq. 1": Variant(),
    "agents: none": Variant(WeightRecipe(agents="none")),
    "agents: role": Variant(WeightRecipe(agents="role")),
    "tokens: turn": Variant(WeightRecipe(tokens="turn")),
    "tokens: all": Variant(WeightRecipe(tokens="all")),
    "cost 0.01": Variant(cost=0.01),
    "lead only": Variant(roles=("delegation",)),
    "readers only": Variant(roles=("execution",)),
    "best of 8, one round": Variant(rounds=1),
    "best of 8, four rounds": Variant(rounds=4),
}


class Options(harness.Options, frozen=True, kw_only=True):
    """Options of the benchmark."""

    seeds: Count = 5
    """trainings of each variant, each with another seed"""
    steps: Count = 80
    """steps of a training, of 64 runs each"""
    rate: Annotated[float, Meta(gt=0)] = 1e-3
    """learning rate"""
    variants: tuple[str, ...] = tuple(VARIANTS)
    """variants to train (default: all)"""
    picture: Path | None = None
    """write a picture of reward and readers over the steps to this PNG file"""


class Scores(msgspec.Struct, frozen=True):
    """Figures of a model on worlds that it was not trained on."""

    f1: float
    """Mean F1 at temperature 1."""
    greedy_f1: float
    readers: float
    """Mean readers of a run at temperature 1."""
    useful: float
    """Share of the readers whose page has the topic, and that were dispatched to it first."""


class VariantScores(msgspec.Struct, frozen=True):
    """Means of a variant over its seeds, and the range of its F1."""

    variant: str
    f1: float
    lowest: float
    highest: float
    greedy_f1: float
    readers: float
    useful: float


class Figures(msgspec.Struct, frozen=True):
    """Figures of the start and of all variants."""

    parameters: int
    runs: int
    """Runs of a training."""
    cpu_s: float
    scores: list[VariantScores]


@dataclass(frozen=True, slots=True)
class World:
    """Pages, and the topic whose items are wanted."""

    wanted: int
    topics: tuple[int, ...]
    """Topic of each page."""
    lines: tuple[tuple[tuple[int, int], ...], ...]
    """Lines of each page: pairs of a topic and an item."""

    @classmethod
    def made(cls, rng: Random) -> "World":
        """Make a world in which three to five pages have the wanted topic."""
        wanted = rng.randrange(TOPICS)
        others = [topic for topic in range(TOPICS) if topic != wanted]
        count = rng.randint(3, 5)
        topics = [wanted] * count + rng.choices(others, k=PAGES - count)
        rng.shuffle(topics)
        items = rng.sample(range(ITEMS), ITEMS)
        lines = []
        for topic in topics:
            own = rng.randint(2, 3)
            of_line = [topic] * own
            of_line += rng.choices([other for other in others if other != topic], k=_LINES - own)
            rng.shuffle(of_line)
            page = [(one, items.pop() if one == topic else rng.randrange(ITEMS)) for one in of_line]
            lines.append(tuple(page))
        return cls(wanted, tuple(topics), tuple(lines))

    @property
    def gold(self) -> set[int]:
        """The items of the wanted topic on pages of that topic."""
        pages = zip(self.topics, self.lines, strict=True)
        own = [lines for topic, lines in pages if topic == self.wanted]
        return {item for lines in own for topic, item in lines if topic == self.wanted}

    def lead_prompt(self, seen: Sequence[int]) -> list[int]:
        """Return the prompt of the lead. `seen`: pages that have been dispatched."""
        shown = [
            SEEN if page in seen else _TOPIC + topic for page, topic in enumerate(self.topics)
        ]
        pages = [token for page, topic in enumerate(shown) for token in (_PAGE + page, topic)]
        return [LEAD, _TOPIC + self.wanted, *pages]

    def reader_prompt(self, page: int) -> list[int]:
        """Return the prompt of a reader, as long as that of a lead."""
        lines = [token for topic, item in self.lines[page] for token in (_TOPIC + topic, _ITEM + item)]
        prompt = [READ, _TOPIC + self.wanted, *lines]
        return prompt + [NONE] * (2 + 2 * PAGES - len(prompt))


class Turn(NamedTuple):
    """A turn that an agent wrote."""

    role: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    """Of the tokens, when they were sampled."""


@dataclass(slots=True)
class Run:
    """A run on a world."""

    world: World
    lead: list[Turn]
    readers: list[tuple[int, Turn]]
    """Each with its page."""

    @property
    def dispatched(self) -> list[int]:
        """The pages to which readers were dispatched."""
        return [page for page, _ in self.readers]

    @property
    def f1(self) -> float:
        """F1 of the reported items."""
        gold = self.world.gold
        tokens = (token for _, turn in self.readers for token in turn.tokens)
        reported = {token - _ITEM for token in tokens if token >= _ITEM}
        return 2 * len(reported & gold) / (len(reported) + len(gold))

    @property
    def agents(self) -> list[list[Turn]]:
        """The turns of each agent: the lead, then the readers."""
        return [self.lead, *([turn] for _, turn in self.readers)]


def pages_in(turn: Turn) -> list[int]:
    """Return the pages that a lead's turn names."""
    return [token - _PAGE for token in turn.tokens if _PAGE <= token < _ITEM]


def rolled_out(model: "TinyModel", worlds: Sequence[World], rng: Random, *, greedy: bool = False) -> list[Run]:
    """Run each world once; all agents of a turn write together."""
    runs = [Run(world, [], []) for world in worlds]
    write = partial(model.write, rng=rng, greedy=greedy)
    for _ in range(_LEAD_TURNS):
        prompts = [run.world.lead_prompt(run.dispatched) for run in runs]
        readings: list[tuple[Run, int]] = []
        for run, turn in zip(runs, write("delegation", prompts), strict=True):
            run.lead.append(turn)
            readings += [(run, page) for page in pages_in(turn)]
        prompts = [run.world.reader_prompt(page) for run, page in readings]
        for (run, page), turn in zip(readings, write("execution", prompts), strict=True):
            run.readers.append((page, turn))
    return runs


def careless(rng: Random) -> Iterator[Turn]:
    """Yield turns as the start writes them: the lead names too few pages and some wrong ones, and
    readers leave out items and report others.
    """
    while True:
        world = World.made(rng)
        seen = rng.sample(range(PAGES), rng.choice([0, 0, 2, 4]))
        wanted = [
            page for page, topic in enumerate(world.topics)
            if page not in seen and rng.random() < (0.5 if topic == world.wanted else 0.15)
        ]
        yield _taught("delegation", world.lead_prompt(seen), [_PAGE + page for page in wanted])
        page = rng.randrange(PAGES)
        items = [
            _ITEM + item for topic, item in world.lines[page]
            if rng.random() < (0.6 if topic == world.wanted else 0.15)
        ]
        yield _taught("execution", world.reader_prompt(page), items)


def _taught(role: str, prompt: list[int], tokens: list[int]) -> Turn:
    written = [*tokens[: _MAX_TOKENS[role] - 1], STOP]
    return Turn(role, prompt, written, [0.0] * len(written))


def groups_of(rng: Random) -> list[World]:
    """Return the worlds of a step: each of eight worlds eight times."""
    return [world for _ in range(8) for world in [World.made(rng)] * _GROUP]


def reinforce(model: "TinyModel", variant: Variant, runs: Sequence[Run], objective: ObjectiveRecipe) -> None:
    """Make one update from the runs of a step, group after group."""
    of_runs: list[float] = []
    for start in range(0, len(runs), _GROUP):
        rewards = [run.f1 - variant.cost * len(run.readers) for run in runs[start : start + _GROUP]]
        of_runs += advantages(rewards)
    trained = [[agent for agent in run.agents if agent[0].role in variant.roles] for run in runs]
    agents = [
        [AgentTurns(agent[0].role, tuple(len(turn.tokens) for turn in agent)) for agent in run]
        for run in trained
    ]
    weights = token_weights(token_shares(agents, variant.weights), of_runs)
    turns = [turn for run in trained for agent in run for turn in agent]
    of_turns = [weight for run in weights for agent in run for weight in agent]
    model.update(turns, of_turns, objective)


def best_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the best run of each group that is better than another run of it."""
    groups = [runs[start : start + _GROUP] for start in range(0, len(runs), _GROUP)]
    best = [max(group, key=lambda run: (run.f1, -len(run.readers))) for group in groups]
    worst = [min(run.f1 for run in group) for group in groups]
    return [run for run, low in zip(best, worst, strict=True) if run.f1 > low]
