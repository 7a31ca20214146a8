import json
from pathlib import Path

import msgspec
import pytest

from executor_sft.__main__ import main
from executor_sft.miniworld.export import export, vocabulary_of
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, MiniQuestion
from executor_sft.miniworld.world import World
from router.errors import BadConfig
from router.protocol import Vocabulary
from serving.config.file import load_config, preset
from serving.documents.rows import read_rows

HOTPOTQA = Path(__file__).parents[3] / "shared" / "data" / "hotpotqa_dev500" / "questions.jsonl"


@pytest.fixture(scope="module")
def scope_of_world(world: World) -> Vocabulary:
    return Vocabulary.parse(vocabulary_of(world))


def asked_of(world: World, count: int) -> list[str]:
    examiner = Examiner(world, Library(world))
    return [examiner.draw().text for _ in range(count)]


def test_every_question_of_a_world_is_in_its_scope(
    scope_of_world: Vocabulary, questions: list[MiniQuestion]
) -> None:
    """Its gold sub-queries are, too; they are in the same language."""
    texts = [
        text
        for question in questions
        for text in (question.text, *(sub_query.text for sub_query in question.sub_queries))
    ]
    assert not [text for text in texts if scope_of_world.outside(text)]


@pytest.mark.parametrize(
    "other", [World(12, "test"), World(11, "train")], ids=["another seed", "another side"]
)
def test_every_question_of_another_world_is_out_of_scope(
    scope_of_world: Vocabulary, other: World
) -> None:
    """It has the same words, but its names are unknown."""
    assert all(scope_of_world.outside(text) for text in asked_of(other, 300))


def test_real_questions_are_out_of_scope(scope_of_world: Vocabulary) -> None:
    """None of 500 questions of HotpotQA passes."""
    if not HOTPOTQA.is_file():
        pytest.skip(
            f"there is no {HOTPOTQA.name} of HotpotQA in a folder `shared` next to the checkout"
        )
    rows = [json.loads(line) for line in HOTPOTQA.read_text("utf-8").splitlines()]

    assert len(rows) == 500
    assert not [row["question"] for row in rows if not scope_of_world.outside(row["question"])]


@pytest.mark.parametrize(
    ("question", "strange"),
    [
        ("Who directed Heat?", ["Heat"]),
        ("Who is the father of Barack Obama?", ["Barack", "Obama"]),
        ("When was he born?", ["When", "was", "he", "born"]),
        ("Who is the father?", ["Who", "is", "the", "father"]),
    ],
)
def test_unknown_words_are_named(
    scope_of_world: Vocabulary, question: str, strange: list[str]
) -> None:
    """All words are, if the question names nothing of the world."""
    assert scope_of_world.outside(question) == strange


def test_an_exported_world_is_read_back_equal(tmp_path: Path) -> None:
    """This holds for corpus, questions and scope."""
    world = World(12, "test")
    questions = export(world, tmp_path, 50)
    written = msgspec.json.Decoder(MiniQuestion).decode_lines(
        (tmp_path / "questions.jsonl").read_bytes()
    )

    rows = [row for _, row in read_rows(tmp_path / "corpus.jsonl")]
    read_back = [(row.id, row.title, row.text) for row in rows]
    assert read_back == [(page.id, page.title, page.text) for page in Library(world).passages]
    assert written == questions
    assert (tmp_path / "vocabulary.txt").read_text("utf-8") == vocabulary_of(world)
    assert len(questions) == 50


def test_the_command_writes_the_demo_s_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rolegate sft mini-world` without a seed writes, byte for byte, the files of the preset
    `mini`.
    """
    config = load_config(preset("mini"))

    assert main(["mini-world", "--out", str(tmp_path), "--questions", "3"]) == 0

    assert capsys.readouterr().out == f"{tmp_path}: a world of seed 7 with 3 questions\n"
    corpus, registers = config.retrieval.documents
    files = {
        "corpus.jsonl": corpus,
        "registers.jsonl": registers,
        "vocabulary.txt": config.search.vocabulary,
    }
    for name, shipped in files.items():
        assert shipped is not None
        assert (tmp_path / name).read_bytes() == Path(shipped).read_bytes()


def test_the_command_keeps_a_changed_config(tmp_path: Path) -> None:
    """An option overwrites it."""
    (tmp_path / "rolegate.toml").write_text("mine")
    with pytest.raises(BadConfig, match="is not empty"):
        main(["mini-world", "--out", str(tmp_path)])
    assert (tmp_path / "rolegate.toml").read_text() == "mine"
    assert main(["mini-world", "--out", str(tmp_path), "--questions", "3", "--force"]) == 0
    assert load_config(tmp_path / "rolegate.toml").search.vocabulary == str(
        tmp_path / "vocabulary.txt"
    )
