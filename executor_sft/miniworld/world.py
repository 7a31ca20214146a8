"""The mini world: fictional entities with facts, generated from a seed. Some facts can be found
only by a second search.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from executor_sft.miniworld.relations import (
    BOOK_NOUNS,
    BY_SUBJECT,
    COMPANY_NOUNS,
    FILM_NOUNS,
    OCCUPATIONS,
    Kind,
    Relation,
)

Side = Literal["train", "test"]
"""Use of a world, a name or a wording: for training or for tests."""

_ONSETS = "b br ch d dr f fl g gr h j k kr l m n p pr r s sh sk st t th tr v w z".split()
_VOWELS = "a e i o u ae ei ia oa ou".split()
_CODAS = ["", "", "", "l", "m", "n", "nd", "r", "rk", "s", "sk", "st", "th", "v", "x"]


def side_of(word: str) -> Side:
    """Return `train` if names with this word are for training, `test` if they are for tests. The
    result depends only on the word, so all worlds agree.
    """
    return "test" if hashlib.sha256(word.lower().encode()).digest()[0] % 2 else "train"


class Names:
    """Draws words for names: each word at most once, and either only words for training, or only
    words for tests.
    """

    def __init__(self, rng: random.Random, side: Side) -> None:
        self._rng = rng
        self._side = side
        self._taken = set[str]()

    def word(self) -> str:
        """Return a new capitalized word of two or three syllables."""
        while True:
            syllables = self._rng.choice((2, 2, 3))
            word = "".join(
                self._syllable(last=number == syllables - 1) for number in range(syllables)
            ).capitalize()
            if word not in self._taken and side_of(word) == self._side and 4 <= len(word) <= 11:
                self._taken.add(word)
                return word

    def _syllable(self, last: bool) -> str:
        coda = self._rng.choice(_CODAS) if last else self._rng.choice(("", "", "", "l", "n", "r"))
        return self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) + coda


Detour = Literal["redirect", "shared"]
"""Way from the subject's own page to a value that the page does not state. `redirect`: the page
names a chronicle, which states the value. `shared`: the page names another subject with the same
value.
"""
FIRST_YEAR = 1640
"""First year in which people of the first generation are born."""
GENERATION_YEARS = 30
"""Length, in years, of the period in which the people of a generation are born."""
_COUPLES = 130
"""Couples in each of the three generations."""
_CITIES = 120
_COUNTRIES = 20
_BOOKS = 150
_FILMS = 150
_COMPANIES = 100
_ALIAS_SHARE = 0.40
_REDIRECT_SHARE = 0.14
_SHARED_SHARE = 0.14
_NAMESAKE_SHARE = 0.05


@dataclass(slots=True)
class Entity:
    """A person, city, country, book, film or company of the world, with its own pages."""

    kind: Kind
    name: str
    alias: str | None = None
    """Pen name, former name or working title. Only one passage explains the alias; the title of
    that passage is the alias.
    """
    occupation: str | None = None
    """Occupation of a person who has the same name as another person; else None."""
    values: dict[str, "str | Entity"] = field(default_factory=dict)
    """Values by relation name: a year as text, or another entity."""

    @property
    def mention(self) -> str:
        """Unambiguous name of the entity in questions and pages."""
        return f"the {self.occupation} {self.name}" if self.occupation else self.name


@dataclass(frozen=True, slots=True)
class Fact:
    """A value of an entity, and how to find it."""

    subject: Entity
    relation: Relation
    value: str
    detour: Detour | None = None
    """Way to the value if the subject's own page does not state the value; None if the page states
    it.
    """
    via: str = ""
    """For `redirect`: name of the chronicle that states the value. For `shared`: mention of another
    subject that has the same value.
    """


class World:
    """Entities and facts, generated from a seed. No word in a name of a training world occurs in a
    name of a test world.
    """

    def __init__(self, seed: int, side: Side, hubs: int | None = None) -> None:
        """Generate the world.

        `hubs`: max number of owners of each kind: countries with cities other than their capital,
        publishers, directors, and cities with companies. A low number makes large sets for tables.
        None for no limit.
        """
        self.seed = seed
        self.side = side
        self._hubs = hubs
        self._rng = random.Random(f"{seed}/{side}")
        self.names = Names(self._rng, side)
        self.countries = [Entity("country", self.names.word()) for _ in range(_COUNTRIES)]
        self.cities = [self._city() for _ in range(_CITIES)]
        for country, capital in zip(
            self.countries, self._rng.sample(self.cities, len(self.countries)), strict=True
        ):
            country.values["capital"] = capital
            capital.values["country"] = country
        self.people = self._people()
        self.companies = [self._company() for _ in range(_COMPANIES)]
        self.books = [self._book() for _ in range(_BOOKS)]
        self.films = [self._film() for _ in range(_FILMS)]
        self._add_aliases()
        self.facts = dict[tuple[str, str], Fact]()
        stated = dict[tuple[str, str], list[Entity]]()
        for entity in self.entities:
            for relation in BY_SUBJECT[entity.kind]:
                if relation.name in entity.values:
                    fact = self._fact(entity, relation, stated)
                    self.facts[entity.mention, relation.name] = fact
                    if fact.detour is None:
                        stated.setdefault((relation.name, fact.value), []).append(entity)

    @property
    def entities(self) -> Sequence[Entity]:
        """All entities of the world, in a fixed order."""
        return [
            *self.people,
            *self.cities,
            *self.countries,
            *self.books,
            *self.films,
            *self.companies,
        ]

    def _city(self) -> Entity:
        values: dict[str, str | Entity] = {"country": self._owner(self.countries)}
        return Entity(
            "city", self.names.word(), values=values | {"city_year": self._year(900, 1600)}
        )

    def _company(self) -> Entity:
        company = Entity("company", self._new_name("company"), values={"founder": self._person()})
        company.values |= {
            "headquarters": self._owner(self.cities),
            "company_year": self._year(1700, 1900),
        }
        return company

    def _book(self) -> Entity:
        book = Entity("book", self._new_name("book"), values={"author": self._person()})
        book.values |= {
            "publisher": self._owner(self.companies),
            "book_year": self._year(1700, 1900),
        }
        return book

    def _film(self) -> Entity:
        film = Entity("film", self._new_name("film"), values={"director": self._person(self._hubs)})
        film.values["film_year"] = self._year(1900, 1990)
        return film

    def _people(self) -> list[Entity]:
        """Return the people of three generations. Children have their father's surname, and nobody
        marries a person of the same surname.
        """
        everyone = list[Entity]()
        parents = list[tuple[Entity, Entity]]()
        for generation in range(3):
            start = FIRST_YEAR + generation * GENERATION_YEARS * 2
            people = [self._newborn(parents, start) for _ in range(2 * _COUPLES)]
            shuffled = self._rng.sample(people, len(people))
            couples = [
                (one, other)
                for one, other in zip(shuffled[::2], shuffled[1::2], strict=True)
                if one.name.split()[-1] != other.name.split()[-1]
            ]
            for one, other in couples:
                one.values["spouse"] = other
                other.values["spouse"] = one
            everyone += people
            parents = couples
        self._make_namesakes(everyone)
        return everyone

    def _newborn(self, parents: list[tuple[Entity, Entity]], start: int) -> Entity:
        person = Entity("person", "", values={"birthplace": self._rng.choice(self.cities)})
        person.values["birth_year"] = self._year(start, start + GENERATION_YEARS)
        surname = ""
        if parents:
            father, mother = self._rng.choice(parents)
            person.values |= {"father": father, "mother": mother}
            surname = father.name.split()[-1]
        person.name = f"{self.names.word()} {surname or self.names.word()}"
        return person

    def _make_namesakes(self, people: list[Entity]) -> None:
        """Give some pairs of people of the last generation the same name, and different
        occupations.
        """
        count = int(len(people) * _NAMESAKE_SHARE) // 2
        young = [person for person in people[-2 * _COUPLES :] if "spouse" not in person.values]
        young += [person for person in people[-2 * _COUPLES :] if "spouse" in person.values]
        for one, other in zip(young[:count], young[count : 2 * count], strict=True):
            one.occupation, other.occupation = self._rng.sample(OCCUPATIONS, 2)
            other.name = one.name

    def _add_aliases(self) -> None:
        for entity in self.entities:
            renamed = entity.kind != "country" and not entity.occupation
            if renamed and self._rng.random() < _ALIAS_SHARE:
                entity.alias = self._new_name(entity.kind)

    def _new_name(self, kind: Kind) -> str:
        """Return a new name for an entity of this kind."""
        word = self.names.word()
        match kind:
            case "person":
                return f"{word} {self.names.word()}"
            case "book":
                return f"The {word} {self._rng.choice(BOOK_NOUNS)}"
            case "film" | "company":
                return f"{word} {self._rng.choice(FILM_NOUNS if kind == 'film' else COMPANY_NOUNS)}"
        return word

    def _fact(
        self, entity: Entity, relation: Relation, stated: dict[tuple[str, str], list[Entity]]
    ) -> Fact:
        """Return an entity's fact for a relation. At random, its value is stated on the entity's
        own page, or can be found only by a detour.

        `stated`: the entities whose own pages state a value; keys are (name of the relation,
        value).
        """
        value = entity.values[relation.name]
        text = value if isinstance(value, str) else value.mention
        draw = self._rng.random()
        if draw < _REDIRECT_SHARE:
            return Fact(
                entity,
                relation,
                text,
                "redirect",
                self.names.word(),
            )
        twins = stated.get((relation.name, text))
        if twins and relation.shared and draw < _REDIRECT_SHARE + _SHARED_SHARE:
            return Fact(
                entity,
                relation,
                text,
                "shared",
                self._rng.choice(twins).mention,
            )
        return Fact(entity, relation, text)

    def _owner(self, among: list[Entity]) -> Entity:
        """Choose an owner at random from `among`. If the world has a limit `hubs`, choose from the
        first `hubs` entities only.
        """
        return self._rng.choice(among[: self._hubs])

    def _person(self, among: int | None = None) -> Entity:
        """Choose a person without namesakes, from the first `among` people; None for all people."""
        while (person := self._rng.choice(self.people[:among])).occupation:
            pass
        return person

    def _year(self, first: int, last: int) -> str:
        return str(self._rng.randint(first, last))
