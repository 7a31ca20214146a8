"""Parsing of the body of a search block: questions in any notation."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.protocol.sub_queries import read_questions
from router.protocol.tags import one_line
from tests.router.outputs import OUTPUTS

AB = ["Who directed Heat?", "When was he born?"]

_SPELLINGS = {
    "json": '["A?", "B?"]',
    "trailing comma": '["A?", "B?",]',
    "comma missing": '["A?"\n "B?"]',
    "closing bracket missing": '["A?", "B?"',
    "brackets missing": '"A?", "B?"',
    "quoted lines": '"A?",\n"B?"',
    "smart quotes": "[“A?”, “B?”]",
    "python": "['A?', 'B?']",
    "python tuple": "('A?', 'B?')",
    "python assignment": "queries = ['A?', 'B?']",
    "bare words": "[A?, B?]",
    "nested deeper": '[[["A?", ["B?"]]]]',
    "two lists": '["A?"]\n["B?"]',
    "null first": '[null, "A?", 3, "B?"]',
    "queries": '{"queries": ["A?", "B?"]}',
    "Sub-Queries": '{"Sub-Queries": ["A?", "B?"]}',
    "sub_questions": "{'sub_questions': ['A?', 'B?']}",
    "question objects": '[{"id": 1, "question": "A?"}, {"id": 2, "question": "B?"}]',
    "with reasons": '[{"query": "A?", "why": "first hop"}, "B?"]',
    "one key each": '{"query1": "A?", "query_2": "B?"}',
    "numbers as keys": '{"1": "A?", "2": "B?"}',
    "unknown key": '{"reasoning": "Two hops.", "tasks": ["A?", "B?"]}',
    "sentence before the list": 'I need these: ["A?", "B?"]',
    "sentence after the list": '["A?", "B?"]\nThese "two" will do.',
    "fenced inside": '```json\n["A?", "B?"]\n```',
    "fenced python": "```python\n['A?', 'B?']\n```",
    "numbered with brackets": "1) A?\n(2) B?",
    "numbered on one line": "1. A? 2. B?",
    "numbered and quoted": '1. "A?",\n2. "B?"',
    "numbered in bold": "**1.** A?\n**2.** **B?**",
    "lettered": "a) A?\nb) B?",
    "labelled": "Q1: A?\nQ2: B?",
    "labelled at length": "Sub-query 1: A?\nSub-query 2: B?",
    "bulleted with dots": "• A?\n• B?",
    "bulleted, heading and remark": "I ask:\n- A?\n\n- B?\nThat is all.",
    "bulleted over lines": "- Who directed\n  Heat?\n- When was he\n  born?",
    "windows lines": "- A?\r\n- B?\r\n",
    "plain lines": "A?\nB?",
    "plain lines, heading and remark": "Questions:\nA?\nB?\nBoth are needed.",
    "elements in a list": '["<query>A?</query>", "<query>B?</query>"]',
    "query elements": "<query>A?</query><query>B?</query>",
    "question elements": (
        "<questions>\n<question>A?</question>\n<question>B?</question>\n</questions>"
    ),
}
ONE_OR_MORE = {
    name: body.replace("A?", AB[0]).replace("B?", AB[1]) for name, body in _SPELLINGS.items()
}


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_questions_are_read_however_they_are_written(body: str) -> None:
    assert read_questions(body, partial=False) == AB


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_a_block_cut_at_any_place_gives_no_half_question(body: str) -> None:
    for end in range(len(body) + 1):
        assert set(read_questions(body[:end], partial=True)) <= set(AB), body[:end]


@pytest.mark.parametrize(
    ("body", "question"),
    [
        ("director of Heat", "director of Heat"),
        ("  Who directed\n  Heat?  ", "Who directed Heat?"),
        ('"Who directed Heat?"', "Who directed Heat?"),
        ("`Who directed Heat?`", "Who directed Heat?"),
        ("Query: Who directed Heat?", "Who directed Heat?"),
        ('["Who directed Heat?"]', "Who directed Heat?"),
        ('{"query": "Who directed Heat?"}', "Who directed Heat?"),
        ('{query: "Who directed Heat?"}', "Who directed Heat?"),
        ("[Who directed Heat?]", "Who directed Heat?"),
        ('"Hamlet" was written by whom?', '"Hamlet" was written by whom?'),
        ('"Hamlet" and "Macbeth"', '"Hamlet" and "Macbeth"'),
        ('Who wrote "Hamlet", and who "Lear"?', 'Who wrote "Hamlet", and who "Lear"?'),
        ("(500) Days of Summer: who directed it?", "(500) Days of Summer: who directed it?"),
        ('Who wrote the song ("Hurt")?', 'Who wrote the song ("Hurt")?'),
        ('("Hurt") is by whom?', '("Hurt") is by whom?'),
        ('Who said: "I am", and why?', 'Who said: "I am", and why?'),
        ("Who was Ridley Scott's brother?", "Who was Ridley Scott's brother?"),
        ("['Who was Ridley Scott's brother?']", "Who was Ridley Scott's brother?"),
        (r"['Who was Ridley Scott\'s brother?']", "Who was Ridley Scott's brother?"),
        ('["Who was Ridley Scott\'s brother?"]', "Who was Ridley Scott's brother?"),
        ('["Who wrote "Hamlet", and when?"]', 'Who wrote "Hamlet", and when?'),
        (r'["Who wrote \"Hamlet\", \"Lear\" and more?"]', 'Who wrote "Hamlet", "Lear" and more?'),
        (r'["Who was Andr\u00e9 \uD83D\uDE00?"]', "Who was André 😀?"),
        (r'["Who\nwas \/ he?"]', "Who was / he?"),
        (r'["Broken \ud83d pair?"]', "Broken \ufffd pair?"),
        ('["Is [this] a {list}, or not?"]', "Is [this] a {list}, or not?"),
        ('["Who founded Johnson &amp; Johnson?"]', "Who founded Johnson & Johnson?"),
        ("What does &lt;stop/&gt; mean?", "What does <stop/> mean?"),
        ("What does AT&T &copy own?", "What does AT&T &copy own?"),
        ("谁导演了《英雄》？", "谁导演了《英雄》？"),
        ("Who said the following words:", "Who said the following words:"),
        ("978-3-16-148410-0", "978-3-16-148410-0"),
        ("+49 30 901820", "+49 30 901820"),
        ('["978-3-16-148410-0?"]', "978-3-16-148410-0?"),
        ("2**10", "2**10"),
        ("What is 2 ** 10?", "What is 2 ** 10?"),
        ("What is x**2 at **3**?", "What is x**2 at 3?"),
        ('["1. FC Köln: when founded?"]', "1. FC Köln: when founded?"),
    ],
)
def test_a_single_question_is_read(body: str, question: str) -> None:
    assert read_questions(body, partial=False) == [question]


NOTHING = [
    "",
    "[]",
    "[ ]",
    "{}",
    "[[]]",
    "[{}]",
    '[""]',
    "['']",
    '""',
    '{"queries": []}',
    "{'queries': []}",
    '{"query": ""}',
    "```json\n[]\n```",
    "[1, 2]",
    "[null]",
    "null",
    "None",
    "N/A.",
    "...",
    "?",
    "1.",
    "-",
    "<query></query>",
    '{"answer": "Michael Mann"}',
    "Questions:",
    "**Sub-queries:**",
    "[10, 20]",
]


@pytest.mark.parametrize("body", NOTHING)
@pytest.mark.parametrize("partial", [False, True])
def test_a_block_may_hold_no_question(body: str, partial: bool) -> None:
    assert read_questions(body, partial=partial) == []


def test_a_very_long_text_is_no_question() -> None:
    assert read_questions(f'["{"x" * 2001}", "{"y" * 2000}"]', partial=False) == ["y" * 2000]
    assert read_questions("so on and " * 300, partial=False) == []


@settings(deadline=None)
@given(OUTPUTS, st.booleans())
def test_any_text_gives_questions_that_are_not_empty(text: str, partial: bool) -> None:
    assert all(read_questions(text, partial=partial))


@given(st.text(min_size=1, max_size=60))
@example('Who wrote "Hamlet", "Lear"?')
@example("What is <search> in C:\\?")
@example("```")
@example("<QUERY>")
def test_a_json_list_is_read_exactly(text: str) -> None:
    question = f"Is it {text}?"
    written = json.dumps([question, f"And {question}"])
    assert read_questions(written, partial=False) == [
        one_line(question),
        one_line(f"And {question}"),
    ]


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-16"), max_size=60).filter(str.isprintable))
@example('John\'s "friend"')
@example("no\xa0break")
def test_a_python_list_is_read_exactly(text: str) -> None:
    question = f"Is it {text}?"
    assert read_questions(repr([question]), partial=False) == [one_line(question)]
