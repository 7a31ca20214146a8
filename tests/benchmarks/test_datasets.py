"""Data sets in their published forms, and `rolegate bench datasets` over them."""

import base64
import csv
import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import openpyxl
import pytest

from benchmarks.__main__ import main
from benchmarks.datasets.command import sample
from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.errors import BadCorpus

SHARED = Path(__file__).parents[3] / "shared" / "data"
SPLITS = SHARED / "paper_splits"
HOTPOT = {
    "_id": "5a8b",
    "question": "Were Ana and Bo of one town? ",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Ana", 0], ["Bo", 1], ["Ana", 1]],
    "context": [
        ["Ana", ["Ana is from Ulm.", " She is a painter."]],
        ["Cy", ["Cy."]],
        ["Bo", ["Bo", " is from Ulm."]],
    ],
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
POPQA = {
    "id": 42,
    "question": "What is Ana's occupation?",
    "possible_answers": '["painter", "artist"]',
    "s_pop": 7,
}
FLASHRAG = (
    '{"id": "dev_0", "question": "Who?", "golden_answers": ["Ana", "A."], "metadata": {"x": 1}}'
)
BAMBOOGLE = BenchmarkQuestion(
    "bamboogle-1", "Who, in 1900, was Ana?", ("a painter",), "bamboogle", "test"
)


def written(path: Path, content: str | bytes | list[Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def only(path: Path) -> BenchmarkQuestion:
    (entry,) = read_entries(path)
    return entry.question


HUB = HOTPOT | {
    "id": "5a8b",
    "supporting_facts": {"title": ["Ana", "Bo", "Ana"], "sent_id": [0, 1, 1]},
    "context": {
        "title": ["Ana", "Cy", "Bo"],
        "sentences": [["Ana is from Ulm.", " She is a painter."], ["Cy."], ["Bo", " is from Ulm."]],
    },
}
del HUB["_id"]


def _by_column(rows: Any) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_rows_of_hubs_are_read(tmp_path: Path) -> None:
    """Lists of records come as one list for each field; the entries are the same."""
    read, published = (
        [*read_entries(written(tmp_path / f"{name}.jsonl", [row]))]
        for name, row in (("hub", HUB), ("dev", HOTPOT))
    )
    assert [entry.passages for entry in read] == [entry.passages for entry in published]
    assert [(entry.question.id, entry.question.supporting) for entry in read] == [
        (entry.question.id, entry.question.supporting) for entry in published
    ]
    columns = {name: _by_column(MUSIQUE[name]) for name in ("paragraphs", "question_decomposition")}
    assert only(written(tmp_path / "a.jsonl", [MUSIQUE | columns])) == only(
        written(tmp_path / "a.jsonl", [MUSIQUE])
    )


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    """Such a field is `prop` of PopQA's rows in the plain form."""
    row = {
        "id": "1",
        "question": "Who?",
        "answers": ["Ana"],
        "supporting_doc_ids": ["a"],
        "prop": "director",
        "x": None,
    }
    assert only(written(tmp_path / "questions.jsonl", [row])).answers == ("Ana",)


def test_hotpotqa_is_read(tmp_path: Path) -> None:
    """A paragraph is its sentences; both gold paragraphs are known by their text; other fields are
    ignored.
    """
    path = written(
        tmp_path / "dev_v1.json", "\ufeff" + json.dumps([HOTPOT, HOTPOT | {"_id": "5a8c"}])
    )
    first, second = read_entries(path)
    ana, _, bo = first.passages
    assert (ana.title, ana.text, bo.text) == (
        "Ana",
        "Ana is from Ulm. She is a painter.",
        "Bo is from Ulm.",
    )
    assert first.question == BenchmarkQuestion(
        "5a8b",
        "Were Ana and Bo of one town?",
        ("yes",),
        "hotpotqa",
        "dev",
        (ana.id, bo.id),
        type="comparison",
    )
    assert (second.where, second.question.id, second.passages) == (
        f"{path}, item 2",
        "5a8c",
        first.passages,
    )
    packed = gzip.compress(json.dumps([HOTPOT | {"evidences": [["Ana", "town", "Ulm"]]}]).encode())
    wiki = only(written(tmp_path / "train.json.gz", packed))
    assert (wiki.dataset, wiki.split, len(wiki.supporting)) == ("2wikimultihopqa", "train", 2)


def test_musique_is_read(tmp_path: Path) -> None:
    """Aliases are answers, each once; each step has its passage; earlier answers are filled into
    later steps.
    """
    (entry,) = read_entries(
        written(tmp_path / "musique_ans_v1.0_dev.jsonl", json.dumps(MUSIQUE) + "\n\n")
    )
    question = entry.question
    (ulm, ana, _) = entry.passages
    assert (question.answers, question.dataset, question.split) == (
        ("Otto", "King Otto"),
        "musique",
        "dev",
    )
    assert question.supporting == (ulm.id, ana.id)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "popQA.jsonl",
            json.dumps(POPQA),
            BenchmarkQuestion(
                "42", "What is Ana's occupation?", ("painter", "artist"), "popqa", "test"
            ),
        ),
        (
            "b.json",
            '[{"Question": "Who, in 1900, was Ana?", "Answer": "a painter"}]',
            BAMBOOGLE,
        ),
        (
            "nq/dev.jsonl",
            FLASHRAG,
            BenchmarkQuestion("dev_0", "Who?", ("Ana", "A."), "nq", "dev"),
        ),
    ],
)
def test_flat_rows_are_read(
    tmp_path: Path, name: str, content: str, expected: BenchmarkQuestion
) -> None:
    """Their data set is that of the folder and the file."""
    assert only(written(tmp_path / name, content)) == expected


