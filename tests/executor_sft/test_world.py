import itertools
import re
from collections import Counter

import pytest

from executor_sft.miniworld import relations as language
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, Question
from executor_sft.miniworld.world import Entity, Side, World, side_of

WORLDS: tuple[tuple[int, Side], ...] = ((7, "test"), (11, "test"), (12, "test"), (1, "train"), (7, "train"))
NOUNS = {"The", *language.BOOK_NOUNS, *language.FILM_NOUNS, *language.COMPANY_NOUNS}


def words_in(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", text))


def name_words(world: World) -> set[str]:
    """Every made-up word of the names, other names and chronicles of a world."""
    names = [name for entity in world.entities for name in (entity.name, entity.alias or "")]
    chronicles = [fact.via for fact in world.facts.values() if fact.detour == "redirect"]
    return set().union(*map(words_in, [*names, *chronicles])) - NOUNS


def pages(world: World) -> list[tuple[str, str, str]]:
    return [(passage.id, passage.title, passage.text) for passage in Library(world).passages]


def year(entity: Entity, relation: str) -> int:
    value = entity.values[relation]
    assert isinstance(value, str)
    return int(value)


def person(entity: Entity, relation: str) -> Entity:
    value = entity.values[relation]
    assert isinstance(value, Entity)
    return value


def holds(text: str, phrase: str) -> bool:
    """Whether `phrase` stands in `text` as words of its own."""
    return re.search(rf"\b{re.escape(phrase)}\b", text) is not None


def test_the_same_seed_makes_the_same_world() -> None:
    """Page by page and question by question, in the same order."""
    one, same = World(5, "test"), World(5, "test")
    ask, ask_again = Examiner(one, Library(one)), Examiner(same, Library(same))

    assert pages(one) == pages(same)
    assert [ask.draw() for _ in range(200)] == [ask_again.draw() for _ in range(200)]


def test_another_seed_or_side_makes_another_world() -> None:
    """No name of a person is in two of three worlds."""
    worlds = [World(5, "test"), World(6, "test"), World(5, "train")]
    people = [{entity.name for entity in world.people} for world in worlds]

    assert all(one.isdisjoint(other) for one, other in itertools.combinations(people, 2))


@pytest.mark.parametrize(("seed", "side"), WORLDS)
def test_every_name_word_is_of_the_worlds_side(seed: int, side: Side) -> None:
    words = name_words(World(seed, side))

    assert len(words) > 1000
    assert {side_of(word) for word in words} == {side}


def test_training_and_test_worlds_share_no_name_word() -> None:
    """Nor any other word on their pages, but for the words of the wordings, which all worlds share."""
    written: dict[Side, set[str]] = {"train": set(), "test": set()}
    names: dict[Side, set[str]] = {"train": set(), "test": set()}
    for seed, side in WORLDS:
        world = World(seed, side)
        names[side] |= name_words(world)
        written[side] |= set().union(*(words_in(f"{title} {text}") for _, title, text in pages(world)))
    wordings = [
        *itertools.chain.from_iterable(
            (relation.noun, relation.anonymous, relation.shared, *relation.tell) for relation in language.RELATIONS
        ),
        *itertools.chain.from_iterable(language.ALIAS.values()),
        *language.ALIAS_USE.values(),
        *language.REDIRECT,
        *language.FILLER,
        *language.OCCUPATIONS,
        f"{language.CHRONICLE} Family",
    ]
    shared = {word.casefold() for word in set().union(*map(words_in, wordings)) | NOUNS}

    assert names["train"].isdisjoint(names["test"])
    assert {word.casefold() for word in written["train"] & written["test"]} <= shared


def test_namesakes_come_in_pairs_told_apart_by_occupation(world: World) -> None:
    """Two of a name, never of one occupation; everybody else's name is their own."""
    names = Counter(entity.name for entity in world.entities)
    namesakes = [entity for entity in world.entities if entity.occupation]

    assert len(namesakes) > 20
    assert all(names[entity.name] == (2 if entity.occupation else 1) for entity in world.entities)
    assert len({entity.mention for entity in world.entities}) == len(world.entities)


def test_each_namesake_has_a_page_of_its_own(world: World, library: Library) -> None:
    """Its title carries the occupation, and its text never speaks of the bare name."""
    for entity in world.entities:
        if entity.occupation:
            title = f"{entity.name} ({entity.occupation})"
            shown = [library.by_id[identity] for identity in library.of_entity[entity.mention]]
            assert {passage.title for passage in shown} <= {title, f"Family of {title}"}
            assert all(
                f"{entity.occupation} {entity.name}" in passage.text for passage in shown if entity.name in passage.text
            )


def test_parents_are_older_than_their_children(world: World) -> None:
    """By 30 years at least, as generations do not overlap; two thirds of the people have parents."""
    children = [entity for entity in world.people if "father" in entity.values]

    assert len(children) == len(world.people) * 2 // 3
    for child in children:
        for parent in ("father", "mother"):
            assert year(child, "birth_year") - year(person(child, parent), "birth_year") >= 30


def test_families_hang_together(world: World) -> None:
    """Parents are married to each other, marriages go both ways, and children bear their father's surname."""
    for entity in world.people:
        if "spouse" in entity.values:
            assert person(person(entity, "spouse"), "spouse") is entity
        if "father" in entity.values:
            assert person(person(entity, "father"), "spouse") is person(entity, "mother")
            assert entity.name.split()[-1] == person(entity, "father").name.split()[-1] or entity.occupation


def test_a_capital_lies_in_its_country(world: World) -> None:
    for country in world.countries:
        assert person(country, "capital").values["country"] is country


def test_a_third_of_the_sub_queries_needs_a_second_search(questions: list[Question]) -> None:
    """30 to 45 % of the sub-queries, and more than half of the questions; every kind of detour is among them."""
    asked = [sub_query for question in questions for sub_query in question.sub_queries]
    kinds = Counter(sub_query.kind for sub_query in asked if len(sub_query.searches) == 2)

    assert 0.30 < kinds.total() / len(asked) < 0.45
    assert set(kinds) == {"alias", "redirect", "shared"}
    assert min(kinds.values()) > 50
    assert sum(question.needs_second_search for question in questions) > len(questions) / 2


def test_the_second_search_is_truly_needed(questions: list[Question], world: World, library: Library) -> None:
    """The passage of the first search does not hold the answer but names what to search for next; the passage of the
    second search holds the answer but not the name that the first search asks with."""
    names = name_words(world)
    for sub_query in (sub_query for question in questions for sub_query in question.sub_queries):
        if len(sub_query.searches) == 2:
            first, second = (library.by_id[identity] for identity in sub_query.gold_passages)
            asked_with, searched_next = (names & words_in(query) for query in sub_query.searches)
            assert not holds(first.text, sub_query.report.answer)
            assert holds(second.text, sub_query.report.answer)
            assert searched_next <= words_in(first.text)
            assert not asked_with <= words_in(f"{second.title} {second.text}")
