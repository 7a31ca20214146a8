"""The body of a search block: questions, however a model wrote them down."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.protocol.sub_queries import read_questions
from router.protocol.tags import one_line
from tests.router.outputs import OUTPUTS

AB = ["Who directed Heat?", "When was he born?"]

ONE_OR_MORE = {
    "json": '["Who directed Heat?", "When was he born?"]',
    "json over lines": '[\n  "Who directed Heat?",\n  "When was he born?"\n]',
    "trailing comma": '["Who directed Heat?", "When was he born?",]',
    "comma missing": '["Who directed Heat?"\n "When was he born?"]',
    "closing bracket missing": '["Who directed Heat?", "When was he born?"',
    "brackets missing": '"Who directed Heat?", "When was he born?"',
    "quoted lines": '"Who directed Heat?",\n"When was he born?"',
    "smart quotes": "[“Who directed Heat?”, “When was he born?”]",
    "python": "['Who directed Heat?', 'When was he born?']",
    "python, mixed quotes": "['Who directed Heat?', \"When was he born?\"]",
    "python tuple": "('Who directed Heat?', 'When was he born?')",
    "python assignment": "queries = ['Who directed Heat?', 'When was he born?']",
    "bare words": "[Who directed Heat?, When was he born?]",
    "nested": '[["Who directed Heat?"], ["When was he born?"]]',
    "nested deeper": '[[["Who directed Heat?", ["When was he born?"]]]]',
    "two lists": '["Who directed Heat?"]\n["When was he born?"]',
    "null among them": '["Who directed Heat?", null, "When was he born?"]',
    "null first": '[null, "Who directed Heat?", 3, "When was he born?"]',
    "queries": '{"queries": ["Who directed Heat?", "When was he born?"]}',
    "Sub-Queries": '{"Sub-Queries": ["Who directed Heat?", "When was he born?"]}',
    "sub_questions": "{'sub_questions': ['Who directed Heat?', 'When was he born?']}",
    "search_queries": '{"search_queries": ["Who directed Heat?", "When was he born?"]}',
    "query objects": '[{"query": "Who directed Heat?"}, {"query": "When was he born?"}]',
    "question objects": '[{"id": 1, "question": "Who directed Heat?"}, {"id": 2, "question": "When was he born?"}]',
    "with reasons": '[{"query": "Who directed Heat?", "why": "first hop"}, "When was he born?"]',
    "one key each": '{"query1": "Who directed Heat?", "query_2": "When was he born?"}',
    "numbers as keys": '{"1": "Who directed Heat?", "2": "When was he born?"}',
    "unknown key": '{"reasoning": "Two hops.", "tasks": ["Who directed Heat?", "When was he born?"]}',
    "sentence before the list": 'I need these: ["Who directed Heat?", "When was he born?"]',
    "sentence after the list": '["Who directed Heat?", "When was he born?"]\nThese "two" will do.',
    "fenced inside": '```json\n["Who directed Heat?", "When was he born?"]\n```',
    "fenced inside, one line": '```["Who directed Heat?", "When was he born?"]```',
    "fenced python": "```python\n['Who directed Heat?', 'When was he born?']\n```",
    "numbered": "1. Who directed Heat?\n2. When was he born?",
    "numbered with brackets": "1) Who directed Heat?\n(2) When was he born?",
    "numbered on one line": "1. Who directed Heat? 2. When was he born?",
    "numbered and quoted": '1. "Who directed Heat?",\n2. "When was he born?"',
    "numbered in bold": "**1.** Who directed Heat?\n**2.** **When was he born?**",
    "lettered": "a) Who directed Heat?\nb) When was he born?",
    "labelled": "Q1: Who directed Heat?\nQ2: When was he born?",
    "labelled at length": "Sub-query 1: Who directed Heat?\nSub-query 2: When was he born?",
    "bulleted": "- Who directed Heat?\n- When was he born?",
    "bulleted with stars": "* Who directed Heat?\n* When was he born?",
    "bulleted with dots": "• Who directed Heat?\n• When was he born?",
    "bulleted, heading and remark": "I ask:\n- Who directed Heat?\n\n- When was he born?\nThat is all.",
    "bulleted over lines": "- Who directed\n  Heat?\n- When was he\n  born?",
    "windows lines": "- Who directed Heat?\r\n- When was he born?\r\n",
    "plain lines": "Who directed Heat?\nWhen was he born?",
    "plain lines apart": "\nWho directed Heat?\n\n  When was he born?\n",
    "plain lines, heading and remark": "Questions:\nWho directed Heat?\nWhen was he born?\nBoth are needed.",
    "query elements": "<query>Who directed Heat?</query><query>When was he born?</query>",
    "question elements": "<questions>\n<question>Who directed Heat?</question>\n"
    "<question>When was he born?</question>\n</questions>",
}


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_questions_are_read_however_they_are_written(body: str) -> None:
    assert read_questions(body, partial=False) == AB


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_wherever_a_block_is_cut_no_half_question_is_read(body: str) -> None:
    for end in range(len(body) + 1):
        assert set(read_questions(body[:end], partial=True)) <= set(AB), body[:end]


@pytest.mark.parametrize(
    ("body", "question"),
    [
        ("Who directed Heat?", "Who directed Heat?"),
        ("director of Heat", "director of Heat"),
        ("  Who directed\n  Heat?  ", "Who directed Heat?"),
        ('"Who directed Heat?"', "Who directed Heat?"),
        ("'Who directed Heat?'", "Who directed Heat?"),
        ("`Who directed Heat?`", "Who directed Heat?"),
        ("Query: Who directed Heat?", "Who directed Heat?"),
        ("1. Who directed Heat?", "Who directed Heat?"),
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
        ('["1. FC Köln: when founded?"]', "1. FC Köln: when founded?"),
    ],
)
def test_one_question(body: str, question: str) -> None:
    assert read_questions(body, partial=False) == [question]


NOTHING = [
    "", "[]", "[ ]", "{}", "[[]]", "[{}]", '[""]', "['']", '""', '{"queries": []}', "{'queries': []}", '{"query": ""}',
    "```json\n[]\n```", "[1, 2]", "[null]", "null", "None", "N/A.", "...", "?", "1.", "-", "<query></query>",
    '{"answer": "Michael Mann"}', "Questions:",
]  # fmt: skip


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
def test_a_json_list_is_read_exactly(text: str) -> None:
    question = f"Is it {text}?"
    written = json.dumps([question, f"And {question}"])
    assert read_questions(written, partial=False) == [one_line(question), one_line(f"And {question}")]


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-16"), max_size=60).filter(str.isprintable))
@example('John\'s "friend"')
@example("no\xa0break")
def test_a_python_list_is_read_exactly(text: str) -> None:
    question = f"Is it {text}?"
    assert read_questions(repr([question]), partial=False) == [one_line(question)]
