"""Data sets in the forms in which they are handed out."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.datasets.question import BenchmarkQuestion, SubQuestion
from benchmarks.datasets.reader import read_entries
from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.errors import BadCorpus

SHARED = Path(__file__).parents[3] / "shared" / "data"
HOTPOT = {
    "_id": "5a8b",
    "question": "Were Ana and Bo of one town? ",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Ana", 0], ["Bo", 1], ["Ana", 1]],
    "context": [["Ana", ["Ana is from Ulm.", " She is a painter."]], ["Cy", ["Cy."]], ["Bo", ["Bo", " is from Ulm."]]],
}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "Who founded the town of Ana?",
    "answer": "Otto",
    "answer_aliases": ["King Otto", "Otto"],
    "answerable": True,
    "paragraphs": [
        {"idx": 0, "title": "Ulm", "paragraph_text": "Otto founded Ulm.", "is_supporting": True},
        {"idx": 1, "title": "Ana", "paragraph_text": "Ana is from Ulm.", "is_supporting": True},
        {"idx": 2, "title": "Bo", "paragraph_text": "Bo sings.", "is_supporting": False},
    ],
    "question_decomposition": [
        {"id": 7, "question": "Ana >> town", "answer": "Ulm", "paragraph_support_idx": 1},
        {"id": 8, "question": "Who founded #1 ?", "answer": "Otto", "paragraph_support_idx": 0},
    ],
}
POPQA = (
    "id\tsubj\tprop\tobj\ts_pop\tquestion\tpossible_answers\n"
    '42\tAna\toccupation\tpainter\t7\tWhat is Ana\'s occupation?\t"[""painter"", ""artist""]"\n'
)


def only(path: Path, **options: str) -> BenchmarkQuestion:
    (entry,) = read_entries(path, **options)
    return entry.question


def test_hotpotqa(tmp_path: Path) -> None:
    """A paragraph is its sentences; both gold ones are known by what they say; other fields are left alone."""
    path = tmp_path / "hotpot_dev_distractor_v1.json"
    path.write_text("\ufeff" + json.dumps([HOTPOT, HOTPOT | {"_id": "5a8c"}]), "utf-8")

    first, second = read_entries(path)

    ana, _, bo = first.passages
    assert (ana.title, ana.text, bo.text) == ("Ana", "Ana is from Ulm. She is a painter.", "Bo is from Ulm.")
    assert first.question == BenchmarkQuestion(
        "5a8b", "Were Ana and Bo of one town?", ("yes",), "hotpotqa", "dev", (ana.id, bo.id), type="comparison"
    )
    assert (second.where, second.question.id, second.passages) == (f"{path}, item 2", "5a8c", first.passages)


def test_2wikimultihopqa(tmp_path: Path) -> None:
    """HotpotQA's form with evidences; a packed file is read like any other."""
    path = tmp_path / "train.json.gz"
    path.write_bytes(gzip.compress(json.dumps([HOTPOT | {"evidences": [["Ana", "town", "Ulm"]]}]).encode()))
    question = only(path)
    assert (question.dataset, question.split, len(question.supporting)) == ("2wikimultihopqa", "train", 2)


def test_musique(tmp_path: Path) -> None:
    """Aliases are answers, each once; each step knows its passage; earlier answers are filled into later steps."""
    path = tmp_path / "musique_ans_v1.0_dev.jsonl"
    path.write_text(json.dumps(MUSIQUE) + "\n\n", "utf-8")

    (entry,) = read_entries(path)

    question, (ulm, ana, _) = entry.question, entry.passages
    assert (question.answers, question.dataset, question.split) == (("Otto", "King Otto"), "musique", "dev")
    assert question.supporting == (ulm.id, ana.id)
    assert question.decomposition == (
        SubQuestion("Ana >> town", "Ulm", ana.id),
        SubQuestion("Who founded #1 ?", "Otto", ulm.id),
    )
    assert question.sub_questions == ("Ana >> town", "Who founded Ulm ?")


def test_a_number_that_is_no_step_stays() -> None:
    """ "#1" in the first step, or "#7" in the second, are part of the text."""
    steps = SubQuestion("Which song of Ana reached #1?", r"A \1"), SubQuestion("Did #1 fall to #7 or #0?", "no")
    question = BenchmarkQuestion("1", "?", ("no",), "musique", "dev", decomposition=steps)
    assert question.sub_questions == ("Which song of Ana reached #1?", r"Did A \1 fall to #7 or #0?")


