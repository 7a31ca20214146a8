"""A data set has the tokens that an engine reads and writes, with a row for each turn to learn."""

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from executor_sft.__main__ import run
from executor_sft.dataset import NO_LOSS, RESULT, ServedTokens, read_rows, rows_of
from executor_sft.filter import FilteredSample
from executor_sft.minimodel.model import load_tokenizer
from executor_sft.step import read_manifest
from router.errors import BadConfig, ContextTooLong
from router.models import Completion, Message
from router.models.model import TokenIds
from router.search import Answerer, Delegator, Executor, FactorizedSearch
from router.search.agent import ExecutorLimits
from router.trace import Conversation, Execution
from tests.executor_sft.traces import (
    MINI,
    ONE,
    PAGE,
    REPORT,
    TWO,
    executed,
    filtered,
    row,
    search,
    write_lines,
)
from tests.router.deployment import STOP, block, lasting, role
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import Answer, ScriptedModel

QWEN3 = """\
{%- set last = namespace(at=0) -%}
{%- for message in messages if message.role == 'user' %}{% set last.at = messages.index(message) %}{% endfor -%}
{%- for message in messages -%}
{{ '<|' + message.role + '|>' }}
{%- set content = message.content -%}
{%- if message.role == 'assistant' and '</think>' in content -%}
{%- if loop.index0 <= last.at %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif -%}
{%- endif -%}
{{ content + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|assistant|>' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}
{%- endif -%}
"""
"""Template like Qwen3's: thinking of earlier turns is dropped, and an empty block in the prompt
switches it off.
"""


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], Path]:
    """The mini executor's tokenizer with another chat template."""

    def folder(template: str) -> Path:
        for name in (
            "tokenizer.json",
            "tokenizer_config.json",
            "config.json",
            "generation_config.json",
        ):
            shutil.copy(MINI / name, tmp_path / name)
        (tmp_path / "chat_template.jinja").write_text(template)
        return tmp_path

    return folder


def text(ids: tuple[int, ...]) -> str:
    """Return the text of the ids, without the spaces that the mini tokenizer puts before each piece
    of text.
    """
    decoded: str = load_tokenizer(MINI).decode(list(ids))
    return decoded.replace("> ", ">").replace("\n ", "\n").replace(" \n", "\n").strip()


def test_a_turn_ends_where_the_engine_stops() -> None:
    """Its text and the template's end of turn are learnt."""
    tokens = ServedTokens(MINI)
    assert (
        text(tokens.completion(Completion(search("Heat"), "stop")))
        == "<search>Heat</search><|end|>"
    )
    assert text(tokens.prompt([Message("user", "Heat?")])) == "<|user|>Heat?<|end|><|assistant|>"


def test_text_after_the_last_tag_is_not_learnt() -> None:
    """After a correction no stop string ends a turn, and service ignores the text, too."""
    written = Completion(search("Heat") + " and then some", "stop")
    assert text(ServedTokens(MINI).completion(written)) == "<search>Heat</search><|end|>"


@pytest.mark.parametrize(
    ("thinking", "output", "written"),
    [
        (None, Completion(REPORT, "stop", "so it is"), "<think>\nso it is\n</think>\n\n" + REPORT),
        (
            True,
            Completion(f"\n\n{REPORT}", "stop", "\nso it is\n"),
            "<think>\nso it is\n</think>\n\n" + REPORT,
        ),
        (
            True,
            Completion(f"<think>\nso\n</think>\n\n{REPORT}", "stop"),
            f"<think>\nso\n</think>\n\n{REPORT}",
        ),
        (True, Completion(REPORT, "stop"), REPORT),
        (False, Completion(REPORT, "stop", "so it is"), REPORT),
        (False, Completion(f"<think>\nso\n</think>\n\n{REPORT}", "stop"), REPORT),
    ],
)
def test_reasoning_is_learnt_if_the_role_thinks(
    model: Callable[[str], Path], thinking: bool | None, output: Completion, written: str
) -> None:
    """It is in a thinking block before the turn; without thinking, the prompt has closed the block
    already.
    """
    tokens = ServedTokens(model(QWEN3), thinking=thinking)
    assert text(tokens.completion(output)) == f"{written}<|end|>"
    closed = text(tokens.prompt([Message("user", "?")])).endswith("</think>")
    assert closed == (thinking is False)


