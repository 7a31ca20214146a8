"""Problems of later steps are found before any cost, and steps get the config's settings."""

import json
from itertools import islice
from pathlib import Path

import pytest

from executor_sft import mine, retrain
from executor_sft.__main__ import run
from executor_sft.rollout import SubQueryRollout, begin_step
from executor_sft.step import read_manifest, write_json
from router.errors import RolegateError
from tests.executor_sft.test_runtime import ROLE, config
from tests.executor_sft.traces import MINI, ONE, RIGHT, rollout, sample, write_lines


@pytest.mark.parametrize(
    ("recipe", "model", "held_out", "why"),
    [
        (
            "paper-qwen3-1.7b",
            str(MINI),
            {"question": "Who?", "answer": "Me"},
            "can load only adapters",
        ),
        (
            "nobody",
            str(MINI),
            {"question": "Who?", "answer": "Me"},
            r"nobody\.toml: cannot be read",
        ),
        (
            "mini",
            "nowhere",
            {"question": "Who?", "answer": "Me"},
            "nowhere: has no tokenizer_config.json",
        ),
        ("mini", str(MINI), {"question": "Who?"}, "held_out.jsonl:1: no right answer"),
    ],
)
def test_nothing_is_spent_if_a_later_step_would_fail(
    tmp_path: Path, recipe: str, model: str, held_out: dict[str, str], why: str
) -> None:
    """The recipe, the student and the held-out questions are checked before the logged runs are
    read.
    """
    config(tmp_path)
    (tmp_path / "held_out.jsonl").write_text(json.dumps(held_out))
    options = [
        "--config",
        tmp_path / "config.toml",
        "--work",
        tmp_path / "work",
        "--evaluation",
        tmp_path / "held_out.jsonl",
    ]
    with pytest.raises(RolegateError, match=why):
        run(
            [
                "retrain",
                *(
                    str(option)
                    for option in (*options, "--recipe", recipe, "--model", model, "--yes")
                ),
            ]
        )
    assert not (tmp_path / "work").exists()


def test_each_step_gets_the_config_s_settings(tmp_path: Path) -> None:
    """Rows have the form in which the role is served. Too few rows are an error."""
    served = config(
        tmp_path,
        f"[distillation.teacher]\n{ROLE}",
        f"{ROLE}thinking = false\nsystem_role = false\n",
    )
    (tmp_path / "held_out.jsonl").write_text(json.dumps({"question": "Who?", "answer": "Me"}))
    work = tmp_path / "work"
    held_out = tmp_path / "held_out.jsonl"
    options = retrain.Options(
        config=tmp_path / "config.toml", work=work, evaluation=held_out, min_trajectories=3
    )
    mined = mine.Options(config=options.config, out=work / "mined", evaluation=(held_out,))
    options_of_mine = {"since": None, "until": None, "tenant": None}
    step = begin_step("mine", mined, {f"evaluation {held_out}": held_out}, options_of_mine)
    write_lines(
        mined.out / "rollouts.jsonl",
        [rollout(SubQueryRollout(sample(ONE, RIGHT), sample(ONE, RIGHT)))],
    )
    write_json(mined.out / "selection.json", mine.Selection([], {}))
    step.finish({}, ["rollouts.jsonl"])
    steps = islice(retrain._steps(options, served, MINI), 3)
    too_few = (
        "2 trajectories passed the filter, and --min-trajectories requires 3; log more questions, "
        "or lower --min-trajectories."
    )
    assert list(steps) == [("mine", ""), ("filter", too_few), ("dataset", "")]
    settings = read_manifest(work / "data").origin.settings
    assert (settings["thinking"], settings["system_role"]) == (False, False)
