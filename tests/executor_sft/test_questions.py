"""Lists of questions in the forms of data sets."""

import random
import unicodedata
from pathlib import Path

import msgspec
import pytest

from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from executor_sft.questions import HeldOut, Question, _triples, read_questions
from router.errors import BadConfig

SHARED = Path(__file__).parents[3] / "shared" / "data"


def test_every_form_is_read(tmp_path: Path) -> None:
    """The question is `text` or `question`; there is a right answer or a list of them, under any of
    the usual names.
    """
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '\ufeff{"id": "a", "text": "One?", "answer": "1"}\n'
        '{"question": "Two?", "answers": ["2", "two", " "], "dataset": "hotpotqa"}\n'
        "\n"
        '{"id": 3, "question": "Three?", "golden_answers": ["3"], "source": "popqa", '
        '"answer": "three"}\n'
        '{"id": "a", "text": "Four?", "golds": ["4"], "more": {"x": 1}}\n',
        "utf-8",
    )
    assert read_questions(path)[0] == [
        Question("a", "One?", ("1",)),
        Question("2", "Two?", ("2", "two"), "hotpotqa"),
        Question("3", "Three?", ("3",), "popqa"),
        Question("a#2", "Four?", ("4",)),
    ]


def test_duplicates_are_left_out(tmp_path: Path) -> None:
    """Case, punctuation and articles do not distinguish questions; the first is kept."""
    path = tmp_path / "questions.jsonl"
    texts = (
        "Who directed the film Heat?",
        "who directed film heat",
        "Who wrote Heat?",
        "誰?",
        "何?",
    )
    path.write_text("".join(f'{{"text": "{text}", "answer": "x"}}\n' for text in texts), "utf-8")
    questions, duplicates = read_questions(path)
    assert [question.text for question in questions] == [texts[0], *texts[2:]]
    assert duplicates == 1


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    """This includes keys of tables. Tables with the same words and other columns are different."""
    (path := tmp_path / "q.jsonl").write_text(
        '{"question": "Who?", "answer": "a", "rows": 3, "columns": ["a"]}\n'
    )
    assert [question.text for question in read_questions(path)[0]] == ["Who?"]
    lines = [
        {"question": "Fill it", "columns": [{"name": "city", "key": True}, {"name": name}]}
        for name in "abb"
    ]
    path.write_bytes(msgspec.json.Encoder().encode_lines(lines))
    questions, duplicates = read_questions(path, tables=True)
    assert (
        [question.table and question.table.columns[1].name for question in questions],
        duplicates,
    ) == (
        ["a", "b"],
        1,
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"text": "One?"}', "no right answer is given"),
        ('{"text": "One?", "answers": []}', "no right answer is given"),
        ('{"text": "One?", "answers": [" "]}', "no right answer is given"),
        ('{"answer": "1"}', "no question"),
        ('{"text": "One?", "answer": 1}', "answer: must be text or a list, got a whole number"),
        ("One?", "each line must be one JSON object"),
        ('["One?"]', "must be an object, got a list"),
        ('{"text": "One?", "x": ' + "[" * 100_000, "is nested too deeply"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, line: str, why: str) -> None:
    """The error has file and line."""
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"text": "Zero?", "answer": "0"}}\n{line}\n', "utf-8")
    with pytest.raises(BadConfig, match=f"questions.jsonl:2: .*{why}"):
        read_questions(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"nothing.jsonl: cannot be read"):
        read_questions(tmp_path / "nothing.jsonl")


HELD_OUT = "In which city was the director of Straße’s film “Café Noir – 1947” born?"