def test_a_block_that_the_template_opens_is_not_opened_twice(model: Callable[[str], Path]) -> None:
    """Templates of models that always think open it."""
    template = QWEN3.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|><think>\n' }}")
    written = ServedTokens(model(template)).completion(Completion(REPORT, "stop", "so it is"))
    assert text(written) == f"so it is\n</think>\n\n{REPORT}<|end|>"


def test_earlier_turns_are_in_the_prompt_as_served(model: Callable[[str], Path]) -> None:
    """Service drops their thinking, and so do the rows; a single sequence could not have both."""
    thoughts = [
        Completion(search("Heat"), "stop", "look it up"),
        Completion(REPORT, "stop", "there it is"),
    ]
    execution = executed(*thoughts)
    rows, _ = rows_of(filtered(execution), ServedTokens(model(QWEN3), thinking=True))
    first, second = rows
    assert "look it up" in text(first.completion_ids) and "there it is" in text(
        second.completion_ids
    )
    assert "look it up" not in text(second.prompt_ids)
    assert (
        first.prompt_ids + first.completion_ids
        != second.prompt_ids[: len(first.prompt_ids + first.completion_ids)]
    )


def test_a_system_prompt_is_in_the_first_user_turn_without_a_system_role() -> None:
    opening = [Message("system", "be brief"), Message("user", "Heat?")]
    assert text(ServedTokens(MINI).prompt(opening)).startswith("<|system|>be brief")
    assert text(ServedTokens(MINI, system_role=False).prompt(opening)).startswith(
        "<|user|>be brief\n\nHeat?"
    )


def test_a_template_without_an_end_of_turn_is_refused(model: Callable[[str], Path]) -> None:
    """A model trained with it would never stop."""
    endless = "{% for message in messages %}{{ message.content }}{% endfor %}"
    with pytest.raises(BadConfig, match="none of these tokens stops the engine"):
        ServedTokens(model(endless)).completion(Completion(REPORT, "stop"))


def test_a_cap_on_turns_changes_no_row() -> None:
    """The message about it is part of the executor's prompts."""
    execution = executed(search("Heat"), REPORT, limits=ExecutorLimits(max_turns=2, max_searches=1))
    rows, _ = rows_of(filtered(execution), ServedTokens(MINI))
    assert "No searches are left" in text(rows[1].prompt_ids)


def learnt(execution: Execution) -> tuple[list[str], dict[str, int]]:
    """Return the turns that have a row, without their ends, and all turns."""
    rows, turns = rows_of(filtered(execution), ServedTokens(MINI))
    return [text(row.completion_ids).removesuffix("<|end|>") for row in rows], dict(turns)


def test_every_search_and_the_report_has_a_row() -> None:
    """Rows are numbered by trajectory and turn; each prompt begins with the previous prompt."""
    rows, turns = rows_of(filtered(executed(*TWO), executed(*ONE)), ServedTokens(MINI))
    assert [(row.trajectory, row.turn) for row in rows] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert turns == {"search": 3, "report": 2}
    assert rows[1].prompt_ids[: len(rows[0].prompt_ids)] == rows[0].prompt_ids


@pytest.mark.parametrize(
    ("turns", "without"),
    [
        (["no tag at all", *ONE], "malformed"),
        ([REPORT, *ONE], "out of turn"),
        ([search("Heat"), "<answer>Michael Mann</answer>", REPORT], "malformed"),
        ([search("Heat"), Completion("<answer>Mi", "length"), REPORT], "cut off"),
        ([Completion("<search>Heat", "length"), *ONE], "cut off"),
    ],
)
def test_wrong_turns_are_not_learnt(turns: list[Completion | str], without: str) -> None:
    """Such turns and their corrections are in later prompts; the later turns have rows."""
    written, counts = learnt(executed(*turns))
    assert counts[without] == 1 and counts["report"] == 1
    assert len(written) == counts.get("search", 0) + 1 and written[-1] == REPORT


