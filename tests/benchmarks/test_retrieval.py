import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.retrieval import read_questions
from router.errors import BadCorpus
from serving.documents.rows import read_rows
from serving.retrieval.lexical import LexicalIndex, write_lexical
from serving.retrieval.passages import embedded_text

CORPUS = (
    {
        "id": "cat",
        "title": "Cat",
        "text": "The cat is a small mammal that people keep to catch mice.",
    },
    {"id": "bee", "title": "Honey bee", "text": "Honey bees turn nectar into honey."},
    {"id": "mars", "title": "Mars", "text": "Mars is the fourth planet from the Sun."},
)
QUESTIONS = (
    {
        "id": "1",
        "question": "Which planet is Mars?",
        "supporting_doc_ids": ["mars"],
        "answers": ["the fourth"],
    },
    {
        "id": "2",
        "question": "Do honey bees or the planet Mars eat honey?",
        "supporting_doc_ids": ["bee", "mars"],
        "answers": ["bees"],
    },
    {
        "id": "3",
        "question": "Who keeps a cat?",
        "supporting_doc_ids": ["absent"],
        "answers": ["people"],
    },
)
HOTPOTQA = Path(__file__).parents[3] / "shared" / "data" / "hotpotqa_dev500"


def write(folder: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "tiny", "corpus.jsonl", CORPUS)
    write(tmp_path / "tiny", "questions.jsonl", QUESTIONS)
    return tmp_path / "tiny"


def test_only_full_evidence_is_a_hit(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For one of three questions all evidence comes first, for two it is among the first three, for
    one it never is.
    """
    out = tmp_path / "out" / "figures.json"

    assert main(["retrieval", "--data", str(data), "--json", str(out)]) == 0

    figures = json.loads(out.read_bytes())
    assert (figures["passages"], figures["questions"]) == (3, 3)
    assert [score["ranking"] for score in figures["scores"]] == ["dense", "lexical", "fused"]
    for score in figures["scores"]:
        assert score["hit"] == pytest.approx({"1": 1 / 3, "3": 2 / 3, "5": 2 / 3, "10": 2 / 3})
        assert score["recall"] == pytest.approx({"1": 1 / 2, "3": 2 / 3, "5": 2 / 3, "10": 2 / 3})
    assert figures["passages_per_s"] > 0
    assert "0.6667" in capsys.readouterr().out


def test_an_existing_index_is_reused(data: Path, tmp_path: Path) -> None:
    """The second run embeds nothing; with another corpus the index is brought up to date."""
    out = tmp_path / "figures.json"
    index = tmp_path / "index"
    argv = ["retrieval", "--data", str(data), "--json", str(out), "--index", str(index)]
    main(argv)
    main(argv)
    assert json.loads(out.read_bytes())["passages_per_s"] is None

    write(data, "corpus.jsonl", CORPUS[:2])
    main(argv)
    assert json.loads(out.read_bytes())["passages"] == 2


def test_a_bad_question_is_refused_with_its_line(data: Path) -> None:
    """A question without supporting passages cannot be scored."""
    write(data, "questions.jsonl", [QUESTIONS[0], {"id": "2", "question": "?", "answers": ["x"]}])

    with pytest.raises(BadCorpus, match=r"questions\.jsonl:2: .*supporting_doc_ids"):
        read_questions(data / "questions.jsonl")


@pytest.mark.skipif(
    not HOTPOTQA.is_dir(), reason="no HotpotQA sample at ../shared/data/hotpotqa_dev500"
)
def test_bm25_finds_the_known_share_of_hotpotqa(tmp_path: Path) -> None:
    """BM25 alone finds the full evidence of half of the 500 questions among its first five
    passages.
    """
    passages = [passage for _, passage in read_rows(HOTPOTQA / "corpus.jsonl")]
    questions = read_questions(HOTPOTQA / "questions.jsonl")
    write_lexical(tmp_path, map(embedded_text, passages))

    rankings = LexicalIndex.open(tmp_path).search([question.question for question in questions], 5)

    hits = sum(
        set(question.supporting) <= {passages[hit.row].id for hit in hits}
        for question, hits in zip(questions, rankings, strict=True)
    )
    assert hits / len(questions) == pytest.approx(0.508, abs=0.02)
