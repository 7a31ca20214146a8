"""Lists of questions, as data sets write them."""

from pathlib import Path

import pytest

from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from executor_sft.questions import Question, read_questions, read_texts
from router.errors import BadConfig

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_every_shape(tmp_path: Path) -> None:
    """`text` or `question`; a right answer or a list of them, under any of the usual names."""
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '\ufeff{"id": "a", "text": "One?", "answer": "1"}\n'
        '{"question": "Two?", "answers": ["2", "two", " "], "dataset": "hotpotqa"}\n'
        "\n"
        '{"id": 3, "question": "Three?", "golden_answers": ["3"], "source": "popqa", "answer": "three"}\n'
        '{"id": "a", "text": "Four?", "golds": ["4"], "more": {"x": 1}}\n',
        "utf-8",
    )
    assert read_questions(path)[0] == [
        Question("a", "One?", ("1",)),
        Question("2", "Two?", ("2", "two"), "hotpotqa"),
        Question("3", "Three?", ("3",), "popqa"),
        Question("a#2", "Four?", ("4",)),
    ]


def test_duplicates(tmp_path: Path) -> None:
    """Case, punctuation and articles make no other question; the first one stays."""
    path = tmp_path / "questions.jsonl"
    texts = ("Who directed the film Heat?", "who directed film heat", "Who wrote Heat?", "誰?", "何?")
    path.write_text("".join(f'{{"text": "{text}", "answer": "x"}}\n' for text in texts), "utf-8")
    questions, duplicates = read_questions(path)
    assert [question.text for question in questions] == [texts[0], *texts[2:]]
    assert duplicates == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"text": "One?"}', "no right answer"),
        ('{"text": "One?", "answers": []}', "no right answer"),
        ('{"text": "One?", "answers": [" "]}', "no right answer"),
        ('{"answer": "1"}', "no question"),
        ('{"text": "One?", "answer": 1}', "Expected"),
        ("One?", "one JSON object a line"),
        ('["One?"]', "Expected"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, why: str) -> None:
    """With the file and the line."""
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"text": "Zero?", "answer": "0"}}\n{line}\n', "utf-8")
    with pytest.raises(BadConfig, match=f"questions.jsonl:2: .*{why}"):
        read_questions(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Says which."""
    with pytest.raises(BadConfig, match=r"nothing.jsonl: cannot be read"):
        read_questions(tmp_path / "nothing.jsonl")


def test_excluded_questions_need_no_answers(tmp_path: Path) -> None:
    """Only what they ask counts, normalised."""
    path = tmp_path / "held-out.jsonl"
    path.write_text('{"question": "Who directed the film Heat?"}\n', "utf-8")
    assert read_texts([path]) == {"who directed film heat"}


def test_the_mini_world(tmp_path: Path) -> None:
    """Its export is read as it is."""
    asked = export(World(3, "train"), tmp_path, 20)
    read, duplicates = read_questions(tmp_path / "questions.jsonl")
    assert len(read) + duplicates == 20
    assert read[0] == Question(asked[0].id, asked[0].text, (asked[0].answer,))


@pytest.mark.parametrize(
    ("file", "rows"),
    [
        ("bamboogle_125/questions.jsonl", 125),
        ("hotpotqa_dev500/questions.jsonl", 500),
        ("musique_train299/questions.jsonl", 299),
        ("paper_splits/train_mixed3000.jsonl", 3000),
        ("paper_splits/test_all.jsonl", 4125),
    ],
)
def test_public_data(file: str, rows: int) -> None:
    """Every row of them is read, each under a name of its own."""
    if not SHARED.exists():
        pytest.skip(f"no {SHARED}")
    questions, duplicates = read_questions(SHARED / file)
    assert len(questions) + duplicates == rows
    assert len({question.id for question in questions}) == len(questions)
    assert all(question.source for question in questions)
