"""A data set has a row for each turn that is worth learning, whole, or it is not made."""

from pathlib import Path

import pytest

from executor_sft.dataset import RESULT, Row, ServedTokens, main, read_rows, rows_of, write_rows
from executor_sft.filter import Kept
from executor_sft.step import read_manifest
from router.errors import BadConfig, ContextTooLong
from router.models.model import Completion
from router.search.executor import ExecutorLimits
from router.trace.values import Execution
from tests.executor_sft.test_served_tokens import MINI, text
from tests.executor_sft.traces import ONE, REPORT, TWO, executed, search, write_lines


def kept(*executions: Execution) -> list[Kept]:
    return [Kept("teacher_multi", f"q{number}", "", execution) for number, execution in enumerate(executions)]


def learnt(execution: Execution) -> tuple[list[str], dict[str, int]]:
    """The turns that have a row, without their ends, and what all turns were."""
    rows, turns = rows_of(kept(execution), ServedTokens(MINI))
    return [text(row.completion_ids).removesuffix("<|end|>") for row in rows], dict(turns)


def test_every_search_and_the_report_has_a_row() -> None:
    """Numbered by trajectory and turn; each prompt begins with the one before."""
    rows, turns = rows_of(kept(executed(*TWO), executed(*ONE)), ServedTokens(MINI))
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
def test_turns_that_went_wrong_are_not_learnt(turns: list[Completion | str], without: str) -> None:
    """They, and what they were told, stand in later prompts; the later turns have rows."""
    written, counts = learnt(executed(*turns))
    assert counts[without] == 1 and counts["report"] == 1
    assert len(written) == counts.get("search", 0) + 1 and written[-1] == REPORT


def test_a_search_that_was_not_run_is_not_learnt() -> None:
    """After the last one that is allowed."""
    limits = ExecutorLimits(max_turns=4, max_searches=1)
    written, counts = learnt(executed(search("Heat"), search("director"), REPORT, limits=limits))
    assert written == [search("Heat"), REPORT] and counts["out of turn"] == 1


def test_a_turn_whose_prompt_is_lost_is_not_learnt() -> None:
    """Where passages gave way later, the trace no longer shows what earlier turns saw."""
    too_long = ContextTooLong("too long", endpoint="x")
    written, counts = learnt(executed(search("Heat"), search("director"), too_long, REPORT))
    assert written == [search("Heat"), REPORT] and counts["shown passages that the trace lost"] == 1


def test_the_step_writes_rows_and_figures(tmp_path: Path) -> None:
    """Rows come back as they were; figures count them and their tokens."""
    file = write_lines(tmp_path / "kept.jsonl", kept(executed(*TWO), executed("?", *ONE)))
    assert main([str(file), "--model", str(MINI), "--out", str(tmp_path / "data")]) == 0
    rows, figures = read_rows(tmp_path / "data" / RESULT), read_manifest(tmp_path / "data").figures
    assert rows == rows_of(kept(executed(*TWO), executed("?", *ONE)), ServedTokens(MINI))[0]
    assert (figures["rows"], figures["trajectories"]) == (5, 2)
    assert figures["turns"] == {"search": 3, "report": 2, "malformed": 1}
    assert figures["completion_tokens"] == sum(len(row.completion_ids) for row in rows)
    assert read_manifest(tmp_path / "data").origin.inputs.keys() >= {"kept", "tokenizer.json", "chat_template.jinja"}


def test_rows_that_are_too_long_are_an_error(tmp_path: Path) -> None:
    """How many, and the longest; nothing is cut, and nothing written."""
    file = write_lines(tmp_path / "kept.jsonl", kept(executed(*TWO)))
    lengths = [len(row.prompt_ids + row.completion_ids) for row in rows_of(kept(executed(*TWO)), ServedTokens(MINI))[0]]
    command = [str(file), "--model", str(MINI), "--out", str(tmp_path / "data")]
    with pytest.raises(BadConfig, match=f"2 of 3 rows are longer .* the longest has {max(lengths)}"):
        main([*command, "--max-length", str(min(lengths))])
    assert not (tmp_path / "data" / RESULT).exists()


@pytest.mark.parametrize("trajectories", [[], kept(executed("?", "?", "?"))])
def test_nothing_to_learn_is_an_error(tmp_path: Path, trajectories: list[Kept]) -> None:
    """It says what there was instead."""
    file = write_lines(tmp_path / "kept.jsonl", trajectories)
    with pytest.raises(BadConfig, match=r"Nothing to learn.*turns: \{"):
        main([str(file), "--model", str(MINI), "--out", str(tmp_path / "data")])


def test_rows_without_a_token_to_learn_are_refused(tmp_path: Path) -> None:
    """Their loss would be nothing, in silence."""
    write_rows(tmp_path / RESULT, [Row((1, 2), (3,), 0, 0), Row((1, 2), (), 0, 1)])
    with pytest.raises(BadConfig, match="1 of 2 rows have no token to learn"):
        read_rows(tmp_path / RESULT)


def test_a_torn_data_set_is_refused(tmp_path: Path) -> None:
    """It is named."""
    write_rows(tmp_path / RESULT, [Row((1, 2), (3,), 0, 0)])
    (tmp_path / RESULT).write_bytes((tmp_path / RESULT).read_bytes()[:-30])
    with pytest.raises(BadConfig, match=r"rows\.parquet"):
        read_rows(tmp_path / RESULT)


def test_a_model_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """Before anything is done."""
    file = write_lines(tmp_path / "kept.jsonl", kept(executed(*ONE)))
    with pytest.raises(BadConfig, match="holds no tokenizer"):
        main([str(file), "--model", str(tmp_path), "--out", str(tmp_path / "data")])
    assert not (tmp_path / "data").exists()
