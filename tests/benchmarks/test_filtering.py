"""A noisy teacher has the given flaws, and the filter is compared with gold."""

from itertools import islice

from benchmarks.filtering import Kept, NoisyTeacher, _every_sub_query, kept_of
from executor_sft.filter import FilteredSample
from executor_sft.miniworld.passages import Library
from executor_sft.miniworld.questions import Examiner, SubQuery
from executor_sft.miniworld.world import World
from executor_sft.questions import question_key
from router.models import Message, Prompt, Sampling, ScriptedModel
from router.protocol import Passage, Report, parse_turn, prompts
from router.protocol.turns import ReportTurn
from tests.executor_sft.traces import ONE, REPORT, TWO, executed, search

PAGES = [
    Passage("1", "Heat", "Heat is a film by Michael Mann."),
    Passage("2", "Tea", "Kim Hot sold tea in 1911."),
]


async def turn(teacher: NoisyTeacher, seed: int, searches: int = 1, *, last: bool = False) -> str:
    """Return the turn of a teacher after `searches` searches."""
    shown = (Message("assistant", search("Heat")), Message("user", prompts.documents(PAGES, last)))
    messages = (Message("system", ""), Message("user", "Who made Heat?"), *shown * searches)
    return (await teacher.complete(Prompt(messages, Sampling(seed=seed)))).text


async def test_a_noisy_teacher() -> None:
    """It searches again where it would report after one search, unless it is the last; its wrong
    reports name what it was shown, half of them with the sentence that has it; asked again, it has
    the same flaws.
    """
    model = ScriptedModel(lambda _: REPORT)
    searching = NoisyTeacher(model, "m", "e", 0.3, 0.0)
    lying = NoisyTeacher(model, "m", "e", 0.0, 0.15)
    written = [await turn(searching, seed) for seed in range(500)]
    assert set(written) == {REPORT, search("Heat")}
    assert 0.25 < written.count(search("Heat")) / 500 < 0.35
    assert written == [await turn(searching, seed) for seed in range(500)]
    assert {await turn(searching, seed, last=True) for seed in range(50)} == {REPORT}
    assert {await turn(searching, seed, searches=2) for seed in range(50)} == {REPORT}
    turns = [parse_turn(await turn(lying, seed)) for seed in range(500)]
    reports = [
        one.report
        for one in turns
        if isinstance(one, ReportTurn) and one.report.answer != "Michael Mann"
    ]
    assert 0.1 < len(reports) / 500 < 0.2
    assert {report.answer for report in reports} == {"Heat", "Kim Hot", "1911"}
    grounded = [report for report in reports if report.answer in report.evidence[0]]
    assert 0 < len(grounded) < len(reports)


def test_precision_and_recall() -> None:
    """By stratum, of what gold knows: the report and the searches have to be its own."""
    report = Report("Michael Mann", ("Heat is a film by Michael Mann.",))
    gold = {
        question_key("Who made Heat?"): SubQuery(
            "Who made Heat?", ("Heat",), ("1",), report, "plain", "director"
        )
    }
    good, needless = (executed(*turns) for turns in (ONE, TWO))
    wrong = executed(search("Heat"), REPORT.replace("Michael Mann", "Heat", 1))
    unknown = executed(*ONE, sub_query="Who made Ali?")
    single = [FilteredSample("teacher_single", "q", "", one) for one in (good, wrong, unknown)]
    multi = FilteredSample("teacher_multi", "q", "", needless)
    rows = {
        row.stratum: row
        for row in kept_of("noisy", [*single, multi], [single[0], single[2], multi], gold)
    }
    assert rows["teacher_single"] == Kept("noisy", "teacher_single", 2, 0.5, 1, 1.0, 1.0)
    assert rows["teacher_multi"] == Kept("noisy", "teacher_multi", 1, 0.0, 1, 0.0, 0.0)
    assert rows["student_single"].candidates == 0


def test_gold_knows_every_sub_query_of_a_world() -> None:
    """Gold has the sub-queries of all questions, with their reports and searches."""
    world = World(3, "test")
    known = {question_key(one.text): one for one in _every_sub_query(world)}
    examiner = Examiner(world, Library(world))
    for question in islice(iter(examiner.draw, None), 50):
        for sub_query in question.sub_queries:
            assert known[question_key(sub_query.text)] == sub_query
