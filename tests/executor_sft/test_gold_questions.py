"""Gold questions: their plans follow the world's facts, and reveal nothing."""

import itertools
import re
from collections import Counter

import pytest

from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import MiniQuestion, SubQuery
from executor_sft.miniworld.relations import RELATIONS, Relation
from executor_sft.miniworld.world import Entity, World

Meanings = dict[str, tuple[Entity, Relation]]


@pytest.fixture(scope="module")
def meanings(world: World) -> Meanings:
    """Return the fact that each possible sub-query asks for, by its text."""
    return {
        wording.format(x=name): (entity, relation)
        for relation in RELATIONS
        for entity in world.entities
        if entity.kind == relation.subject
        for name in (entity.mention, entity.alias)
        if name
        for wording in relation.ask
    }


def told(value: str | Entity) -> str:
    return value if isinstance(value, str) else value.mention


def gold(meanings: Meanings, sub_query: SubQuery) -> str:
    """Return the answer of a sub-query by the world's facts."""
    entity, relation = meanings[sub_query.text]
    return told(entity.values[relation.name])


def test_question_types_have_their_shares(questions: list[MiniQuestion]) -> None:
    """45 % have two hops, 25 % three, and 30 % are comparisons, each within 5 points.

    A chain has one sub-query per round, a comparison one round of two. Ids name the world, and
    repeated texts are rare.
    """
    shapes = {"2-hop": (0.45, [1, 1]), "3-hop": (0.25, [1, 1, 1]), "comparison": (0.30, [2])}
    types: Counter[str] = Counter(question.type for question in questions)
    assert types.keys() == shapes.keys()
    for kind, (share, _) in shapes.items():
        assert abs(types[kind] / len(questions) - share) < 0.05
    for question in questions:
        assert [len(block) for block in question.rounds] == shapes[question.type][1]
        assert question.needs_second_search is any(
            sub_query.kind != "plain" for sub_query in question.sub_queries
        )
        assert re.fullmatch(r"mini-test-11-\d{5}", question.id)
    assert len({question.id for question in questions}) == len(questions)
    assert len({question.text for question in questions}) > 0.95 * len(questions)


def test_evidence_is_quoted_from_the_gold_passages(
    questions: list[MiniQuestion], library: Library
) -> None:
    """Each search has one sentence, from the passage that the search must find; the last sentence
    has the answer.
    """
    for sub_query in (sub_query for question in questions for sub_query in question.sub_queries):
        report = sub_query.report
        passages = [library.by_id[identity] for identity in sub_query.gold_passages]
        assert len(sub_query.searches) == len(passages) == len(report.evidence)
        assert all(
            point in passage.text for point, passage in zip(report.evidence, passages, strict=True)
        )
        assert report.answer in report.evidence[-1]


def test_reports_answer_by_the_worlds_facts(
    questions: list[MiniQuestion], meanings: Meanings
) -> None:
    """This holds for every wording, and for sub-queries that use another name."""
    for sub_query in (sub_query for question in questions for sub_query in question.sub_queries):
        assert sub_query.report.answer == gold(meanings, sub_query)
        assert sub_query.relation == meanings[sub_query.text][1].name


def test_a_chain_follows_the_facts(questions: list[MiniQuestion], meanings: Meanings) -> None:
    """Each hop asks about the entity that the previous hop found; the last hop's answer is the
    question's.
    """
    for question in questions:
        if question.type != "comparison":
            hops = [meanings[sub_query.text] for sub_query in question.sub_queries]
            for (entity, relation), (answer, _) in itertools.pairwise(hops):
                assert entity.values[relation.name] is answer
            assert question.answer == question.sub_queries[-1].report.answer
            assert question.earlier is None


def test_a_chain_s_text_reveals_no_hop(questions: list[MiniQuestion], meanings: Meanings) -> None:
    """It names the first entity, and neither those in between nor the answer."""
    for question in questions:
        if question.type != "comparison":
            entity, _ = meanings[question.sub_queries[0].text]
            assert any(name and name in question.text for name in (entity.mention, entity.alias))
            for sub_query in question.sub_queries:
                assert not re.search(rf"\b{re.escape(sub_query.report.answer)}\b", question.text)


def test_comparisons_are_right(questions: list[MiniQuestion], meanings: Meanings) -> None:
    """Both sub-queries ask the same, their years differ, and the answer is the entity that the
    wording asks for, by the question's name.
    """
    for question in questions:
        if question.type == "comparison":
            left_query, right_query = question.sub_queries
            assert meanings[left_query.text][1] is meanings[right_query.text][1]
            names = [
                name_in(question.text, meanings[sub_query.text][0])
                for sub_query in (left_query, right_query)
            ]
            years = [int(gold(meanings, sub_query)) for sub_query in (left_query, right_query)]
            assert years[0] != years[1]
            earlier = re.search(r"\b(earlier|first)\b", question.text) is not None
            assert question.earlier is earlier
            assert question.answer == names[years.index(min(years) if earlier else max(years))]


def name_in(text: str, entity: Entity) -> str:
    """Return the name that `text` uses for `entity`."""
    (name,) = (
        name
        for name in (entity.mention, entity.alias)
        if name and re.search(rf"\b{re.escape(name)}\b", text)
    )
    return name


def test_a_second_name_is_used_in_the_first_hop_only(
    questions: list[MiniQuestion], meanings: Meanings
) -> None:
    """Later hops use the name of the previous report."""
    for question in questions:
        for block in question.rounds[1:]:
            for sub_query in block:
                assert sub_query.kind != "alias"
                assert meanings[sub_query.text][0].mention in sub_query.text


def test_second_searches_are_rarely_avoidable(
    questions: list[MiniQuestion], library: Library, meanings: Meanings
) -> None:
    """Fewer than 1 in 10 facts with a detour are on a third page as well: a marriage on the
    spouse's, a country on the page of the country whose capital it is.
    """
    sub_queries = [sub_query for question in questions for sub_query in question.sub_queries]
    detours = [sub_query for sub_query in sub_queries if sub_query.kind in ("redirect", "shared")]
    sentences: dict[str, list[str]] = {}
    for sentence in (
        sentence for passage in library.passages for sentence in passage.text.split(". ")
    ):
        for word in set(re.findall(r"\w+", sentence)):
            sentences.setdefault(word, []).append(sentence)
    elsewhere = []
    for sub_query in detours:
        mention = meanings[sub_query.text][0].mention
        answer = sub_query.report.answer
        if any(
            mention in text and answer in text for text in sentences.get(answer.split()[-1], ())
        ):
            elsewhere.append(sub_query.relation)
    assert len(elsewhere) < 0.1 * len(detours)
    assert set(elsewhere) <= {"spouse", "country"}