def test_the_mini_world_is_read(tmp_path: Path) -> None:
    """Its gold sub-queries are a decomposition."""
    for question, entry in zip(
        export(World(3, "train"), tmp_path, 4), read_entries(tmp_path), strict=True
    ):
        read = entry.question
        assert (read.id, read.question, read.answers) == (
            question.id,
            question.text,
            (question.answer,),
        )
        assert (read.dataset, read.type) == ("miniworld", question.type)
        gold = [passage for known in question.sub_queries for passage in known.gold_passages]
        assert read.supporting == tuple(dict.fromkeys(gold))


def test_written_entries_are_read_back_equal(tmp_path: Path) -> None:
    complete = BenchmarkQuestion("1", "Who?", ("Ana", "A."), "nq", "dev", ("p1", "p2"), "bridge")
    lines = msgspec.json.Encoder().encode_lines(
        [complete, BenchmarkQuestion("2", "Who?", ("Bo",), "nq", "dev")]
    )
    first, second = read_entries(written(tmp_path / "questions.jsonl", lines).parent)
    assert (first.question, second.question.answers) == (complete, ("Bo",))


GOOD = '{"id": "1", "question": "Who?", "answers": ["Ana"]}\n'


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        (
            "q.jsonl",
            GOOD + '{"id": "2", "question": "Who?", "answers": [" "]}\n',
            "q.jsonl:2: no answer",
        ),
        (
            "q.jsonl",
            GOOD + '{"id": "2", "question": " ", "answers": ["Bo"]}\n',
            "q.jsonl:2: no question",
        ),
        (
            "q.jsonl",
            GOOD + '{"id": "2", "qeustion": "Who?"}\n',
            "q.jsonl:2: .*lacks the required field `question`",
        ),
        (
            "q.jsonl",
            GOOD + '{"id": "2", "question": "Who?", "answers": "Bo"}\n',
            "q.jsonl:2: answers: must be a list",
        ),
        ("q.jsonl", GOOD + '{"id": "2", "question": "Wh', "q.jsonl:2: .*ends too early"),
        ("q.jsonl", GOOD + '["Who?"]', "q.jsonl:2: is not a JSON object"),
        ("q.jsonl", GOOD.encode("utf-16"), "q.jsonl:1: "),
        ("q.jsonl", GOOD.encode() + GOOD.replace("Ana", "Anä").encode("latin-1"), "q.jsonl:2: "),
        ("q.jsonl", "", "q.jsonl: has no questions"),
        ("q.jsonl.gz", gzip.compress(GOOD.encode(), mtime=0)[:-12], "q.jsonl.gz: cannot be read"),
        ("q.json", json.dumps([HOTPOT, HOTPOT])[:-9], "q.json: after item 1: .*premature EOF"),
        (
            "q.json",
            json.dumps([HOTPOT]).replace("Cy", "C\xff").encode("latin-1"),
            "q.json: after item 0: .*UTF8",
        ),
        (
            "q.json",
            json.dumps([HOTPOT, HOTPOT | {"question": 1}]),
            "q.json, item 2: question: must be text, got a whole number",
        ),
        ("q.json", json.dumps([HOTPOT, 1]), "q.json, item 2: is not a JSON object"),
        ("q.jsonl", json.dumps(MUSIQUE | {"answerable": False}), "q.jsonl:1: no answer"),
        ("q.csv", "problem,answer,canary\nx,y,z\n", "q.csv:2: its texts cannot be decrypted"),
        ("q.csv", 'problem,answer\n"Who?', "q.csv: cannot be read "),
        ("q.xlsx", "x", "q.xlsx: cannot be read .*not a zip file"),
        (
            "q.jsonl",
            json.dumps(POPQA | {"possible_answers": '["painter'}),
            "q.jsonl:1: .*ends too early",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, name: str, content: str | bytes, why: str) -> None:
    """The error has the file and the line, or the number of the item."""
    with pytest.raises(BadCorpus, match=why):
        list(read_entries(written(tmp_path / name, content)))


