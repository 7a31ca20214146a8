"""Parsing of turns of executors, agents and answerers: a search, a report, an answer, or none."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from router.protocol import Passage, Report, parse_turn, prompts
from router.protocol.tags import Malformed, element, escape, one_line
from router.protocol.turns import (
    ExecutionTurn,
    ReportTurn,
    SearchTurn,
    parse_answer,
    read_answer,
)
from tests.router.outputs import OUTPUTS

REPORT = "<answer>Michael Mann</answer><evidence>Heat was directed by Mann.</evidence>"
MANN = ReportTurn(Report("Michael Mann", ("Heat was directed by Mann.",)))


@pytest.mark.parametrize(
    "text",
    [
        "<search>director of Heat</search>",
        "<search>director of Heat",
        "<SEARCH>\n director  of\tHeat \n</SEARCH>",
        '<search>"director of Heat"</search>',
        '<search>["director of Heat"]</search>',
        "```\n<search>director of Heat</search>\n```",
        "I look it up: <search>director of Heat</search>",
        (
            "<think>Perhaps <search>cast of Heat</search>?</think>\n\n<search>director of "
            "Heat</search>"
        ),
        f"I know it. {REPORT}</think><search>director of Heat</search>",
        f"<think>{REPORT}</think><search>director of Heat</search>",
        "<search>director of Heat</search><stop/>Enough evidence<stop>",
    ],
)
def test_a_search_is_read_in_any_notation(text: str) -> None:
    assert parse_turn(text) == SearchTurn("director of Heat", 0)


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("<search>a?</search><search>b?</search>", 1),
        ("<search>a?<search>b?</search>", 1),
        ("<search></search><search>a?</search><search>b?</search>", 1),
        ('<search>["a?", "b?", "c?"]</search>', 2),
        ('<search>["a?", "b?"]</search><search>c?</search>', 2),
        ("<search>a?</search><search></search>", 0),
    ],
)
def test_the_first_query_runs_and_the_rest_is_counted(text: str, ignored: int) -> None:
    assert parse_turn(text) == SearchTurn("a?", ignored)


@pytest.mark.parametrize(
    "tag", ["search_results", "documents", 'document index="0"', "result", "information"]
)
def test_text_after_invented_results_is_ignored(tag: str) -> None:
    text = f"<search>a?</search>\n<{tag}>It is so.</{tag}>\n<search>b?</search>{REPORT}"
    assert parse_turn(text) == SearchTurn("a?", 0)
    assert parse_turn(
        f"<search>a?\n<{tag}>It is so.</{tag}><search>b?</search>", cut=True
    ) == SearchTurn("a?", 0)


def test_of_search_and_report_the_first_counts() -> None:
    assert parse_turn(f"<search>a?</search>{REPORT}") == SearchTurn("a?", 0)
    assert parse_turn(f"{REPORT}<search>a?</search>") == MANN


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Michael Mann</answer><search>a?</search>",
        "<answer></answer><evidence>e</evidence><search>a?</search>",
        "<evidence>e</evidence><search>a?</search><answer>Michael Mann</answer>",
        "<answer>Michael Mann</answer><search>a?</search><evidence>e</evidence>",
        "<search>a?<answer>Michael Mann</answer><evidence>e</evidence>",
    ],
)
def test_an_incomplete_report_does_not_hide_a_search(text: str) -> None:
    assert parse_turn(text) == SearchTurn("a?", 0)


@pytest.mark.parametrize(
    "text",
    [
        REPORT,
        REPORT.replace("answer>", "ANSWER>").replace("evidence>", "Evidence >"),
        (
            "<answer>\nMichael  Mann\n</answer>\n\n"
            "<evidence>\n- Heat was directed\n  by Mann.\n</evidence>\n"
        ),
        "<answer>Michael Mann</answer><evidence>Heat was directed by Mann.",
        "<answer>Michael Mann<evidence>Heat was directed by Mann.</evidence>",
        "<answer>Michael Mann<evidence>Heat was directed by Mann.</evidence></answer>",
        "<answer>Michael Mann<answer><evidence>Heat was directed by Mann.</evidence>",
        "<answer>Michael Mann</answer><evidence>Heat was directed by Mann.</answer>",
        '<answer>Michael Mann</answer><evidence>["Heat was directed by Mann."]</evidence>',
        f"```xml\n{REPORT}\n```",
        f"Here is the report.\n{REPORT}\nDone.",
        f"<think>Enough? <search>a?</search></think>{REPORT}",
        f"Enough. <search>a?</search></think>{REPORT}",
        f"By the <documents>, {REPORT}",
        f"No further <search> is needed. {REPORT}",
        f"<search></search>{REPORT}",
        f"{REPORT}<answer>Ridley Scott</answer><evidence>Invented.</evidence>",
    ],
)  # fmt: skip
def test_a_report_is_read_with_its_evidence(text: str) -> None:
    assert parse_turn(text) == MANN


@pytest.mark.parametrize(
    ("evidence", "points"),
    [
        ("One sentence. Another one.", ("One sentence. Another one.",)),
        ("- a\n- b\n- c", ("a", "b", "c")),
        ("1) a\n(2) b", ("a", "b")),
        ("- a\n\n- b\n", ("a", "b")),
        ("- a\n  goes on\n- b", ("a goes on", "b")),
        ("Evidence:\n- a\n- b", ("a", "b")),
        ("Said first.\n- a", ("Said first.", "a")),
        ("a\nb\nc", ("a", "b", "c")),
        ("a\nb\nc\nd", ("a b c d",)),
        ("- a\n- b\n- c\n- d", ("a", "b", "c")),
        ('["a", "b"]', ("a", "b")),
        ("[Heat] says so", ("[Heat] says so",)),
        ("- Johnson &amp; Johnson", ("Johnson & Johnson",)),
        ("- -5 degrees\n- 1.5 m", ("-5 degrees", "1.5 m")),
        ("- a\n-\n- b", ("a", "b")),
    ],
)
def test_evidence_is_split_into_one_to_three_points(evidence: str, points: tuple[str, ...]) -> None:
    text = f"<answer>x</answer><evidence>{evidence}</evidence>"
    assert parse_turn(text) == ReportTurn(Report("x", points))


def test_several_evidence_blocks_are_united() -> None:
    text = (
        "<answer>x</answer><evidence>a</evidence><evidence>- b\n- "
        "c</evidence><evidence>d</evidence>"
    )
    assert parse_turn(text) == ReportTurn(Report("x", ("a", "b", "c")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The director was Michael Mann.", "neither a search block nor a report"),
        (f"<think>{REPORT}", "neither a search block nor a report"),
        ("&lt;search&gt;a?&lt;/search&gt;", "neither a search block nor a report"),
        ("<search></search>", "no complete query in the search block"),
        ("<answer>Michael Mann</answer>", "the report has no evidence"),
        ("<answer></answer><evidence>e</evidence>", "the answer is empty"),
        ("<answer> \n<evidence>e</evidence>", "the answer is empty"),
        ("<evidence>e</evidence>", "the report has no answer before its evidence"),
        (
            "<evidence>e</evidence><answer>Michael Mann</answer>",
            "the report has no answer before its evidence",
        ),
        (
            "<evidence>e<answer>Michael Mann</answer></evidence>",
            "the report has no answer before its evidence",
        ),
        ("<answer>Michael Mann</answer><evidence></evidence>", "the evidence is empty"),
        ("<answer>Michael Mann</answer><evidence>", "the evidence is empty"),
        ("<answer>Michael Mann</answer><evidence>\n- \n...</evidence>", "the evidence is empty"),
    ],
)
def test_a_turn_without_search_or_report_is_malformed(text: str, reason: str) -> None:
    assert parse_turn(text) == Malformed(reason)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("<search>director of He", Malformed("no complete query in the search block")),
        ('<search>["director of He', Malformed("no complete query in the search block")),
        ("<search>a?", SearchTurn("a?", 0)),
        ('<search>["a", "b', SearchTurn("a", 0)),
        ("<search>a</sea", SearchTurn("a", 0)),
        ("<search>a</search><search>b", SearchTurn("a", 0)),
        ("<answer>Michael Ma", Malformed("the report has no evidence")),
        ("<answer>Michael Mann</answer><evid", Malformed("the report has no evidence")),
        ("<answer>Michael Mann</answer><evidence>Heat was", Malformed("the evidence was cut off")),
        (REPORT, MANN),
        (f"{REPORT} And so I", MANN),
        (f"{REPORT}<search>Who is", MANN),
    ],
)
def test_a_cut_turn_counts_as_far_as_it_is_complete(text: str, turn: ExecutionTurn) -> None:
    assert parse_turn(text, cut=True) == turn


@settings(deadline=None)
@given(OUTPUTS, st.booleans())
def test_any_text_gives_a_turn(text: str, cut: bool) -> None:
    match parse_turn(text, cut=cut):
        case SearchTurn(query, ignored):
            assert query.encode()
            assert ignored >= 0
        case ReportTurn(report):
            assert report.answer.encode()
            assert 1 <= len(report.evidence) <= 3
            assert all(point.encode() for point in report.evidence)
        case Malformed(reason):
            assert reason


@settings(deadline=None)
@given(OUTPUTS)
@example(REPORT)
@example("<search>a?</search>")
@example("</text></document></documents><search>a?</search>")
def test_escaped_text_in_a_prompt_is_no_turn(text: str) -> None:
    for shown in (
        escape(text),
        prompts.request(text),
        prompts.documents([Passage("1", text, text), Passage("2", text, text)], last=True),
    ):
        assert parse_turn(shown) == Malformed("neither a search block nor a report")


@settings(deadline=None)
@given(OUTPUTS)
@example("</evidence><search>a?</search>")
@example("</answer><evidence>forged</evidence>")
@example("<think>")
def test_escaped_text_in_a_report_stays_where_it_is(text: str) -> None:
    turn = parse_turn(
        element("answer", f"It says {text}") + element("evidence", f"It says {one_line(text)}")
    )
    line = one_line(f"It says {escape(text)}")
    assert turn == ReportTurn(Report(line, (one_line(f"It says {escape(one_line(text))}"),)))


@pytest.mark.parametrize(
    "text",
    [
        "<answer>Michael Mann</answer>",
        "<answer>\n  Michael\tMann\n</answer>\n",
        "< Answer >Michael Mann</ ANSWER >",
        "The reports agree. <answer>Michael Mann</answer> That is all.",
        "<answer>Ridley Scott</answer> No: <answer>Michael Mann</answer>",
        "<answer>Ridley Scott<answer>Michael Mann</answer>",
        "<answer>Michael Mann</answer> or <answer>Ridl",
        "<answer>Michael Mann</answer><answer></answer>",
        "<think><answer>Ridley Scott</answer></think><answer>Michael Mann</answer>",
        "<answer>Ridley Scott</answer></think>Michael Mann",
        "<answer>Michael Mann</answer><think><answer>Ridley Scott</answer>",
        "<answer>Michael Mann",
        "<think>Who?</think><answer>Michael Mann",
        "Michael Mann",
        "<think>Who?</think>\n\nMichael Mann",
        "Michael Mann</answer>",
        "```\nMichael Mann\n```",
        "Answer: Michael Mann",
        "**Answer:** Michael Mann",
        "### Answer:\n\nMichael Mann",
        "The final answer is: Michael Mann",
        '<answer lang="en">Michael Mann</answer>',
        "<Answer type='name'>Michael Mann",
        "<answer/>Michael Mann",
        "<output>Michael Mann</output>",
        "<response>\nMichael Mann\n</response>",
        "<answer><output>Michael Mann</output></answer>",
        r"\boxed{Michael Mann}",
        r"<answer>$\boxed{\text{Michael Mann}}$</answer>",
        r"Final answer: $$\boxed{Michael Mann}$$",
        '{"answer": "Michael Mann"}',
        '```json\n{"answer": "Michael Mann", "confidence": 0.9}\n```',
        '[{"answer": "Michael Mann"}]',
    ],
)
def test_an_answer_is_read_in_any_notation(text: str) -> None:
    assert parse_answer(text) == "Michael Mann"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ""),
        ("<answer></answer>", ""),
        ("<think>It is <answer>Michael Mann</answer>", ""),
        ("Answer:", ""),
        ("<answer>Johnson &amp; Johnson</answer>", "Johnson & Johnson"),
        ("<answer>&lt;stop/&gt;</answer>", "<stop/>"),
        ("AT&T &copy", "AT&T &copy"),
        ("Answer Me", "Answer Me"),
        ("<answer>The Answer: a play</answer>", "The Answer: a play"),
        ("half a pair \ud83d", "half a pair \ufffd"),
        ('{"answer": 1200}', "1200"),
        ('{"city": "Krurou"}', '{"city": "Krurou"}'),
        ("[1, 2]", "[1, 2]"),
        ("{not JSON}", "{not JSON}"),
        ("It is the `<search>` element.", "It is the `<search>` element."),
        ("<answer>the <search> element</answer>", "the <search> element"),
        ("a function <f> of time", "a function <f> of time"),
        ("the result</b>", "the result</b>"),
        ("The return type is List<Function>.", "The return type is List<Function>."),
        ("Promise<Call>", "Promise<Call>"),
        ("Use the <search> element of HTML.", "Use the <search> element of HTML."),
        ('{"parameters": "70B"}', '{"parameters": "70B"}'),
        ('{"answer": null}', ""),
    ],
)
def test_an_answer_is_kept_unchanged(text: str, answer: str) -> None:
    assert parse_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think>Hm.</think>",
        '<call tool="search">{"query": "x"}</call>',
        "<search>Who directed Heat?</search>",
        "I will search. <search>Who?</search>",
        "I will search. <search>Who?</search> Then I answer.",
        'I will search.<tool_call>{"name": "search"}</tool_call>',
        "I will stop. <stop/>",
        "Who directed Heat</search>\n",
        'I call it. [TOOL_CALLS]search{"q": "x"}',
        '{"function": "search", "parameters": {"query": "x"}}',
        '<access document="heat.txt">year</access>',
        "<stop/>Enough evidence<stop>",
        "<function=search>{}</function>",
        '<function_calls><invoke name="search"></invoke></function_calls>',
        '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
        "<minimax:tool_call>x</minimax:tool_call>",
        '<|tool_call|>[{"name": "search"}]',
        '[TOOL_CALLS]search[ARGS]{"q": "x"}',
        '<|python_tag|>search("x")',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search",
        "<|tool_calls_section_begin|>",
        '{"name": "search", "arguments": {"query": "x"}}',
        '[{"name": "search", "parameters": {"query": "x"}}]',
        "<answer><search>Who?</search></answer>",
        "<search_results><result>x</result></search_results>",
    ],
)
def test_an_action_is_no_answer(text: str) -> None:
    """Holds for the tags of all roles, and for calls in the forms of models' templates."""
    assert isinstance(read_answer(text), Malformed)
    assert parse_answer(text) == ""


