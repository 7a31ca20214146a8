"""Parsing of the delegator's output: dispatch, stop, correction, and the certain part of a
stream.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.protocol import Passage, Report, parse_decision, prompts
from router.protocol.decision import Dispatch, EarlyReader, Stop
from router.protocol.tags import Malformed, escape
from tests.router.outputs import OUTPUTS
from tests.router.protocol.test_sub_queries import ONE_OR_MORE


def asked(text: str, *, cut: bool = False) -> tuple[str, ...]:
    """Return the sub-queries that `text` dispatches; none if it is no dispatch."""
    decision = parse_decision(text, limit=8, cut=cut)
    return decision.sub_queries if isinstance(decision, Dispatch) else ()


@pytest.mark.parametrize(
    "body",
    [
        '["Who directed Heat?", "When was he born?"]',
        '{"queries": ["Who directed Heat?", "When was he born?"]}',
        "1. Who directed Heat?\n2. When was he born?",
    ],
)
@pytest.mark.parametrize("end", ["</search>", "</search>\n", "", "\n", "</sea"])
def test_a_block_is_dispatched_with_or_without_its_closing_tag(body: str, end: str) -> None:
    assert asked(f"<search>{body}{end}") == ("Who directed Heat?", "When was he born?")


@pytest.mark.parametrize(
    "text",
    [
        "<Search>Who directed Heat?</SEARCH>",
        "```\n<search>Who directed Heat?</search>\n```",
        '```xml\n<search>\n["Who directed Heat?"]\n</search>\n```',
        "I will ask.\n\n<search>Who directed Heat?</search>\n\nI wait.",
        (
            "<think>First <search>Who acted in Heat?</search></think><search>Who directed "
            "Heat?</search>"
        ),
        (
            "<think>Is it enough? <stop/>Enough evidence<stop></think><search>Who directed "
            "Heat?</search>"
        ),
        "Shall I <search>Who acted?</search> or <stop>?</think><search>Who directed Heat?</search>",
        "<search>Who directed Heat?</search><think><search>Who acted in Heat?</search>",
        "<search>Who directed Heat?</search><stop/>Enough evidence<stop>",
        "<stop/>Enough evidence<stop><search>Who directed Heat?</search>",
        "<search>Who directed Heat?<stop/>Enough evidence<stop>",
        "<search>Who directed Heat?</search><search>who directed  heat</search>",
        "<search>Who directed Heat?</search>\n<search></search>",
        "<search>Who directed Heat?<search>",
        "I write a <search> block. <search>Who directed Heat?</search>",
        "<search>Who directed Heat?</sea",
        '<search>Who directed Heat?\n<search_results><result index="0"><request>Who?</request>',
        "<search>Who directed Heat?</search>\n<search_results><result "
        "index='0'>Mann</result></search_results>\n"
        "<search>When was Mann born?</search>\n<search_results>1943</search_results>\n"
        "<stop/>Enough evidence<stop>",
        (
            "<search>Who directed Heat?</search><information>Mann</information><search>When "
            "was he born?</search>"
        ),
        "From the <search_results> I know the film. <search>Who directed Heat?</search>",
    ],
)
def test_text_around_a_block_changes_nothing(text: str) -> None:
    assert asked(text) == ("Who directed Heat?",)


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ('<search>["a?", "b?"]', ("a?", "b?")),
        ('<search>["a?", "b?"]</sear', ("a?", "b?")),
        ('<search>["a?", "Who is the mo', ("a?",)),
        ('<search>["a?", "Is it so?', ("a?",)),
        ("<search>['a?', 'Whose is John's ", ("a?",)),
        ("<search>[Who is x?, Who", ("Who is x?",)),
        ('<search>{"query": "a?", "why"', ("a?",)),
        ("<search>a?", ("a?",)),
        ("<search>capital of France</sea", ("capital of France",)),
        ("<search>1. a?\n2. b?\n3. Who is", ("a?", "b?")),
        ("<search>- a?\n- Who is the mother of\nthe dir", ("a?",)),
        ("<search>capital of France\npopulation of Par", ("capital of France",)),
        ("<search>a?</search><search>Who is the mo", ("a?",)),
        ("<search>a?</search>And now I wr", ("a?",)),
        ("<search>capital of France\n<search_results><result>Par", ("capital of France",)),
    ],
)
def test_the_complete_questions_of_a_cut_output_are_kept(
    text: str, questions: tuple[str, ...]
) -> None:
    assert asked(text, cut=True) == questions


@pytest.mark.parametrize(
    "text",
    [
        "<search>",
        "<search>Who is the mo",
        '<search>["Who is the mo',
        '<search>["Is it so?',
        '<search>{"queries"',
        "<think>a long thought <search>a?</search>",
        "<stop/>Enough evidence<stop><search>Who is the mo",
    ],
)
def test_a_cut_output_without_a_complete_question_is_malformed(text: str) -> None:
    assert isinstance(parse_decision(text, limit=8, cut=True), Malformed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Who directed Heat?",
        "<answer>Michael Mann</answer>",
        "Enough evidence",
        "&lt;stop/&gt;Enough evidence&lt;stop&gt;",
        "&lt;search&gt;a?&lt;/search&gt;",
        "<stopped>",
        "a?</search>",
        "<think><stop/>Enough evidence<stop>",
        "I could <search>a?</search> or <stop></think> but will not.",
        "<search_results><result index='0'><request>a?</request></result></search_results>",
    ],
)
def test_no_block_and_no_stop_is_malformed(text: str) -> None:
    assert parse_decision(text, limit=8) == Malformed("neither a search block nor a stop")


def test_a_malformed_output_has_its_reason() -> None:
    assert parse_decision("<search> </search>", limit=8) == Malformed("the search block is empty")
    assert parse_decision("<search>[]</search>", limit=8) == Malformed(
        "no complete question in the search block"
    )


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "<stop/>Enough evidence<stop>",
        "<stop/>Enough evidence</stop>",
        "<stop>Enough evidence</stop>",
        "<stop>Enough evidence",
        "<stop/>",
        "</stop>",
        "< / stop >",
        "<STOP/>ENOUGH EVIDENCE<STOP>",
        "```\n<stop/>Enough evidence<stop>\n```",
        "All is known. <stop/>Enough evidence<stop>",
        "<think>One more <search>a?</search>? No.</think>\n<stop/>Enough evidence<stop>",
        "<stop/>Enough evidence<stop><think>wait",
        "<search></search><stop/>Enough evidence<stop>",
        "<stop/>Enough evidence<stop><search></search>",
        "<search>[]</search><stop/>Enough evidence<stop>",
        "<search><stop/>Enough evidence<stop></search>",
        "No <search> is needed. <stop/>Enough evidence<stop>",
        "By the <search_results> I am done. <stop/>Enough evidence<stop>",
    ],
)
def test_a_stop_is_read_as_printed_and_in_its_variants(text: str, cut: bool) -> None:
    assert parse_decision(text, limit=8, cut=cut) == Stop()


@pytest.mark.parametrize(
    "text",
    [
        '<search>["a?", "b?"]</search><search>["b?", "c?"]</search>',
        "<search>a?</search><search>b?</search><search>c?</search>",
        "<search>a?<search>b?</search><search>c?",
        '```\n<search>a?</search>\n```\n```\n<search>["b?", "c?"]</search>\n```',
    ],
)
def test_several_blocks_are_united_in_order(text: str) -> None:
    assert asked(text) == ("a?", "b?", "c?")


@pytest.mark.parametrize(
    "again",
    ["who DIRECTED heat?", "Who directed Heat", "Who  directed Heat ?", "Who directed Heat?!"],
)
def test_a_duplicate_runs_once_in_its_first_spelling(again: str) -> None:
    assert asked(f'<search>["Who directed Heat?", "{again}", "b?"]</search>') == (
        "Who directed Heat?",
        "b?",
    )


def test_questions_over_the_limit_are_listed_separately() -> None:
    text = '<search>["a?", "b?", "A", "c?"]</search><search>d?</search>'
    assert parse_decision(text, limit=2) == Dispatch(("a?", "b?"), ("c?", "d?"))
    assert parse_decision(text, limit=4) == Dispatch(("a?", "b?", "c?", "d?"), ())


@settings(deadline=None)
@given(OUTPUTS, st.booleans(), st.integers(1, 8))
def test_any_text_gives_a_decision(text: str, cut: bool, limit: int) -> None:
    decision = parse_decision(text, limit=limit, cut=cut)
    if isinstance(decision, Dispatch):
        questions = decision.sub_queries + decision.over_limit
        assert 0 < len(decision.sub_queries) <= limit
        assert len(set(questions)) == len(questions)
        assert all(
            len(question.encode()) > 0 and question == " ".join(question.split())
            for question in questions
        )


@settings(deadline=None)
@given(OUTPUTS)
@example("<stop/>Enough evidence<stop>")
@example("<search>a?</search>")
def test_escaped_text_decides_nothing_wherever_it_stands(text: str) -> None:
    report = Report(text, (text, text))
    for shown in (
        escape(text),
        prompts.request(text),
        prompts.documents([Passage("1", text, text)], last=False),
        prompts.search_results([(text, report)], [text]),
        prompts.answer_request(text, [(text, report)]),
    ):
        assert isinstance(parse_decision(shown, limit=8), Malformed)


def certain(text: str, *, limit: int = 8, size: int = 1) -> list[tuple[str, ...]]:
    """Return the sub-queries announced for `text`, which comes in pieces of `size` characters."""
    announced: list[tuple[str, ...]] = []
    reader = EarlyReader(limit, announced.append)
    for start in range(0, len(text), size):
        reader.feed(text[start : start + size])
    return announced


@pytest.mark.parametrize(
    ("text", "questions"),
    [
        ('<search>["a?"', ("a?",)),
        ('<search>["a?", "b', ("a?",)),
        ('<search>["a?", "b?"', ("a?", "b?")),
        ("<search>['a?'", ("a?",)),
        ('<search>{"queries": ["a?"', ("a?",)),
        ('<search>[{"query": "a?"', ("a?",)),
        ('< Search >\n```json\n[\n  "a?"', ("a?",)),
        ('<think>Is it ["b?"]? <search>["c?"]</search></think><search>["a?"', ("a?",)),
        ('They ask.</think>\n<search>["a?"', ("a?",)),
        ('<search>["director of Heat", "', ("director of Heat",)),
        ('<search>["director of Heat"]', ("director of Heat",)),
        ("<search>1. a?\n", ("a?",)),
        ("<search>- a?\n- b?\n- c", ("a?", "b?")),
        ("<search>a?</search>", ("a?",)),
        ("<search>director of Heat</search>", ("director of Heat",)),
    ],
)
def test_a_complete_question_is_certain_before_the_block_ends(
    text: str, questions: tuple[str, ...]
) -> None:
    assert certain(text)[-1] == questions


@pytest.mark.parametrize(
    "text",
    [
        '<search>["a?',
        '<search>["director of Heat"',
        '<search>["Who wrote "Hamlet", and when',
        '<search>{"reasoning": "Is it he?", "tas',
        '<search>{"queries"',
        '<think><search>["a?"]</search>',
        "<search>a? And",
        "<search>a?\nb?\n",
        "<search>1. a?",
        "<search>- director of Heat\n- his birthday\n",
        "<stop/>Enough evidence<stop>",
    ],
)
def test_an_ambiguous_question_is_not_certain(text: str) -> None:
    """A quote may stand within its string, a key may be for reasons, and a line may continue."""
    assert certain(text) == []


@pytest.mark.parametrize("body", ONE_OR_MORE.values(), ids=ONE_OR_MORE)
def test_certain_questions_are_dispatched(body: str) -> None:
    """Each piece adds to the certain questions, and at the end they are the decision."""
    text = f"<search>{body}</search>"
    decision = parse_decision(text, limit=8)
    assert isinstance(decision, Dispatch)
    for size in (1, 3, 50):
        announced = certain(text, size=size)
        assert announced[-1] == decision.sub_queries
        assert all(
            decision.sub_queries[: len(sub_queries)] == sub_queries for sub_queries in announced
        )


def test_no_more_questions_than_the_limit_are_certain() -> None:
    assert certain('<search>["a?", "b?", "c?", "d?"]</search>', limit=2)[-1] == ("a?", "b?")


@settings(deadline=None)
@given(OUTPUTS, st.integers(1, 9))
@example('<search>["a?", "b?"]</search>', 1)
def test_any_text_in_any_pieces_announces_each_question_once(text: str, size: int) -> None:
    announced = certain(f"<search>{text}", size=size)
    assert sorted(map(len, announced)) == list(dict.fromkeys(map(len, announced)))


@pytest.mark.parametrize(
    ("text", "questions", "managers"),
    [
        ('<search manager="browser">["a?", "b?"]</search>', ("a?", "b?"), ("browser", "browser")),
        ("< Search  Manager = 'browser' >a?</search>", ("a?",), ("browser",)),
        (
            '<search>["a?"]</search><search manager="browser">["b?"]</search>',
            ("a?", "b?"),
            ("", "browser"),
        ),
        (
            '<search manager="x">a?</search><search manager="y">a?</search>',
            ("a?", "a?"),
            ("x", "y"),
        ),
        ('<search manager="x">a?</search><search manager="x">A?</search>', ("a?",), ("x",)),
        ("<search manager=a&amp;b>a?</search>", ("a?",), ("a&b",)),
        ('<search manager="">a?</search>', ("a?",), ()),
        ("<search>a?</search>", ("a?",), ()),
    ],
)
def test_a_block_may_name_a_manager(
    text: str, questions: tuple[str, ...], managers: tuple[str, ...]
) -> None:
    """Managers are configured. No question of a block that names one is certain before its end."""
    assert parse_decision(text, limit=8, managed=True) == Dispatch(questions, (), managers)
    assert certain(text) == ([] if "anager" in text.partition(">")[0] else [("a?",)])


@pytest.mark.parametrize(
    "text",
    [
        '<search manager="browser">a?</search>',
        '<search for="it">a?</search>',
        '<search manager="browser"',
    ],
)
def test_without_managers_a_tag_with_an_attribute_is_no_tag(text: str) -> None:
    """A tag with another attribute never is."""
    assert isinstance(parse_decision(text, limit=8), Malformed)
    assert isinstance(parse_decision(text, limit=8, managed=True), Dispatch) == (
        "manager" in text and ">a" in text
    )


@settings(deadline=None)
@given(OUTPUTS, st.booleans())
def test_any_text_names_a_manager_for_all_sub_queries_or_for_none(text: str, cut: bool) -> None:
    """A text without names is read as without managers."""
    decision = parse_decision(text, limit=3, cut=cut, managed=True)
    assert decision == parse_decision(text, limit=3, cut=cut)
    named = parse_decision(f'<search manager="x">{text}</search>', limit=3, cut=cut, managed=True)
    if isinstance(named, Dispatch):
        assert len(named.managers) in (0, len(named.sub_queries))
