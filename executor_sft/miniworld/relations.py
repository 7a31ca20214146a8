"""Relations of the mini world, with sentences that state them and questions that ask for them."""

from dataclasses import dataclass
from typing import Literal

import msgspec

Kind = Literal["person", "city", "country", "book", "film", "company"]
Value = Literal["person", "city", "country", "company", "year"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation between two things, with its wordings. In every wording, `{x}` is the subject and
    `{y}` is the value.
    """

    name: str
    subject: Kind
    value: Value
    noun: str
    """Noun phrase for the value, such as `the author of {x}`. If the value is a year, noun phrase
    for the event, such as `the birth of {x}`.
    """
    ask: tuple[str, ...]
    """Questions for the value. The delegator uses the first one for all hops but the last."""
    statements: tuple[str, ...]
    """Sentences that state the fact."""
    anonymous: str
    """Sentence that states the fact in a chronicle (a page that does not name the subject)."""
    shared: str
    """Sentence with the name of another subject, `{z}`, that has the same value. The sentence does
    not state the value.
    """
    compare: tuple[tuple[str, bool], ...] = ()
    """Pairs (question, True or False). The question compares the years of `{a}` and `{b}`. True: it
    asks for the earlier of the two. False: it asks for the later one.
    """


def _relation(
    parts: str,
    *,
    ask: str,
    statements: str,
    anonymous: str,
    shared: str = "",
    noun: str = "",
) -> Relation:
    """Return a relation. `parts`: kind of the subject, name of the relation and kind of the value,
    separated by spaces. Alternative wordings are separated by ` | `.
    """
    subject, name, value = parts.split()
    asked = tuple(ask.split(" | "))
    stated = tuple(statements.split(" | "))
    kinds = msgspec.convert((subject, value), tuple[Kind, Value])
    return Relation(
        name,
        *kinds,
        f"the {noun or name} of {{x}}",
        asked,
        stated,
        anonymous,
        shared,
    )


def _parent(name: str) -> Relation:
    return _relation(
        f"person {name} person",
        ask=f"Who is the {name} of {{x}}? | Who was the {name} of {{x}}? | What is the name "
        f"of the {name} of {{x}}?",
        statements=f"The {name} of {{x}} was {{y}}. | {{x}} had {{y}} as {name}. | {{y}} was the "
        f"{name} of {{x}}.",
        anonymous=f"The {name} of the person told of here was {{y}}.",
        shared=f"{{x}} had the same {name} as {{z}}.",
    )


def _year(
    name: str,
    subject: Kind,
    noun: str,
    verb: str,
    *,
    asked: str,
) -> Relation:
    return Relation(
        name,
        subject,
        "year",
        f"the {noun} of {{x}}",
        (
            f"When was {{x}} {verb}?",
            f"In which year was {{x}} {verb}?",
            f"In what year was {{x}} {verb}?",
        ),
        (
            f"{{x}} was {verb} in {{y}}.",
            f"In {{y}}, {{x}} was {verb}.",
            f"The year in which {{x}} was {verb} is {{y}}.",
            f"The {noun} of {{x}} came in {{y}}.",
        ),
        f"The {subject} told of here was {verb} in {{y}}.",
        f"{{x}} was {verb} in the same year as {{z}}.",
        (
            (f"{asked} was {verb} earlier, {{a}} or {{b}}?", True),
            (f"{asked} was {verb} first, {{a}} or {{b}}?", True),
            (f"{asked} was {verb} later, {{a}} or {{b}}?", False),
            (f"Of {{a}} and {{b}}, which {subject} was {verb} earlier?", True),
            (f"Of {{a}} and {{b}}, which {subject} was {verb} later?", False),
        ),
    )


RELATIONS: tuple[Relation, ...] = (
    _year(
        "birth_year",
        "person",
        "birth",
        "born",
        asked="Who",
    ),
    _relation(
        "person birthplace city",
        ask="Where was {x} born? | In which city was {x} born? | What is the birthplace of {x}?",
        statements="{x} was born in the city of {y}. | {x} came from {y}. | The birthplace of {x} "
        "is {y}. | "
        "{y} is the city where {x} was born.",
        anonymous="The person told of here came from {y}.",
        shared="{x} was born in the same city as {z}.",
    ),
    *(_parent(name) for name in ("father", "mother")),
    _relation(
        "person spouse person",
        ask="Who is the spouse of {x}? | Whom did {x} marry? | Who was married to {x}?",
        statements="{x} married {y}. | The spouse of {x} was {y}. | {x} was married to {y}.",
        anonymous="The person told of here was married to {y}.",
    ),
    _relation(
        "city country country",
        ask="In which country is {x}? | Which country is {x} located in? | In what country "
        "does {x} lie?",
        statements="{x} is a city in {y}. | {x} lies in {y}. | The city of {x} belongs to {y}.",
        anonymous="The city told of here lies in {y}.",
        shared="{x} lies in the same country as {z}.",
    ),
    _year(
        "city_year",
        "city",
        "founding",
        "founded",
        asked="Which city",
    ),
    _relation(
        "country capital city",
        ask="What is the capital of {x}? | Which city is the capital of {x}? | What is the "
        "name of the capital of {x}?",
        statements="The capital of {x} is {y}. | {x} has {y} as its capital. | {y} is the capital "
        "of {x}.",
        anonymous="The capital of the country told of here is {y}.",
    ),
    _relation(
        "book author person",
        ask="Who is the author of {x}? | Who wrote {x}? | Which author wrote {x}?",
        statements="{x} is a book by {y}. | {x} was written by {y}. | {y} wrote the book {x}. | "
        "The author of {x} is {y}.",
        anonymous="The book told of here was written by {y}.",
        shared="{x} is by the same author as {z}.",
    ),
    _relation(
        "book publisher company",
        ask="Who is the publisher of {x}? | Which company published {x}? | What is the "
        "publisher of {x}?",
        statements=(
            "{x} was published by {y}. | The publisher of {x} is {y}. | {y} brought out {x}."
        ),
        anonymous="The book told of here was published by {y}.",
        shared="{x} came out at the same publisher as {z}.",
    ),
    _year(
        "book_year",
        "book",
        "first edition",
        "published",
        asked="Which book",
    ),
    _relation(
        "film director person",
        ask="Who is the director of {x}? | Who directed {x}? | Which director made {x}?",
        statements="{x} is a film by {y}. | {x} was directed by {y}. | "
        "{y} directed the film {x}. | "
        "{y} is the director of {x}.",
        anonymous="The film told of here was directed by {y}.",
        shared="{x} is by the same director as {z}.",
    ),
    _year(
        "film_year",
        "film",
        "release",
        "released",
        asked="Which film",
    ),
    _relation(
        "company founder person",
        ask="Who is the founder of {x}? | Who founded {x}? | Who started the company {x}?",
        statements=(
            "{x} was founded by {y}. | The founder of {x} is {y}. | {y} started the company {x}."
        ),
        anonymous="The company told of here was started by {y}.",
        shared="{x} has the same founder as {z}.",
    ),
    _relation(
        "company headquarters city",
        ask="Where is the seat of {x}? | In which city is {x} based? | Which city is the "
        "seat of {x}?",
        statements=(
            "{x} is based in {y}. | The seat of {x} is in {y}. | {x} has its offices in {y}."
        ),
        anonymous="The company told of here is based in {y}.",
        shared="{x} is based in the same city as {z}.",
        noun="seat",
    ),
    _year(
        "company_year",
        "company",
        "founding",
        "set up",
        asked="Which company",
    ),
)

BY_NAME = {relation.name: relation for relation in RELATIONS}
BY_SUBJECT: dict[str, tuple[Relation, ...]] = {
    kind: tuple(relation for relation in RELATIONS if relation.subject == kind)
    for kind in ("person", "city", "country", "book", "film", "company")
}

_FORMER_TITLE = (
    "{a} was the working title of {x}.",
    "{x} was first called {a}.",
    "{a} later became known as {x}.",
)
ALIAS: dict[Kind, tuple[str, ...]] = {
    "person": (
        "{a} is the pen name of {x}.",
        "{x} was also known as {a}.",
        "The name {a} was used by {x}.",
    ),
    "city": (
        "{a} is the former name of {x}.",
        "The city of {x} was once called {a}.",
        "{a} is now called {x}.",
    ),
    "book": _FORMER_TITLE,
    "film": _FORMER_TITLE,
    "company": (
        "{a} is the former name of {x}.",
        "{x} was once called {a}.",
        "{a} is now called {x}.",
    ),
}

ALIAS_USE: dict[Kind, str] = {
    "person": (
        "The person {a} was read by many, and the birth, family and marriage of {a} were "
        "often discussed."
    ),
    "city": "The city {a} stood on old maps.",
    "book": "The book {a} was announced by a publisher and an author.",
    "film": "The film {a} was announced by a director before its release.",
    "company": "The company {a} had its founder and its offices under this name.",
}

REDIRECT: tuple[str, ...] = (
    "For {noun}, see the {c} Chronicle.",
    "The {c} Chronicle tells of {noun}.",
    "On {noun}, the source is the {c} Chronicle.",
)

CHRONICLE = "The {c} Chronicle keeps to one story."

FILLER: tuple[str, ...] = (
    "Little else is recorded.",
    "Several letters from that time are kept.",
    "The archive holds an early drawing.",
    "Visitors still ask about it.",
    "An old song mentions the name.",
    "The matter was discussed for many years.",
    "A small museum keeps the papers.",
    "The records were copied by hand.",
    "There are two known portraits.",
    "Later writers praised the work.",
    "The story is told in schools.",
    "A stone marks the place.",
)

OCCUPATIONS = "painter lawyer sailor teacher baker surgeon printer gardener".split()
BOOK_NOUNS = "Letters Garden Winter Ballads Diary Tales Lanterns Voyage".split()
FILM_NOUNS = "Nights Road Harbour Shadows Summer Bridge Return Echo".split()
COMPANY_NOUNS = "Press Works Mills Group Brothers Trading Motors House".split()
