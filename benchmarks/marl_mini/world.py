"""The worlds of `rolegate bench marl-mini`, and the runs of a lead and its readers on them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from router.frozen import Frozen

PAGES = 8
_TOPICS = 6
_ITEMS = 32
_LEAD, _READ, STOP, _SEEN, _NONE = range(5)
"""Special tokens: beginning of a lead's prompt, beginning of a reader's prompt, end of a turn, mark
of a page that already has a reader, and padding of a reader's prompt.
"""
_TOPIC = 5
_PAGE = _TOPIC + _TOPICS
_ITEM = _PAGE + PAGES
VOCABULARY = _ITEM + _ITEMS
"""Size of the vocabulary. The tokens of topics, pages and items begin at `_TOPIC`, `_PAGE` and
`_ITEM`.
"""
_LINES = 6
"""Number of lines of a page. A line is a pair of a topic and an item."""
PROMPT_TOKENS = 2 + 2 * PAGES
MAX_TOKENS = 6
"""Max tokens of a turn, including `STOP`, the token that ends it."""


class World(Frozen):
    """Pages, and the topic whose items are wanted."""

    wanted: int
    topics: tuple[int, ...]
    """Topic of each page."""
    lines: tuple[tuple[tuple[int, int], ...], ...]
    """Lines of each page, as pairs (topic, item)."""

    @classmethod
    def made(cls, rng: Random) -> "World":
        """Return a random world in which three to five pages have the wanted topic."""
        wanted = rng.randrange(_TOPICS)
        others = [topic for topic in range(_TOPICS) if topic != wanted]
        count = rng.randint(3, 5)
        topics = [wanted] * count + rng.choices(others, k=PAGES - count)
        rng.shuffle(topics)
        items = rng.sample(range(_ITEMS), _ITEMS)
        lines = []
        for topic in topics:
            own = rng.randint(2, 3)
            of_line = [topic] * own
            of_line += rng.choices([other for other in others if other != topic], k=_LINES - own)
            rng.shuffle(of_line)
            page = []
            for line_topic in of_line:
                wanted_line = line_topic == topic
                page.append((line_topic, items.pop() if wanted_line else rng.randrange(_ITEMS)))
            lines.append(tuple(page))
        return cls(wanted, tuple(topics), tuple(lines))

    @property
    def gold(self) -> set[int]:
        """The right items: those of the wanted topic, on pages of that topic."""
        pages = zip(self.topics, self.lines, strict=True)
        own = [lines for topic, lines in pages if topic == self.wanted]
        return {item for lines in own for topic, item in lines if topic == self.wanted}

    def lead_prompt(self, seen: Sequence[int]) -> list[int]:
        """Return the prompt of the lead. `seen`: pages that already have a reader."""
        shown = [
            _SEEN if page in seen else _TOPIC + topic for page, topic in enumerate(self.topics)
        ]
        pages = [token for page, topic in enumerate(shown) for token in (_PAGE + page, topic)]
        return [_LEAD, _TOPIC + self.wanted, *pages]

    def reader_prompt(self, page: int) -> list[int]:
        """Return the prompt of a reader, padded to the length of a lead's prompt."""
        lines = [
            token for topic, item in self.lines[page] for token in (_TOPIC + topic, _ITEM + item)
        ]
        prompt = [_READ, _TOPIC + self.wanted, *lines]
        return prompt + [_NONE] * (PROMPT_TOKENS - len(prompt))


class Turn(NamedTuple):
    """A turn that an agent wrote."""

    role: str
    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]
    """Log-probabilities of the tokens when they were sampled."""


@dataclass(slots=True)
class Run:
    """A run on a world: the turns of the lead and of the readers."""

    world: World
    lead: list[Turn]
    readers: list[tuple[int, Turn]]
    """Pairs (page, turn)."""

    @property
    def dispatched(self) -> list[int]:
        """The pages to which readers were dispatched."""
        return [page for page, _ in self.readers]

    @property
    def f1(self) -> float:
        """F1 of the reported items against `World.gold`."""
        gold = self.world.gold
        tokens = (token for _, turn in self.readers for token in turn.tokens)
        reported = {token - _ITEM for token in tokens if token >= _ITEM}
        return 2 * len(reported & gold) / (len(reported) + len(gold))

    @property
    def useful_readers(self) -> int:
        """Number of pages of the wanted topic that have a reader."""
        return sum(self.world.topics[page] == self.world.wanted for page in {*self.dispatched})

    @property
    def agents(self) -> list[list[Turn]]:
        """The turns of each agent: the lead, then the readers."""
        return [self.lead, *([turn] for _, turn in self.readers)]


def pages_in(turn: Turn) -> list[int]:
    """Return the pages that a lead's turn names."""
    return [token - _PAGE for token in turn.tokens if _PAGE <= token < _ITEM]


def careless(rng: Random) -> Iterator[Turn]:
    """Yield turns about random worlds, endlessly, to train the start model. The lead names too few
    pages and some wrong pages, and readers leave out items and report wrong items.
    """
    while True:
        world = World.made(rng)
        seen = rng.sample(range(PAGES), rng.choice([0, 0, 2, 4]))
        wanted = [
            page
            for page, topic in enumerate(world.topics)
            if page not in seen and rng.random() < (0.5 if topic == world.wanted else 0.15)
        ]
        yield _taught("delegation", world.lead_prompt(seen), [_PAGE + page for page in wanted])
        page = rng.randrange(PAGES)
        items = [
            _ITEM + item
            for topic, item in world.lines[page]
            if rng.random() < (0.6 if topic == world.wanted else 0.15)
        ]
        yield _taught("execution", world.reader_prompt(page), items)


def _taught(role: str, prompt: list[int], tokens: list[int]) -> Turn:
    written = [*tokens[: MAX_TOKENS - 1], STOP]
    return Turn(role, prompt, written, [0.0] * len(written))