def test_searches_that_were_not_run_or_lack_their_prompt_are_not_learnt() -> None:
    """They come after the last permitted search, or their prompt had passages that were dropped
    later and are not in the trace.
    """
    limits = ExecutorLimits(max_turns=4, max_searches=1)
    written, counts = learnt(executed(search("Heat"), search("director"), REPORT, limits=limits))
    assert written == [search("Heat"), REPORT] and counts["out of turn"] == 1
    too_long = ContextTooLong("too long", endpoint="x")
    written, counts = learnt(executed(search("Heat"), search("director"), too_long, REPORT))
    assert written == [search("Heat"), REPORT] and counts["shown passages that the trace lost"] == 1


def test_the_step_writes_rows_and_figures(tmp_path: Path) -> None:
    """Rows are read back equal; figures count them and their tokens."""
    samples = filtered(executed(*TWO), executed("?", *ONE))
    file = write_lines(tmp_path / "filtered.jsonl", samples)
    assert run(["dataset", str(file), "--model", str(MINI), "--out", str(tmp_path / "data")]) == 0
    rows = read_rows(tmp_path / "data" / RESULT)
    manifest = read_manifest(tmp_path / "data")
    assert rows == rows_of(samples, ServedTokens(MINI))[0]
    assert {(row.stratum, row.question_id) for row in rows} == {
        ("teacher_multi", "q0"),
        ("teacher_multi", "q1"),
    }
    for made in rows:
        shown = msgspec.convert(made.messages, tuple[Message, ...])
        assert ServedTokens(MINI).prompt(shown[:-1]) == made.prompt_ids
        assert [message["train"] for message in made.messages] == [False] * (len(shown) - 1) + [
            True
        ]
        masked = [
            token for token, mask in zip(made.input_ids, made.assistant_masks, strict=True) if mask
        ]
        assert tuple(masked) == made.completion_ids
    figures = manifest.figures
    assert figures["as_returned"] == 0
    assert figures["longest"] == max(len(row.input_ids) for row in rows)
    assert (figures["rows"], figures["trajectories"]) == (5, 2)
    assert figures["turns"] == {"search": 3, "report": 2, "malformed": 1}
    assert figures["completion_tokens"] == sum(len(row.completion_ids) for row in rows)
    assert manifest.origin.inputs.keys() >= {"filtered", "tokenizer.json", "chat_template.jinja"}


def told(delegator: Sequence[Answer], limit: int = 4) -> Conversation:
    """Return a delegator's conversation of a run."""
    found = FixedRetriever({"Who made Heat?": [PAGE]})
    executor = Executor(
        role("execution", ScriptedModel(lambda _: REPORT)), Unfiltered(found), ExecutorLimits()
    )
    delegation = Delegator(role("delegation", ScriptedModel(delegator)))
    answerer = Answerer(role("answer", ScriptedModel(["<answer>Michael Mann</answer>"])))
    search = FactorizedSearch(delegation, executor, answerer, max_rounds=limit)

    async def run() -> Conversation:
        found = (await search.run("Where was the director of Heat born?", lasting())).delegation
        assert found is not None
        return found

    return asyncio.run(run())


ASKED = block("Who made Heat?")


@pytest.mark.parametrize(
    ("said", "limit", "counts", "written"),
    [
        ([ASKED, STOP], 4, {"dispatch": 1, "stop": 1}, [ASKED, STOP]),
        (["hm", ASKED, STOP], 4, {"malformed": 1, "dispatch": 1, "stop": 1}, [ASKED, STOP]),
        (
            [ASKED, Completion("<search>[", "length"), STOP],
            4,
            {"dispatch": 1, "cut off": 1, "stop": 1},
            [ASKED, STOP],
        ),
        ([ASKED], 1, {"dispatch": 1}, [ASKED]),
        (["hm", "hm"], 4, {"malformed": 2}, []),
    ],
)
def test_a_delegator_s_decisions_have_rows(
    said: list[Answer], limit: int, counts: dict[str, int], written: list[str]
) -> None:
    """Each decision that was acted on has one, with its prompt."""
    work = told(said, limit)
    rows, turns = rows_of([FilteredSample("best_delegator", "q0", "", work)], ServedTokens(MINI))
    assert turns == counts
    assert [text(row.completion_ids) for row in rows] == [
        text(ServedTokens(MINI).completion(Completion(one, "stop"))) for one in written
    ]
    for made in rows:
        assert made.prompt_ids == ServedTokens(MINI).prompt(
            msgspec.convert(made.messages[:-1], tuple[Message, ...])
        )


