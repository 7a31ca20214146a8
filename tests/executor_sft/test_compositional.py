"""The compositional world: its tests ask shapes that are not in training, and gold runs can be
executed.
"""

import itertools
import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks.datasets.reader import read_entries
from executor_sft.minimodel.stream import conversations
from executor_sft.miniworld.compositional import CompositionalWorld
from executor_sft.miniworld.dialogues import DialogueWriter, RolePrompts
from executor_sft.miniworld.export import write_corpus
from executor_sft.miniworld.grammar import _FORMS, RELATIONS, held_out, shapes, size
from executor_sft.miniworld.world import Side, side_of
from router.protocol import parse_decision, parse_turn
from router.protocol.turns import ReportTurn, SearchTurn


@pytest.fixture(scope="module")
def worlds() -> dict[Side, CompositionalWorld]:
    return {
        "train": CompositionalWorld(5, "train", 150),
        "test": CompositionalWorld(5, "test", 60, "five"),
    }


def test_no_shape_is_on_both_sides() -> None:
    """Both sides have chains and branches; a single relation is for training."""
    train = shapes("train")
    test = shapes("test")
    assert not set(train) & set(test)
    assert {len(shape) for shape in test} == {1, 2}
    assert min(map(size, test)) == 2
    assert min(map(size, train)) == 1


def test_every_relation_has_a_wording_in_training() -> None:
    wordings = [
        (relation, (noun, form))
        for number, relations in RELATIONS.items()
        for relation in relations
        for noun, form in product((relation.name, relation.synonym), _FORMS[number])
        if "'" not in form
    ]
    trained = {relation for relation, wording in wordings if not held_out(wording, 2)}
    assert trained == {relation for relations in RELATIONS.values() for relation in relations}
    assert any(held_out(wording, 2) for _, wording in wordings)


def test_no_name_is_on_both_sides(worlds: dict[Side, CompositionalWorld]) -> None:
    for side, world in worlds.items():
        names = {name for passage in world.passages for name in passage.title.split(" and ")}
        assert {side_of(name) for name in names} == {side}
    texts = {
        side: {question.text for question in world.questions} for side, world in worlds.items()
    }
    assert not texts["train"] & texts["test"]


def test_held_out_wordings_are_in_tests_only(worlds: dict[Side, CompositionalWorld]) -> None:
    """Each question of a test has at least one."""
    assert worlds["train"]._phrasing.novel == 0
    assert worlds["test"]._phrasing.novel >= len(worlds["test"].questions)


def test_a_faithful_run_finds_the_answer(worlds: dict[Side, CompositionalWorld]) -> None:
    """Each sub-query asks about names of the question and of earlier reports, and its passage
    states the answer.
    """
    world = worlds["test"]
    for question in world.questions:
        known = set(
            question.text.replace("'s", "").translate(str.maketrans("", "", "?.(),;:")).split()
        )
        for block in question.rounds:
            for sub_query in block:
                passage = world.by_id[sub_query.gold_passages[0]]
                assert set(passage.title.split(" and ")) <= known
                assert sub_query.report.evidence == (passage.text,)
                assert sub_query.text == f"What is t{passage.text[1:].partition(' is ')[0]}?"
            known |= {sub_query.report.answer for sub_query in block}
        assert question.rounds[-1][-1].report.answer == question.answer


def test_asides_are_not_asked_but_could_be(worlds: dict[Side, CompositionalWorld]) -> None:
    """Some questions mention a relation that is no step of theirs; its fact is in a passage."""
    world = worlds["test"]
    steps = [len(question.sub_queries) for question in world.questions]
    assert sum(" and " in passage.title or True for passage in world.passages) > sum(steps)
    asides = [q for q in world.questions if any(mark in q.text for mark in (": ", "; ", "("))]
    assert 0 < len(asides) < len(world.questions)


def test_worlds_depend_on_their_seed_only(worlds: dict[Side, CompositionalWorld]) -> None:
    repeated = CompositionalWorld(5, "test", 60, "five")
    assert repeated.questions == worlds["test"].questions
    assert repeated.passages == worlds["test"].passages
    assert CompositionalWorld(6, "test", 60).questions != repeated.questions


def test_conversations_are_read_by_the_gateway(system: RolePrompts) -> None:
    for dialogue in itertools.islice(conversations("compositional", system, 77, passages=3), 60):
        for turn in dialogue:
            if turn.kind in ("delegate", "stop"):
                assert type(parse_decision(turn.text, limit=8)).__name__ != "Malformed"
            if turn.kind == "report":
                assert isinstance(parse_turn(turn.text), ReportTurn)
            if turn.kind == "search":
                assert isinstance(parse_turn(turn.text), SearchTurn)


def test_the_gold_passage_is_shown_first(
    worlds: dict[Side, CompositionalWorld], system: RolePrompts
) -> None:
    writer = DialogueWriter(worlds["test"], system)
    for dialogue in itertools.islice(writer.executor(), 20):
        evidence = dialogue[-1].text.split("<evidence>")[1].removesuffix("</evidence>")
        first = dialogue[3].text.split("</document>")[0]
        assert evidence in first


def test_the_benchmarks_can_read_the_world(
    worlds: dict[Side, CompositionalWorld], tmp_path: Path
) -> None:
    """Steps refer to the steps that found their names."""
    world = worlds["test"]
    write_corpus(tmp_path, world.passages, questions=world.questions)
    ids = {json.loads(line)["id"] for line in (tmp_path / "corpus.jsonl").read_text().splitlines()}
    entries = list(read_entries(tmp_path / "questions.jsonl"))
    for question, entry in zip(world.questions, entries, strict=True):
        assert entry.question.question == question.text
        assert set() < set(entry.question.supporting) <= ids