def test_popqa(tmp_path: Path) -> None:
    """Every possible answer counts."""
    path = tmp_path / "popQA.tsv"
    path.write_text(POPQA, "utf-8")
    assert only(path) == BenchmarkQuestion("42", "What is Ana's occupation?", ("painter", "artist"), "popqa", "test")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("Bamboogle Prerelease - Sheet1.csv", 'Question,Answer\r\n"Who, in 1900, was Ana?",a painter\r\n'),
        ("bamboogle.json", '[{"Question": "Who, in 1900, was Ana?", "Answer": "a painter"}]'),
    ],
)
def test_bamboogle(tmp_path: Path, name: str, content: str) -> None:
    """As a table or as JSON; its questions get numbers."""
    (tmp_path / name).write_bytes(content.encode())
    assert only(tmp_path / name) == BenchmarkQuestion(
        "bamboogle-1", "Who, in 1900, was Ana?", ("a painter",), "bamboogle", "test"
    )


def test_flashrag(tmp_path: Path) -> None:
    """Its rows do not say where they are from; the folder and the file do, or the caller."""
    path = tmp_path / "nq" / "dev.jsonl"
    path.parent.mkdir()
    path.write_text(
        '{"id": "dev_0", "question": "Who?", "golden_answers": ["Ana", "A."], "metadata": {"x": 1}}', "utf-8"
    )
    assert only(path) == BenchmarkQuestion("dev_0", "Who?", ("Ana", "A."), "nq", "dev")
    assert only(path, dataset="natural", split="test") == BenchmarkQuestion(
        "dev_0", "Who?", ("Ana", "A."), "natural", "test"
    )