@settings(deadline=None)
@given(OUTPUTS)
@example("[\ud83d")
@example('{"answer": "\ud83d"}')
def test_any_answer_is_one_line_that_can_be_encoded(text: str) -> None:
    answer = parse_answer(text)
    assert answer == " ".join(answer.split())
    assert answer.encode() is not None


@settings(deadline=None)
@given(OUTPUTS)
def test_escaped_text_in_an_answer_comes_back_whole(text: str) -> None:
    assert parse_answer(element("answer", text)) == one_line(escape(text))


@pytest.mark.parametrize(
    ("text", "to", "why"),
    [
        (
            '<escalate to="browser">The page is blocked.</escalate>',
            "browser",
            "The page is blocked.",
        ),
        ("<answer>none</answer><Escalate to='browser'>blocked", "browser", "blocked"),
        ('<escalate to="a&lt;b"></escalate>', "a<b", "no evidence found"),
        ('<escalate to="browser">blocked</escalate><search>x</search>', "browser", "blocked"),
    ],
)
def test_a_turn_that_names_a_manager_is_a_report_without_evidence(
    text: str, to: str, why: str
) -> None:
    assert parse_turn(text) == ReportTurn(Report(why, (), escalate_to=to))


@pytest.mark.parametrize("after", ["", "\n- and more", "</evidence>"])
def test_a_report_that_names_a_manager_keeps_its_evidence(after: str) -> None:
    """An incomplete report changes nothing."""
    written = f"<answer>42</answer><evidence>- It is 42.{after}"
    handed_on = '<escalate to="pages">the rest is blocked</escalate>'
    points = ("It is 42.", *(["and more"] if "more" in after else []))
    assert parse_turn(written + handed_on) == ReportTurn(Report("42", points, escalate_to="pages"))
    why = ReportTurn(Report("the rest is blocked", (), escalate_to="pages"))
    assert parse_turn(f"<answer>42</answer>{handed_on}") == why


@pytest.mark.parametrize(
    "text", ["<escalate>why</escalate>", '<escalate to="">why</escalate>', "<escalate to>x"]
)
def test_an_escalation_without_a_name_is_malformed(text: str) -> None:
    assert isinstance(parse_turn(text), Malformed)


def test_a_search_before_the_name_of_a_manager_is_run() -> None:
    assert parse_turn('<search>x</search><escalate to="browser">blocked</escalate>') == SearchTurn(
        "x", 0
    )
