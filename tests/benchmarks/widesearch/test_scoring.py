"""Scores of responses: cases that were worked out by hand, the judge, and what holds for every
table.
"""

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.widesearch.scoring import CellJudge, TableScores
from benchmarks.widesearch.table_text import Table
from benchmarks.widesearch.tasks import Rule, Task, read_tasks
from router.calls import Role
from router.errors import ContextTooLong
from router.models import Prompt, Sampling, ScriptedModel
from router.models.model import Answer
from tests.benchmarks.widesearch.made_tasks import (
    DATA,
    DATE,
    JUDGED,
    TEXT,
    fenced,
    markdown,
    number,
    rule,
    scored,
    task,
)

GOLD = "name,year\nAda,1815\nAlan,1912\nGrace,1906"
HEADER = "|name|year|", "|---|---|"
WHOLE = TableScores(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


def values(scores: TableScores) -> tuple[float, ...]:
    """Success, then precision, recall and F1 of rows, then of items."""
    return tuple(
        round(getattr(scores, name), 6) for name in TableScores.__struct_fields__ if name != "why"
    )


@pytest.mark.parametrize(
    ("rows", "official", "strict"),
    [
        # Of two rows of three, all right: 2/2, 2/3, F1 = 2 * 1 * (2/3) / (5/3) = 0.8; items 4/4,
        # 4/6.
        (["|Ada|1815|", "|Alan|1912|"], (0, 1, 2 / 3, 0.8, 1, 2 / 3, 0.8), None),
        # One of four rows is not there, one year is wrong: rows 2/4, 2/3, items (2 + 2 + 1)/8, 5/6.
        (
            ["|Ada|1815|", "|Alan|1912|", "|Grace|7|", "|Edsger|1930|"],
            (0, 0.5, 2 / 3, 4 / 7, 5 / 8, 5 / 6, 5 / 7),
            None,
        ),
        # Raw repeats are dropped, the first is kept.
        (["|Ada|1815|", "|Ada|9|", "|Alan|1912|", "|Grace|1906|"], (1, 1, 1, 1, 1, 1, 1), None),
        (
            ["|Ada|9|", "|Ada|1815|", "|Alan|1912|", "|Grace|1906|"],
            (0,) + (2 / 3,) * 3 + (5 / 6,) * 3,
            None,
        ),
        # Keys that are equal only once normalised count twice: 4/4, 4/3, F1 = 2 * (4/3) / (7/3) =
        # 8/7.
        (
            ["|Ada|1815|", "|A da|1815|", "|Alan|1912|", "|Grace|1906|"],
            (0, 1, 4 / 3, 8 / 7, 1, 4 / 3, 8 / 7),
            (1, 1, 1, 1, 1, 1, 1),
        ),
        # A row with a cell too many moves nothing when it is not the first, but spoils all.
        (["|Ada|1815|", "|Alan|1912|x|", "|Grace|1906|"], (0,) * 7, (1, 1, 1, 1, 1, 1, 1)),
        (["|Ada|1815|", '|"Alan|1912|', "|Grace|1906|"], (0,) * 7, (0,) + (2 / 3,) * 6),
        ([], (0,) * 7, None),
    ],
)
async def test_scores(
    rows: list[str], official: tuple[float, ...], strict: tuple[float, ...] | None
) -> None:
    """Strict ones are the same where nothing else stands there."""
    asked = task(GOLD, TEXT, number(0.0))
    response = fenced(*HEADER, *rows)
    assert values(await scored(asked, response)) == pytest.approx(official, abs=1e-6)
    assert values(await scored(asked, response, "strict")) == pytest.approx(
        strict or official, abs=1e-6
    )


async def test_columns() -> None:
    """One that is missing, or one too many, is 0 officially. Strictly, its cells are wrong, or
    it is ignored.
    """
    asked = task(GOLD, TEXT, number(0.0))
    more = fenced(
        "|name|year|place|", "|---|---|---|", "|Ada|1815|x|", "|Alan|1912|y|", "|Grace|1906|z|"
    )
    fewer = fenced("|name|of|", "|---|---|", "|Ada|x|", "|Alan|y|")
    other = fenced("|who|year|", "|---|---|", "|Ada|1815|")
    for response, why in ((more, "name, year, place"), (fewer, "name, of"), (other, "who, year")):
        scores = await scored(asked, response)
        assert (values(scores), scores.why) == (
            (0,) * 7,
            f"its columns are {why}, and those of the task are name, year",
        )
    assert await scored(asked, more, "strict") == WHOLE
    # Items: two names of two names, and of six cells.
    assert values(await scored(asked, fewer, "strict")) == pytest.approx(
        (0, 0, 0, 0, 1, 1 / 3, 0.5)
    )
    assert (await scored(asked, other, "strict")).why.startswith("its columns are who, year, ")


async def test_a_table_that_scores_nothing_says_why() -> None:
    """An empty one, and one whose rows are others."""
    asked = task(GOLD, TEXT, number(0.0))
    strangers = fenced(*HEADER, "|Kurt|1906|", "|Emmy|1882|")
    for rules in ("official", "strict"):
        assert (await scored(asked, fenced(*HEADER), rules)).why == "its table has no rows"
        said = (await scored(asked, strangers, rules)).why.casefold()
        assert said.startswith(
            "none of its 2 rows has the key of a right one; its first is ('kurt',)"
        )
    assert (await scored(asked, fenced(*HEADER, "|Ada|1|"), "strict")).why == ""


async def test_types_decide_officially() -> None:
    """A whole column of numbers is read as such: "007" is 7, and one missing value makes all
    the others floats.
    """
    text = task("name,code\na,007\nb,12\nc,13", TEXT, TEXT)
    assert (
        await scored(text, fenced("|name|code|", "|---|---|", "|a|7|", "|b|12|", "|c|13|")) == WHOLE
    )
    missing = fenced("|name|code|", "|---|---|", "|a|007|", "|b|12|", "|c||")
    # Codes are 7.0, 12.0 and nan, and the gold ones 7, 12 and 13: no cell but the keys is right.
    assert values(await scored(text, missing)) == (0, 0, 0, 0, 0.5, 0.5, 0.5)
    assert values(await scored(text, missing, "strict")) == pytest.approx(
        (0, *(2 / 3,) * 3, *(5 / 6,) * 3)
    )
    flags = task("name,open\na,TRUE\nb,false", TEXT, TEXT)
    assert await scored(flags, fenced("|name|open|", "|---|---|", "|a|true|", "|b|False|")) == WHOLE


async def test_each_metric_is_a_column_officially() -> None:
    """So a column with two of them counts twice among the items; strictly, a cell is right by
    both.
    """
    twice = task("name,word\na,Xy\nb,z", TEXT, Rule(("norm_str",), ("exact_match", "in_match")))
    response = fenced("|name|word|", "|---|---|", "|a|x|", "|b|z|")
    # Row a: 1, 0, 1, row b: 1, 1, 1; rows 1/2, items 5/4.
    assert values(await scored(twice, response)) == (0, 0.5, 0.5, 0.5, 1.25, 1.25, 1.25)
    assert values(await scored(twice, response, "strict")) == (0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75)


async def test_the_originals_second_way_to_success() -> None:
    """Where no key is aligned, equal tables are right, though "nan" is near no number."""
    numbers = task("id,count\n1,\n2,5", number(0.0), rule("norm_str", "number_near", 0.0))
    same = fenced("|id|count|", "|---|---|", "|2|5|", "|1||")
    moved = fenced("|count|id|", "|---|---|", "|5|2|", "||1|")
    assert values(await scored(numbers, same)) == (1, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75)
    assert values(await scored(numbers, moved)) == (0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75)


async def test_an_exception_is_zero_officially() -> None:
    """One URL that is none spoils the whole response."""
    sites = task("name,site\na,http://a.org\nb,http://b.org", TEXT, rule("norm_str", "url_match"))
    response = fenced("|name|site|", "|---|---|", "|a|http://a.org|", "|b|http://[b|")
    assert (await scored(sites, response)).why == "Invalid IPv6 URL"
    assert values(await scored(sites, response, "strict")) == (0, 0.5, 0.5, 0.5, 0.75, 0.75, 0.75)


async def test_dates() -> None:
    """Both sides are days, so that times of day make no difference officially."""
    founded = task("name,founded\na,2021-03-05\nb,2021-03-05\nc,2021-03-05", TEXT, DATE)
    days = fenced(
        "|name|founded|", "|---|---|", "|a|5 April 2021|", "|b|2021-04-06 09:00|", "|c|unknown|"
    )
    assert values(await scored(founded, days)) == pytest.approx((0, *(1 / 3,) * 3, *(4 / 6,) * 3))


def judge(answer: Callable[[Prompt], Answer]) -> tuple[CellJudge, ScriptedModel]:
    """A judge, and the model that answers for it."""
    model = ScriptedModel(answer, "judge")
    return CellJudge(Role("judge", model, "overwritten", Sampling())), model


def says(found: object) -> str:
    """A judge's reply; only its last block counts."""
    return f'Well.\n```json\n{{"x": 1}}\n```\nSo:\n```json\n{json.dumps(found)}\n```'


async def test_the_judge_aligns_names_and_keys_and_scores_cells() -> None:
    """It is asked for columns whose names differ, for key columns, and once for each column of
    cells; what it is shown is JSON, and cells are normalised before.
    """
    asked = task('name,place\nAda,"New York"\nAlan,Berlin', TEXT, JUDGED)
    response = fenced("|who|place|", "|---|---|", "|Lady Ada|N.Y. |", "|Alan|Bonn|")
    replies = {
        "who": {"who": "name"},
        "Lady Ada": {"Lady Ada": "Ada", "Alan": "Alan"},
        "criterion": {"idx_0": 1, "idx_1": 0},
    }
    asking, model = judge(
        lambda prompt: next(
            says(replies[key]) for key in replies if key in prompt.messages[1].content
        )
    )
    # Rows 1/2, items (2 + 1)/4.
    assert values(await scored(asked, response, "official", asking)) == (
        0,
        0.5,
        0.5,
        0.5,
        0.75,
        0.75,
        0.75,
    )
    names, keys, cells = (json.loads(prompt.messages[1].content) for prompt in model.prompts)
    assert names == {"values": ["who", "place"], "references": ["name", "place"]}
    assert keys == {"values": ["Lady Ada", "Alan"], "references": ["Ada", "Alan"]}
    assert cells["pairs"]["idx_0"] == {"response": "n.y.", "target": "newyork"}
    assert cells["criterion"] == JUDGED.criterion
    assert {prompt.messages[0].content.split(".")[0] for prompt in model.prompts} == {
        "You match names",
        "You compare answers with right answers",
    }
    assert values(await scored(asked, response, "strict", asking)) == (
        0,
        0.5,
        0.5,
        0.5,
        0.75,
        0.75,
        0.75,
    )
    asked_twice = [prompt.messages for prompt in model.prompts]
    assert asked_twice[3:] == asked_twice[:3]  # so that a cache answers these
    assert asking.unreadable == 0


@pytest.mark.parametrize(
    "reply",
    [
        "I cannot say.",
        "```json\n[1]\n```",
        '```json\n{"idx_0": 1',
        ContextTooLong("it is", endpoint="there"),
    ],
)
async def test_a_judge_who_says_nothing(reply: Answer) -> None:
    """Aligns nothing, and every cell of the column is wrong; strictly, equal ones are right all
    the same.
    """
    asking, _ = judge(lambda _prompt: reply)
    asked = task("name,place\nAda,London\nAlan,Berlin", TEXT, JUDGED)
    response = fenced("|name|place|", "|---|---|", "|Ada|London|", "|Alan|Berlin|")
    assert values(await scored(asked, response, "official", asking)) == (0, 0, 0, 0, 0.5, 0.5, 0.5)
    assert asking.unreadable == 2
    assert await scored(asked, response, "strict", asking) == WHOLE


async def test_verdicts_that_are_none() -> None:
    """Names that are left out, and what is no number, are wrong."""
    asking, _ = judge(lambda _prompt: says({"idx_0": True, "idx_1": "1"}))
    assert await asking.scores([("a", "b"), ("c", "d"), ("e", "f")], "any") == [1.0, 0.0, 0.0]


CELLS = st.text(st.sampled_from('aAbß |\\*\n"0123456789.,%-年é\u3000'), max_size=8)


@st.composite
def gold_tables(draw: st.DrawFn) -> Task:
    """Tasks with keys that differ once normalised, and cells of any kind."""
    rules = draw(
        st.lists(
            st.sampled_from([TEXT, JUDGED, number(0.05), rule("norm_str", "url_match")]), max_size=3
        )
    )
    keys = [f"key {at}" for at in range(draw(st.integers(1, 5)))]
    table = {"name": keys} | {f"c{at}": [draw(CELLS) for _ in keys] for at in range(len(rules))}
    return Task("t", "?", "en", "", ("name",), dict(zip(table, [TEXT, *rules], strict=True)), table)


@given(gold_tables(), st.randoms(use_true_random=False))
async def test_the_gold_table_is_right(asked: Task, random: Random) -> None:
    """The gold table is right under strict rules, in any order of rows and columns."""
    rows = list(zip(*asked.gold.values(), strict=True))
    random.shuffle(rows)
    shuffled: Table = dict(zip(asked.gold, map(list, zip(*rows, strict=True)), strict=True))
    for table in (asked.gold, shuffled, dict(reversed(shuffled.items()))):
        assert await scored(asked, f"Found:\n\n{markdown(table)}\n", "strict") == WHOLE


@given(gold_tables(), gold_tables())
async def test_strict_scores_are_shares(asked: Task, other: Task) -> None:
    """Strict scores of any answer are between 0 and 1."""
    assert all(
        0 <= value <= 1 for value in values(await scored(asked, markdown(other.gold), "strict"))
    )


NOT_OFFICIALLY = {
    "ws_zh_002": "a border in a cell of the first row moves all columns",
    "ws_zh_006": "two keys begin with a word in quotation marks, which are taken for CSV's",
    "ws_zh_029": "a key has a line break, which no row of Markdown has",
}


@pytest.mark.skipif(not DATA.exists(), reason="WideSearch's tasks are not there")
async def test_the_gold_tables_of_the_benchmark_are_right() -> None:
    """All of them strictly, and officially all but three."""
    wrong = set()
    for asked in read_tasks(DATA):
        response = f"```markdown\n{markdown(asked.gold, line_break=' ')}\n```"
        assert await scored(asked, response, "strict") == WHOLE, asked.instance_id
        wrong |= {asked.instance_id} if await scored(asked, response) != WHOLE else set()
    assert wrong == NOT_OFFICIALLY.keys()
