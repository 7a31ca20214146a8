"""Mini worlds: reproducible, separate, and with second searches where they are declared."""

import random
import re
from collections import Counter
from functools import cache

import pytest

from executor_sft.miniworld import relations as language
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.world import Entity, Names, Side, World, side_of

SIDES: tuple[Side, Side] = ("train", "test")
NOUNS = {"The", *language.BOOK_NOUNS, *language.FILM_NOUNS, *language.COMPANY_NOUNS}


@cache
def made(seed: int, side: Side) -> World:
    return World(seed, side)


def words_in(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]+", text))


def name_words(world: World) -> set[str]:
    """Return every made-up word of the names, other names and chronicles of a world."""
    names = [name for entity in world.entities for name in (entity.name, entity.alias or "")]
    chronicles = [fact.via for fact in world.facts.values() if fact.detour == "redirect"]
    return words_in(" ".join([*names, *chronicles])) - NOUNS


def year(entity: Entity, relation: str) -> int:
    value = entity.values[relation]
    assert isinstance(value, str)
    return int(value)


def person(entity: Entity, relation: str) -> Entity:
    value = entity.values[relation]
    assert isinstance(value, Entity)
    return value


def holds(text: str, phrase: str) -> bool:
    """Return whether `text` contains `phrase` as whole words."""
    return re.search(rf"\b{re.escape(phrase)}\b", text) is not None


@pytest.mark.parametrize("side", SIDES)
def test_words_are_unique_and_of_one_side(side: Side) -> None:
    """2,000 words are all different and capitalised, have 4 to 11 letters, and are on their side in
    any case. Only the same seed gives the same words.
    """
    names, same, other = (Names(random.Random(seed), side) for seed in (1, 1, 2))
    words = [names.word() for _ in range(2000)]
    assert len(set(words)) == 2000
    assert {side_of(word) for word in words} == {side_of(word.upper()) for word in words} == {side}
    assert all(word.isalpha() and word.istitle() and 4 <= len(word) <= 11 for word in words)
    assert words[:50] == [same.word() for _ in range(50)] != [other.word() for _ in range(50)]


def test_the_same_seed_makes_the_same_world() -> None:
    """Pages and questions are equal and in the same order; another seed or side shares no person's
    name.
    """
    world = made(7, "test")
    same = World(7, "test")
    pages = Library(world)
    repeated = Library(same)
    ask = Examiner(world, pages)
    ask_again = Examiner(same, repeated)
    assert pages.passages == repeated.passages
    assert [ask.draw() for _ in range(200)] == [ask_again.draw() for _ in range(200)]
    people = {entity.name for entity in world.people}
    for other in (made(11, "test"), made(7, "train")):
        assert people.isdisjoint(entity.name for entity in other.people)


def test_training_and_test_worlds_share_no_name_word() -> None:
    """They share no other words on their pages either, except those of the wordings, which all
    worlds share.
    """
    written: dict[Side, set[str]] = {"train": set(), "test": set()}
    worlds: tuple[tuple[int, Side], ...] = ((7, "test"), (11, "test"), (1, "train"), (7, "train"))
    for seed, side in worlds:
        names = name_words(made(seed, side))
        assert len(names) > 1000
        assert {side_of(word) for word in names} == {side}
        pages = Library(made(seed, side)).passages
        written[side] |= words_in(" ".join(f"{page.title} {page.text}" for page in pages))
    wordings = [
        language.CHRONICLE,
        "Family",
        *language.ALIAS_USE.values(),
        *language.REDIRECT,
        *language.FILLER,
    ]
    wordings += [wording for aliases in language.ALIAS.values() for wording in aliases]
    wordings += [*language.OCCUPATIONS, *NOUNS]
    for relation in language.RELATIONS:
        wordings += [relation.noun, relation.anonymous, relation.shared, *relation.statements]
    shared = {word.casefold() for word in words_in(" ".join(wordings))}
    assert {word.casefold() for word in written["train"] & written["test"]} <= shared


def test_namesakes_differ_by_occupation(world: World) -> None:
    """Names are shared by at most two persons, with different occupations."""
    names = Counter(entity.name for entity in world.entities)
    namesakes = [entity for entity in world.entities if entity.occupation]
    assert len(namesakes) > 20
    assert all(names[entity.name] == (2 if entity.occupation else 1) for entity in world.entities)
    assert len({entity.mention for entity in world.entities}) == len(world.entities)


def test_each_namesake_has_a_page(world: World, library: Library) -> None:
    """Its title has the occupation, and its text never has the bare name."""
    for entity in world.entities:
        if entity.occupation:
            title = f"{entity.name} ({entity.occupation})"
            shown = [library.by_id[identity] for identity in library.of_entity[entity.mention]]
            assert {passage.title for passage in shown} <= {title, f"Family of {title}"}
            assert all(
                f"{entity.occupation} {entity.name}" in passage.text
                for passage in shown
                if entity.name in passage.text
            )


def test_families_are_consistent(world: World) -> None:
    """Parents are 30 years older than their children and married to each other, marriages are
    mutual, and children have their father's surname. A capital is in its country.
    """
    children = [entity for entity in world.people if "father" in entity.values]
    assert len(children) == len(world.people) * 2 // 3
    for child in children:
        father = person(child, "father")
        mother = person(child, "mother")
        for parent in (father, mother):
            assert year(child, "birth_year") - year(parent, "birth_year") >= 30
        assert person(father, "spouse") is mother
        assert child.occupation or child.name.split()[-1] == father.name.split()[-1]
    for entity in world.people:
        assert "spouse" not in entity.values or person(person(entity, "spouse"), "spouse") is entity
    for country in world.countries:
        assert person(country, "capital").values["country"] is country


def test_a_third_of_the_sub_queries_needs_a_second_search(questions: list[MiniQuestion]) -> None:
    """30 to 45 % of the sub-queries, and more than half of the questions, need it; every kind of
    detour is among them.
    """
    sub_queries = [sub_query for question in questions for sub_query in question.sub_queries]
    kinds = Counter(sub_query.kind for sub_query in sub_queries if len(sub_query.searches) == 2)
    assert 0.30 < kinds.total() / len(sub_queries) < 0.45
    assert set(kinds) == {"alias", "redirect", "shared"}
    assert min(kinds.values()) > 50
    assert sum(question.needs_second_search for question in questions) > len(questions) / 2


def test_the_second_search_is_necessary(
    questions: list[MiniQuestion], world: World, library: Library
) -> None:
    """The passage of the first search does not have the answer, but the name to search for.

    The passage of the second search has the answer, but not the name of the first search.
    """
    names = name_words(world)
    for sub_query in (sub_query for question in questions for sub_query in question.sub_queries):
        if len(sub_query.searches) == 2:
            first, second = (library.by_id[identity] for identity in sub_query.gold_passages)
            asked_with, searched_next = (names & words_in(query) for query in sub_query.searches)
            assert not holds(first.text, sub_query.report.answer)
            assert holds(second.text, sub_query.report.answer)
            assert searched_next <= words_in(first.text)
            assert not asked_with <= words_in(f"{second.title} {second.text}")