def test_one_role_learns_at_a_time(tmp_path: Path) -> None:
    """Only samples of the named role become rows."""
    samples = [
        *filtered(executed(*ONE)),
        FilteredSample("best_delegator", "q0", "", told([ASKED, STOP])),
    ]
    file = write_lines(tmp_path / "filtered.jsonl", samples)
    for options, turns in (
        ([], {"search": 1, "report": 1}),
        (["--role", "delegation"], {"dispatch": 1, "stop": 1}),
    ):
        out = tmp_path / f"data{len(options)}"
        assert run(["dataset", str(file), "--model", str(MINI), "--out", str(out), *options]) == 0
        assert read_manifest(out).figures["turns"] == turns


def refused(folder: Path, executions: list[Execution], options: list[object], why: str) -> None:
    """Check that no data set is made of `executions`."""
    file = write_lines(folder / "filtered.jsonl", filtered(*executions))
    command = ["dataset", file, "--out", folder / "data", "--model", MINI, *options]
    with pytest.raises(BadConfig, match=why):
        run([str(part) for part in command])
    assert not (folder / "data" / RESULT).exists()


def test_the_engine_s_tokens_are_used_if_their_text_is_equal(tmp_path: Path) -> None:
    """The tokenizer would split the text differently.

    Tokens of another model or another prompt are not used.
    """
    tokens = ServedTokens(MINI)
    (first, last), _ = rows_of(filtered(executed(*ONE)), tokens)
    tokenizer = load_tokenizer(MINI)
    parts = [
        [part] if part.startswith("<") else list(part)
        for part in tokenizer.tokenize(search("Heat"))
    ]
    letters = tuple(tokenizer.convert_tokens_to_ids([letter for part in parts for letter in part]))
    sampled = Completion(search("Heat"), "stop", tokens=TokenIds(first.prompt_ids, letters))
    ended = Completion(REPORT, "stop", tokens=TokenIds(last.prompt_ids, last.completion_ids))
    rows, _ = rows_of(filtered(executed(sampled, ended)), tokens)
    assert [row.as_returned for row in rows] == [True, True]
    assert rows[0].completion_ids == letters + first.completion_ids[-1:] != first.completion_ids
    assert rows[0].labels == (NO_LOSS,) * len(first.prompt_ids) + rows[0].completion_ids
    assert rows[1].completion_ids == last.completion_ids
    for strange in (
        TokenIds(first.prompt_ids, letters[:-2]),
        TokenIds(first.prompt_ids[1:], letters),
    ):
        completion = Completion(search("Heat"), "stop", tokens=strange)
        (made, _), _ = rows_of(filtered(executed(completion, REPORT)), tokens)
        assert made == first


@pytest.mark.parametrize(
    ("executions", "options", "why"),
    [
        ([], [], r"Nothing to learn.*turns: "),
        ([executed("?", "?", "?")], [], r"Nothing to learn.*turns: 3 malformed"),
        ([executed(*ONE)], ["--model", "nowhere"], "nowhere: has no tokenizer_config.json"),
    ],
)
def test_impossible_data_sets_are_refused(
    tmp_path: Path, executions: list[Execution], options: list[object], why: str
) -> None:
    """There are no rows, or the model has no tokenizer; nothing is written."""
    refused(tmp_path, executions, options, why)


@pytest.mark.parametrize(
    "second_line",
    [msgspec.json.encode(row((1,), (2,))).replace(b"[-100,2]", b"[-100,-100]"), b'{"input_ids":['],
)
def test_torn_and_empty_rows_are_refused(tmp_path: Path, second_line: bytes) -> None:
    """The loss of an empty row would be 0 without notice."""
    file = write_lines(tmp_path / RESULT, [row((1, 2), (3,))])
    file.write_bytes(file.read_bytes() + second_line)
    with pytest.raises(BadConfig, match=r"rows\.jsonl:2: .*make the data set again"):
        read_rows(file)
