"""A grammar of questions with nested relations, such as "the author of the book of both A and B". A
question has a shape (the nesting of its relations) and a wording. It may also mention things that
it does not ask for (asides). Some shapes and some wordings are held out for tests.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from executor_sft.miniworld.world import Side, side_of


@dataclass(frozen=True, slots=True)
class GrammarRelation:
    """A relation that one thing, or two things of the same kind, have to another thing."""

    subject: str
    """Kind of the relation's subjects, such as `person`."""
    name: str
    synonym: str
    value: str
    """Kind of the relation's value, such as `place`."""


def _relations(table: str) -> tuple[GrammarRelation, ...]:
    """Parse relations from a text. They are separated by `|`; each has the fields of
    `GrammarRelation`.
    """
    return tuple(GrammarRelation(*line.split()) for line in table.split("|"))


RELATIONS = {
    1: _relations(
        "person father sire person | person mother dam person | person spouse mate person | "
        "person birthplace home place | person song tale book | place capital centre place | "
        "place founder maker person | place museum archive house | house seat base place | "
        "house director head person | book author writer person | book publisher press house"
    ),
    2: _relations(
        "person lawyer counsel person | place port market place | house school college "
        "house | book source story book"
    ),
}
"""Relations by the number of their subjects."""
_FORMS = {
    1: ("the {n} of {x}", "{x}'s {n}", "the one that {x} has as {n}", "the one who is {n} to {x}"),
    2: (
        "the {n} of both {x} and {y}",
        "the one that both {x} and {y} have as {n}",
        "the one who is {n} to both {x} and {y}",
    ),
}
_FRAMES = (
    "What is {}?",
    "Name {}.",
    "Tell me {}.",
    "Which one is {}?",
    "I look for {}.",
    "Find {}.",
)
_ASIDES = {
    "front": "{opener} {aside}: {text}",
    "name": "{text} ({opener} {aside})",
    "end": "{text}; {opener} {aside}",
}
_OPENERS = ("not", "unlike", "rather than", "apart from", "instead of", "let alone")
_MAX_RELATIONS = 3
_MAX_ROUNDS = 3
Shape = tuple["Shape", ...]
"""Nesting of relations. A name has the shape (); a relation's shape is a tuple of the shapes of its
subjects.
"""


@dataclass(frozen=True, slots=True)
class Tree:
    """The meaning of a noun phrase: a name, or a relation whose subjects are trees again."""

    name: str = ""
    relation: GrammarRelation | None = None
    subjects: tuple["Tree", ...] = ()

    @property
    def height(self) -> int:
        """Number of rounds of searches until the value is found; 0 for a name."""
        return 1 + max(subject.height for subject in self.subjects) if self.subjects else 0


def held_out(parts: object, halvings: int = 1) -> bool:
    """Return True if `parts`, a shape or a wording, is held out for tests. `halvings`: 1 to hold
    out half of all shapes or wordings, 2 for a quarter.
    """
    return all(side_of(f"{parts} {number}") == "test" for number in range(halvings))


def size(shape: Shape) -> int:
    """Return the number of relations in a shape."""
    return bool(shape) + sum(map(size, shape))


def _shapes(rounds: int) -> set[Shape]:
    """Return all shapes that need at most this number of rounds."""
    below = _shapes(rounds - 1) if rounds else set()
    return {(), *((one,) for one in below), *product(below, below)}


def shapes(side: Side) -> list[Shape]:
    """Return the shapes of training or of test questions. Shapes with a single relation are for
    training only.
    """
    fitting = (
        shape for shape in sorted(_shapes(_MAX_ROUNDS)) if 1 <= size(shape) <= _MAX_RELATIONS
    )
    return [shape for shape in fitting if (size(shape) > 1 and held_out(shape)) == (side == "test")]


class Phrasing:
    """Writes trees as questions in random wordings. Questions for training have no held-out
    wordings.
    """

    def __init__(self, rng: random.Random, side: Side) -> None:
        self._rng = rng
        self._side = side
        self.novel = 0
        """Number of held-out wordings used so far."""

    def question(self, tree: Tree, asides: Sequence[Tree]) -> str:
        """Return a question that asks for the value of `tree`. It also mentions each of `asides`,
        in different places, without asking for it.
        """
        placed = dict(zip(self._rng.sample(list(_ASIDES), len(asides)), asides, strict=True))
        text = self._rng.choice(_FRAMES).format(self._phrase(tree, placed))
        for place in ("front", "end"):
            text = self._with_aside(text, place, placed)
        return text[:1].upper() + text[1:]

    def _phrase(self, tree: Tree, placed: Mapping[str, Tree]) -> str:
        """Return a noun phrase for a tree. `placed`: asides by place; only the aside at the place
        `name` is used, after the first name.
        """
        if tree.relation is None:
            return self._with_aside(tree.name, "name", placed)
        phrases = [
            self._phrase(subject, {} if number else placed)
            for number, subject in enumerate(tree.subjects)
        ]
        nouns = (tree.relation.name, tree.relation.synonym)
        first = phrases[0]
        short = not first.startswith("the ") and "(" not in first
        forms = (form for form in _FORMS[len(phrases)] if short or "'" not in form)
        noun, form = self._chosen(product(nouns, forms))
        return form.format(n=noun, x=first, y=phrases[-1])

    def _with_aside(self, text: str, place: str, placed: Mapping[str, Tree]) -> str:
        """Return the text with the aside for this place; the text alone if there is none."""
        if place not in placed:
            return text
        opener, form = self._chosen((opener, _ASIDES[place]) for opener in _OPENERS)
        return form.format(opener=opener, aside=self._phrase(placed[place], {}), text=text)

    def _chosen(self, wordings: Iterable[tuple[str, str]]) -> tuple[str, str]:
        """Choose a pair of word and form. A quarter of the pairs are held out for tests."""
        word, form = self._rng.choice(
            [pair for pair in wordings if self._side == "test" or not held_out(pair, 2)]
        )
        self.novel += held_out((word, form), 2)
        return word, form