def test_the_mini_world(tmp_path: Path) -> None:
    """Its gold sub-queries are a decomposition."""
    asked = export(World(3, "train"), tmp_path, 4)
    for question, entry in zip(asked, read_entries(tmp_path), strict=True):
        read = entry.question
        assert (read.id, read.question, read.answers) == (question.id, question.text, (question.answer,))
        assert (read.dataset, read.type) == ("miniworld", question.type)
        assert read.sub_questions == tuple(sub_query.text for sub_query in question.sub_queries)
        assert {step.supporting_doc_id for step in read.decomposition} <= set(read.supporting)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The plain form loses nothing."""
    step = SubQuestion("Which town?", "Ulm", "p2")
    whole = BenchmarkQuestion("1", "Who?", ("Ana", "A."), "nq", "dev", ("p1", "p2"), (step,), "bridge")
    (tmp_path / "questions.jsonl").write_bytes(
        msgspec.json.Encoder().encode_lines([whole, BenchmarkQuestion("2", "Who?", ("Bo",), "nq", "dev")])
    )
    first, second = read_entries(tmp_path)
    assert (first.question, second.question.answers) == (whole, ("Bo",))


GOOD = '{"id": "1", "question": "Who?", "answers": ["Ana"]}\n'


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("q.jsonl", GOOD + '{"id": "2", "question": "Who?"}\n', "q.jsonl:2: no answer"),
        ("q.jsonl", GOOD + '{"id": "2", "question": "Who?", "answers": [" "]}\n', "q.jsonl:2: no answer"),
        ("q.jsonl", GOOD + '{"id": "2", "question": " ", "answers": ["Bo"]}\n', "q.jsonl:2: no question"),
        ("q.jsonl", GOOD + '{"id": "2", "qeustion": "Who?", "answers": ["Bo"]}\n', "q.jsonl:2: .*qeustion"),
        ("q.jsonl", GOOD + '{"id": "2", "question": "Who?", "answers": "Bo"}\n', "q.jsonl:2: Expected `array`"),
        ("q.jsonl", GOOD + '{"id": "2", "question": "Wh', "q.jsonl:2: .*truncated"),
        ("q.jsonl", GOOD + '["Who?"]', "q.jsonl:2: not an object"),
        ("q.jsonl", GOOD.encode("utf-16"), "q.jsonl:1: not UTF-8 at byte 1"),
        ("q.jsonl", GOOD.encode() + GOOD.replace("Ana", "Anä").encode("latin-1"), "q.jsonl:2: not UTF-8 at byte 48"),
        ("q.jsonl", "", "q.jsonl: holds no question"),
        ("q.jsonl.gz", gzip.compress(GOOD.encode(), mtime=0)[:-12], "q.jsonl.gz: cannot be read"),
        ("q.json", json.dumps([HOTPOT, HOTPOT])[:-9], "q.json: after item 1: .*premature EOF"),
        ("q.json", json.dumps([HOTPOT]).replace("Cy", "C\xff").encode("latin-1"), "q.json: after item 0: .*UTF8"),
        ("q.json", json.dumps([HOTPOT, HOTPOT | {"answer": ""}]), "q.json, item 2: no answer"),
        ("q.json", json.dumps([HOTPOT, HOTPOT | {"question": 1}]), "q.json, item 2: Expected `str`, got `int`"),
        ("q.json", json.dumps([HOTPOT, 1]), "q.json, item 2: not an object"),
        ("q.jsonl", json.dumps(MUSIQUE | {"answerable": False}), "q.jsonl:1: no answer"),
        ("q.tsv", POPQA[:-9], "q.tsv:2: unexpected end of data"),
        ("q.tsv", POPQA.partition("\t7")[0] + "\n", "q.tsv:2: Expected `str`, got `null`"),
        ("q.tsv", POPQA.replace('""]', '""'), "q.tsv:2: .*truncated"),
        ("q.csv", "Question,Answer\nWho?,Ana,Bo\n", "q.csv:2: Expected `str`"),
        ("q.csv", "Question,Answer\nWho?,\n", "q.csv:2: no answer"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: str | bytes, why: str) -> None:
    """With the file and the line, or the number of the item."""
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadCorpus, match=why):
        list(read_entries(path))


def test_a_form_may_be_named(tmp_path: Path) -> None:
    """A row of another form is then refused, and the form is said."""
    path = tmp_path / "q.jsonl"
    path.write_text(GOOD, "utf-8")
    with pytest.raises(BadCorpus, match=r"q.jsonl:1: .*this was read as paper"):
        list(read_entries(path, "paper"))
    with pytest.raises(BadCorpus, match=r"nothing.jsonl: cannot be read"):
        list(read_entries(tmp_path / "nothing.jsonl"))


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    """The first ones are there long before the damage further on is met."""
    path = tmp_path / "q.json"
    many: list[Any] = [HOTPOT] * 500
    path.write_text(json.dumps(many)[:-2], "utf-8")
    entries = read_entries(path)
    assert [next(entries).where for _ in range(3)][-1].endswith("item 3")
    with pytest.raises(BadCorpus, match="after item 499"):
        list(entries)


@pytest.mark.parametrize(
    ("file", "rows"),
    [
        ("bamboogle_125", {"bamboogle": 125}),
        ("hotpotqa_dev500", {"hotpotqa": 500}),
        ("hotpotqa_train100", {"hotpotqa": 100}),
        ("musique_train299", {"musique": 299}),
        ("paper_splits/train_mixed3000.jsonl", {"musique": 1000, "hotpotqa": 1000, "2wiki": 1000}),
    ],
)
def test_public_data(file: str, rows: dict[str, int]) -> None:
    """Every row is read."""
    if not SHARED.exists():
        pytest.skip(f"no {SHARED}")
    counts: dict[str, int] = {}
    for entry in read_entries(SHARED / file):
        counts[entry.question.dataset] = counts.get(entry.question.dataset, 0) + 1
    assert counts == rows


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("contest_train.jsonl", "train"),
        ("constrained.jsonl", "test"),
        ("musique_ans_dev.jsonl", "dev"),
        ("validation.jsonl", "dev"),
        ("Test.jsonl", "test"),
        ("train_dev.jsonl", "test"),
        ("train-train.jsonl", "train"),
    ],
)
def test_a_split_is_told_by_the_start_of_a_word(tmp_path: Path, name: str, split: str) -> None:
    """Of the file's name; where it says several, or none, the questions are for testing."""
    (tmp_path / name).write_text('{"id": "1", "question": "Who?", "golden_answers": ["Ana"]}', "utf-8")
    assert only(tmp_path / name).split == split
