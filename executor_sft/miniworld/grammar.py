"""An open-ended language of questions: nested relations in shapes, wordings and asides, of which some are never trained
on. A question is a tree of relations over names; each relation can be worded in several ways, which nest in each other.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from executor_sft.miniworld.world import Side, side_of

_RELATIONS = """
person father sire > person | person mother dam > person | person spouse partner > person
person teacher tutor > person | person rival opponent > person | person birthplace hometown > city
person employer paymaster > firm | person debut firstling > book | city country nation > land
city mayor provost > person | city newspaper gazette > firm | firm founder creator > person
firm seat headquarters > city | firm owner proprietor > person | book author writer > person
book publisher press > firm | book hero protagonist > person | book setting scene > city
land capital metropolis > city | land ruler monarch > person
person+person child offspring > person | person+person mediator arbiter > person | city+city midpoint halfway > city
firm+firm merger union > firm | book+book source archetype > book | land+land treaty pact > book
land+land alliance league > land
"""
_FORMS = {
    1: {
        "of": "the {n} of {x}",
        "genitive": "{x}'s {n}",
        "has": "the one that {x} has as {n}",
        "to": "the one who is {n} to {x}",
    },
    2: {
        "of": "the {n} of both {x} and {y}",
        "has": "the one that both {x} and {y} have as {n}",
        "to": "the one who is {n} to both {x} and {y}",
    },
}
_FRAMES = ("What is {}?", "Name {}.", "Tell me {}.", "Which one is {}?", "I look for {}.", "Find {}.")
_ASIDES = {"front": "{opener} {aside}: {text}", "name": "{text} ({opener} {aside})", "end": "{text}; {opener} {aside}"}
_OPENERS = ("not", "unlike", "rather than", "apart from", "instead of", "let alone")
_MOST_RELATIONS, _MOST_ROUNDS = 4, 3


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of one or of two things of a kind."""

    name: str
    synonym: str
    subject: str
    subjects: int
    value: str


def _relations() -> Iterator[Relation]:
    for line in _RELATIONS.replace(" | ", "\n").split("\n"):
        if line:
            subjects, name, synonym, _, value = line.split()
            kind, *others = subjects.split("+")
            yield Relation(name, synonym, kind, 1 + len(others), value)


RELATIONS = tuple(_relations())
Shape = tuple["Shape", ...]
"""How relations nest: a name is (), a relation the shapes of its one or two subjects."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A name, or a relation of trees."""

    name: str = ""
    relation: Relation | None = None
    subjects: tuple["Tree", ...] = ()

    @property
    def height(self) -> int:
        """Rounds that it takes to find it: 0 for a name."""
        return 1 + max(subject.height for subject in self.subjects) if self.subjects else 0


def size(shape: Shape) -> int:
    """Relations in it."""
    return bool(shape) + sum(map(size, shape))


def _shapes(rounds: int) -> set[Shape]:
    below = _shapes(rounds - 1) if rounds else set()
    return {(), *((one,) for one in below), *product(below, below)}


SHAPES = tuple(sorted(shape for shape in _shapes(_MOST_ROUNDS) if 2 <= size(shape) <= _MOST_RELATIONS))


def held_out(*parts: object, one_of: int) -> bool:
    """Whether this shape, wording or aside is kept for tests, as one of so many is."""
    return all(side_of(f"{part}/{parts}") == "test" for part in range(one_of.bit_length() - 1))


SHAPES_OF: dict[Side, tuple[Shape, ...]] = {
    "train": tuple(shape for shape in SHAPES if not held_out(shape, one_of=2)),
    "test": tuple(shape for shape in SHAPES if held_out(shape, one_of=2)),
}


class Phrasing:
    """Words trees at random, in training by what is not held out."""

    def __init__(self, rng: random.Random, side: Side) -> None:
        self._rng, self._side = rng, side
        self.novel = 0
        """Held-out wordings that were used so far."""

    def question(self, tree: Tree, asides: Sequence[Tree]) -> str:
        """A question for `tree` that mentions `asides`, too, which it does not ask for, each at another place."""
        placed = dict(zip(self._rng.sample(list(_ASIDES), len(asides)), asides, strict=True))
        text = self._rng.choice(_FRAMES).format(self._phrase(tree, placed))
        for place in ("front", "end"):
            text = self._beside(text, place, placed)
        return text[:1].upper() + text[1:]

    def _phrase(self, tree: Tree, placed: Mapping[str, Tree]) -> str:
        """A noun phrase; an aside that belongs to a name stands at the first one."""
        if tree.relation is None:
            return self._beside(tree.name, "name", placed)
        phrases = [self._phrase(subject, {} if number else placed) for number, subject in enumerate(tree.subjects)]
        forms = _FORMS[len(phrases)]
        plain = not phrases[0].startswith("the ") and "(" not in phrases[0]
        noun, form = self._chosen(
            (tree.relation.name, noun, form)
            for noun, form in product((tree.relation.name, tree.relation.synonym), forms)
            if plain or form != "genitive"
        )
        return forms[form].format(n=noun, x=phrases[0], y=phrases[-1])

    def _beside(self, text: str, place: str, placed: Mapping[str, Tree]) -> str:
        if place not in placed:
            return text
        opener, _ = self._chosen(("aside", opener, place) for opener in _OPENERS)
        return _ASIDES[place].format(opener=opener, aside=self._phrase(placed[place], {}), text=text)

    def _chosen(self, wordings: Iterable[tuple[str, str, str]]) -> tuple[str, str]:
        """The last two parts of one of them."""
        known = [(held_out(*parts, one_of=4), parts[1:]) for parts in wordings]
        new, parts = self._rng.choice([one for one in known if self._side == "test" or not one[0]])
        self.novel += new
        return parts