def encrypted(text: str, canary: str) -> str:
    """Encrypt a text as BrowseComp does."""
    key = hashlib.sha256(canary.encode()).digest()
    data = text.encode()
    repeated = key * (len(data) // len(key) + 1)
    return base64.b64encode(bytes(a ^ b for a, b in zip(data, repeated, strict=False))).decode()


PROBLEM = "Which keeper of a lighthouse, born before 1900, wrote the longest log?"


def test_encrypted_browsecomp_is_read(tmp_path: Path) -> None:
    """It is CSV with a key for each row; decrypted rows are read, too."""
    lines = [["problem", "answer", "problem_topic", "canary"]]
    lines += [
        [*(encrypted(text, canary) for text in (PROBLEM, "Ana", "Art")), canary]
        for canary in ("BrowseComp", "another key")
    ]
    with (tmp_path / "browse_comp_test_set.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    first, second = read_entries(tmp_path / "browse_comp_test_set.csv")
    expected = BenchmarkQuestion("browsecomp-1", PROBLEM, ("Ana",), "browsecomp", "test")
    assert first.question == expected
    assert (second.question.question, second.question.id) == (PROBLEM, "browsecomp-2")
    plain = {"problem": PROBLEM, "answer": "Ana", "problem_topic": "Art"}
    assert only(written(tmp_path / "plain.jsonl", [plain])) == expected


def test_encrypted_browsecomp_zh_is_read(tmp_path: Path) -> None:
    """It is a workbook with other names of columns."""
    question = "哪位灯塔守护者写下了最长的日志？"
    book = openpyxl.Workbook()
    sheet = book.create_sheet("questions", 0)
    sheet.append(["Topic", "Question", "Answer", "canary"])
    sheet.append([*(encrypted(text, "钥匙") for text in ("艺术", question, "安娜")), "钥匙"])
    book.save(tmp_path / "browsecomp-zh-encrypted.xlsx")
    assert only(tmp_path / "browsecomp-zh-encrypted.xlsx") == BenchmarkQuestion(
        "browsecomp-zh-1", question, ("安娜",), "browsecomp-zh", "test"
    )


def test_rows_are_read_lazily(tmp_path: Path) -> None:
    """The first rows are yielded before damage further on is found; the error has the form that was
    tried.
    """
    rows: list[Any] = [HOTPOT] * 500
    entries = read_entries(written(tmp_path / "q.json", json.dumps(rows)[:-2]))
    assert [next(entries).where for _ in range(3)][-1].endswith("item 3")
    with pytest.raises(BadCorpus, match="after item 499"):
        list(entries)
    with pytest.raises(BadCorpus, match=r"q.jsonl:1: .*the row was read as hotpotqa"):
        list(read_entries(written(tmp_path / "q.jsonl", [HOTPOT | {"context": 1}])))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("contest_train.jsonl", "train"),
        ("constrained.jsonl", "test"),
        ("validation.jsonl", "dev"),
        ("train_dev.jsonl", "test"),
        ("train-train.jsonl", "train"),
    ],
)
def test_a_split_is_recognised_in_the_file_s_name(tmp_path: Path, name: str, split: str) -> None:
    """It is at the start of a word; with several splits or none it is `test`."""
    assert only(written(tmp_path / name, FLASHRAG)).split == split


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}")
@pytest.mark.parametrize(
    ("file", "rows"),
    [
        ("bamboogle_125", {"bamboogle": 125}),
        ("hotpotqa_dev500", {"hotpotqa": 500}),
        ("musique_train299", {"musique": 299}),
        ("paper_splits/train_mixed3000.jsonl", {"musique": 1000, "hotpotqa": 1000, "2wiki": 1000}),
    ],
)
def test_public_data_is_read(file: str, rows: dict[str, int]) -> None:
    """Every row is read."""
    assert Counter(entry.question.dataset for entry in read_entries(SHARED / file)) == rows


