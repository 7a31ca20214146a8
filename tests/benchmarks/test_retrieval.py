import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.__main__ import main
from benchmarks.retrieval import read_questions
from router.errors import BadCorpus
from serving.documents.rows import read_rows
from serving.retrieval.lexical import LexicalIndex, write_lexical
from serving.retrieval.passages import embedded_text
from tests.serving.retrieval.milvus_server import MilvusServer

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("retrieval") / "tiny"
    write(folder, "corpus.jsonl", CORPUS)
    write(folder, "questions.jsonl", QUESTIONS)
    return folder


class Measured(NamedTuple):
    """A run of the benchmark that has built its index."""

    argv: list[str]
    figures: dict[str, Any]
    shown: str


@pytest.fixture(scope="module")
def measured(data: Path) -> Measured:
    out = data.parent / "out" / "figures.json"
    index = data.parent / "index"
    argv = ["retrieval", "--data", str(data), "--json", str(out), "--index", str(index)]
    with redirect_stdout(StringIO()) as shown:
        assert main(argv) == 0
    return Measured(argv, json.loads(out.read_bytes()), shown.getvalue())


def test_only_full_evidence_is_a_hit(measured: Measured) -> None:
    """For one of three questions all evidence comes first, for two it is among the first three, for
    one it never is.
    """
    figures = measured.figures
    assert (figures["passages"], figures["questions"]) == (3, 3)
    assert [score["ranking"] for score in figures["scores"]] == ["dense", "lexical", "fused"]
    for score in figures["scores"]:
        assert score["hit"] == pytest.approx({"1": 1 / 3, "3": 2 / 3, "5": 2 / 3, "10": 2 / 3})
        assert score["recall"] == pytest.approx({"1": 1 / 2, "3": 2 / 3, "5": 2 / 3, "10": 2 / 3})
    assert figures["passages_per_s"] > 0
    assert "0.6667" in measured.shown


def test_an_existing_index_is_reused(data: Path, measured: Measured) -> None:
    """The second run embeds nothing; with another corpus the index is brought up to date."""
    out = data.parent / "out" / "figures.json"
    main(measured.argv)
    assert json.loads(out.read_bytes())["passages_per_s"] is None

    write(data, "corpus.jsonl", CORPUS[:2])
    main(measured.argv)
    assert json.loads(out.read_bytes())["passages"] == 2


def test_milvus_finds_the_same(data: Path, measured: Measured, tmp_path: Path) -> None:
    """The corpus is searched in a partition of a server of Milvus Lite."""
    write(data, "corpus.jsonl", CORPUS)
    out = tmp_path / "figures.json"
    with MilvusServer(tmp_path / "data") as server:
        main(["retrieval", "--data", str(data), "--milvus", server.address, "--json", str(out)])
    assert json.loads(out.read_bytes())["scores"] == measured.figures["scores"]


@pytest.mark.skipif(
    not HOTPOTQA.is_dir(), reason="no HotpotQA sample at ../shared/data/hotpotqa_dev500"
)
@pytest.mark.slow
def test_milvus_finds_in_hotpotqa_what_faiss_finds(tmp_path: Path) -> None:
    """Hits at 5 of 150 questions are within 0.01, by vectors alone and fused with words. The corpus
    is a third of HotpotQA's, as all 4,937 passages take minutes to embed on a busy machine.
    """
    texts = (HOTPOTQA / "questions.jsonl").read_text(encoding="utf-8").splitlines()[:150]
    questions = [json.loads(text) for text in texts]
    needed = {identity for row in questions for identity in row["supporting_doc_ids"]}
    corpus = map(json.loads, (HOTPOTQA / "corpus.jsonl").read_text(encoding="utf-8").splitlines())
    part = [row for at, row in enumerate(corpus) if at % 4 == 0 or row["id"] in needed]
    write(tmp_path / "part", "questions.jsonl", questions)
    write(tmp_path / "part", "corpus.jsonl", part)
    scores = []
    with MilvusServer(tmp_path / "data") as server:
        for name, options in (("faiss", []), ("milvus", ["--milvus", server.address])):
            out = tmp_path / f"{name}.json"
            main(["retrieval", "--data", str(tmp_path / "part"), "--json", str(out), *options])
            scores.append(json.loads(out.read_bytes())["scores"])
    for by_faiss, by_milvus in zip(*scores, strict=True):
        assert by_milvus["hit"]["5"] == pytest.approx(by_faiss["hit"]["5"], abs=0.01)


def test_a_bad_question_is_refused_with_its_line(tmp_path: Path) -> None:
    """A question without supporting passages cannot be scored."""
    rows = [QUESTIONS[0], {"id": "2", "question": "?", "answers": ["x"]}]
    write(tmp_path, "questions.jsonl", rows)

    with pytest.raises(BadCorpus, match=r"questions\.jsonl:2: .*supporting_doc_ids"):
        read_questions(tmp_path / "questions.jsonl")


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