@pytest.mark.parametrize(
    ("text", "likeness"),
    [
        (HELD_OUT, "same"),
        (HELD_OUT.upper(), "same"),  # ß is SS
        (HELD_OUT.replace("Straße", "STRAẞE"), "same"),
        (HELD_OUT.replace("i", "İ"), "same"),
        # Full width
        (
            "".join(
                chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character
                for character in HELD_OUT
            ),
            "same",
        ),
        (unicodedata.normalize("NFD", HELD_OUT), "same"),
        (HELD_OUT.replace("é", "e"), "same"),
        (HELD_OUT.replace("city", "ci\u00adty"), "same"),  # a soft hyphen
        # No width
        (HELD_OUT.replace("city", "c\u200bi\u200dt\ufefff\u2060y".replace("f", "")), "same"),
        (HELD_OUT.replace(" ", "\u00a0"), "same"),
        (HELD_OUT.replace(" ", "\u2003 "), "same"),
        (HELD_OUT.replace("’", "'").replace("“", '"').replace("”", '"'), "same"),
        (HELD_OUT.replace("“", "«").replace("”", "»"), "same"),
        (HELD_OUT.replace("–", "—"), "same"),
        (HELD_OUT.replace(" – ", "-"), "same"),
        (HELD_OUT.replace("?", "؟!…"), "same"),
        (HELD_OUT.replace("film", "film™ №").replace("™ №", " ✨©"), "same"),
        (HELD_OUT.replace("the director", "a director"), "same"),
        (HELD_OUT.replace("fi", "ﬁ"), "same"),  # a ligature
        (HELD_OUT.replace("1947", "¹⁹⁴⁷"), "same"),
        (HELD_OUT.replace("city", "\u202ecity\u202c"), "same"),  # from right to left
        (HELD_OUT.replace("director", "direktor"), "near"),
        (
            HELD_OUT.replace("In which city was", "Which city was").replace("born", "born in"),
            "near",
        ),
        (HELD_OUT.replace("city", "exact city"), "near"),
        (HELD_OUT.replace("– 1947", ""), "near"),
        (HELD_OUT.replace("1947", "1948"), None),
        (HELD_OUT.replace("i", "і"), "same"),  # Cyrillic letters that look alike
        (HELD_OUT.replace("a", "а").replace("o", "ο").replace("e", "е").replace("c", "с"), "same"),
        (" ".join(HELD_OUT), "same"),  # spaced letters
        ("-".join(HELD_OUT), "same"),
        (" ".join(HELD_OUT.replace("director", "direktor")), "near"),
        (" ".join(HELD_OUT.replace("1947", "1948")), None),
        (" ".join("Where was Mann born?"), None),
        (HELD_OUT.replace("Straße’s film “Café Noir – 1947”", "the film Heat"), None),
        ("Where was Mann born?", None),
        ("", None),
    ],
)
def test_held_out_questions_are_recognised(text: str, likeness: str | None) -> None:
    """Any spelling is recognised; a question with another name or number in the same words is
    different.
    """
    assert HeldOut([HELD_OUT, "Who made Heat?"]).likeness(text) == likeness


def test_the_index_finds_what_pairwise_comparison_finds() -> None:
    """It has rare triples of characters."""
    rng = random.Random(3)
    names = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 9))) for _ in range(40)]
    texts = [
        f"Who was the {rng.choice(names)} of {rng.choice(names)} and {rng.choice(names)}?"
        for _ in range(300)
    ]
    held_out = HeldOut(texts[:150])

    def alike(left_text: str, right_text: str) -> bool:
        mine = _triples(left_text)
        its = _triples(right_text)
        return len(mine & its) >= 0.8 * len(mine | its)

    likenesses = [held_out.likeness(text) is not None for text in texts]
    assert likenesses == [any(alike(text, other) for other in texts[:150]) for text in texts]
    assert 150 < sum(likenesses) < 300


def test_held_out_files_need_no_answers(tmp_path: Path) -> None:
    """Their sub-queries are held out too, in the mini world's form or as a list."""
    path = tmp_path / "held-out.jsonl"
    path.write_text(
        '{"question": "Who made Heat?", "sub_queries": ["Who is Vincent Hanna?"]}\n', "utf-8"
    )
    (question, *_) = export(World(3, "test"), tmp_path, 5)
    held_out = HeldOut.read([path, tmp_path / "questions.jsonl"])
    for text in (
        "who made HEAT",
        "Who is Vincent Hanna",
        question.text,
        question.sub_queries[0].text,
    ):
        assert held_out.likeness(text) == "same"
    assert held_out.likeness("Who is Michael Mann?") is None


def test_the_mini_world_s_export_is_read(tmp_path: Path) -> None:
    questions = export(World(3, "train"), tmp_path, 20)
    read, duplicates = read_questions(tmp_path / "questions.jsonl")
    assert len(read) + duplicates == 20
    assert read[0] == Question(questions[0].id, questions[0].text, (questions[0].answer,))


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
def test_public_data_is_read(file: str, rows: int) -> None:
    """Every row is read, with a unique id."""
    if not SHARED.exists():
        pytest.skip(f"no {SHARED}")
    questions, duplicates = read_questions(SHARED / file)
    assert len(questions) + duplicates == rows
    assert len({question.id for question in questions}) == len(questions)
    assert all(question.source for question in questions)