def question(name: str, text: str, *answers: str, dataset: str = "popqa") -> BenchmarkQuestion:
    return BenchmarkQuestion(name, text, answers, dataset, "test")


def numbered(dataset: str, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": f"{dataset}-{n}",
            "question": f"{dataset} {n}?",
            "answers": ["x"],
            "dataset": dataset,
            "split": "dev",
        }
        for n in range(count)
    ]


def ids(path: Path) -> list[str]:
    return [entry.question.id for entry in read_entries(path)]


def test_a_sample_is_reproducible() -> None:
    """The seed decides the sample; other data sets do not change it; a small data set is taken
    whole.
    """
    popqa = [question(str(n), f"{n}?", "x") for n in range(50)]
    other_questions = [question(str(n), f"other {n}?", "x", dataset="nq") for n in range(5)]
    drawn = sample(popqa, 10, 1)
    assert len(drawn) == 10
    assert drawn == [known for known in popqa if known in drawn]
    assert drawn == sample(popqa, 10, 1) != sample(popqa, 10, 2)
    assert sample(other_questions + popqa, 10, 1) == other_questions + drawn


def test_a_sample_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has up to N questions of each data set, counted by data set."""
    path = written(tmp_path / "q.jsonl", numbered("a", 30) + numbered("b", 4))
    out = tmp_path / "questions.jsonl"
    figures = tmp_path / "figures.json"
    argv = ["datasets", str(path), "--sample", "10", "--seed", "7"]
    assert main([*argv, "--out", str(out), "--json", str(figures)]) == 0
    assert Counter(name[0] for name in ids(out)) == {"a": 10, "b": 4}
    counts = json.loads(figures.read_bytes())["counts"]
    assert [(count["dataset"], count["read"], count["sampled"]) for count in counts] == [
        ("a", 30, 10),
        ("b", 4, 4),
    ]
    assert "30" in capsys.readouterr().out


def test_a_corpus_is_pooled_and_checked(tmp_path: Path) -> None:
    """Each paragraph is in it once, with all that questions name; missing ones are counted."""
    original = written(
        tmp_path / "hotpot_dev.json",
        json.dumps([HOTPOT, HOTPOT | {"_id": "2", "question": "Whose?"}]),
    )
    plain = tmp_path / "plain"
    figures = tmp_path / "figures.json"
    plain.mkdir()
    argv = ["datasets", str(original), "--out", str(plain / "questions.jsonl")]
    assert main([*argv, "--corpus", str(plain / "corpus.jsonl")]) == 0
    assert main(["datasets", str(plain), "--json", str(figures)]) == 0
    read = json.loads(figures.read_bytes())
    assert (read["passages"], read["missing"]) == ({str(plain): 3}, {str(plain): 0})
    written(plain / "corpus.jsonl", [{"id": "other", "text": "Bo."}])
    main(["datasets", str(plain), "--json", str(figures)])
    assert list(json.loads(figures.read_bytes())["missing"].values()) == [2]


@pytest.mark.skipif(not SPLITS.is_dir(), reason=f"no {SPLITS}")
def test_the_paper_s_questions_are_complete(tmp_path: Path) -> None:
    """They are as many as in TBSS, Table 8."""
    figures = tmp_path / "figures.json"
    assert main(["datasets", str(SPLITS / "test_all.jsonl"), "--json", str(figures)]) == 0
    read = json.loads(figures.read_bytes())
    assert {count["dataset"]: count["read"] for count in read["counts"]} == {
        "2wikimultihopqa": 1000,
        "bamboogle": 125,
        "hotpotqa": 1000,
        "musique": 1000,
        "popqa": 1000,
    }
