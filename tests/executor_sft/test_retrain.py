"""What would stop a retraining is found before anything is spent, and steps get what the config says."""

import argparse
import json
from pathlib import Path

import pytest

from executor_sft.retrain import _dataset, main
from executor_sft.step import Step, read_manifest
from router.errors import RolegateError
from tests.executor_sft.test_dataset import kept
from tests.executor_sft.test_served_tokens import MINI
from tests.executor_sft.test_workbench import ROLE, config
from tests.executor_sft.traces import ONE, executed, write_lines


@pytest.mark.parametrize(
    ("recipe", "model", "held_out", "why"),
    [
        ("paper-qwen3-1.7b", str(MINI), {"question": "Who?", "answer": "Me"}, "takes in adapters only"),
        ("nobody", str(MINI), {"question": "Who?", "answer": "Me"}, "recipe nobody: is not there"),
        ("mini", "nowhere", {"question": "Who?", "answer": "Me"}, "nowhere: holds no tokenizer"),
        ("mini", str(MINI), {"question": "Who?"}, "held_out.jsonl:1: no right answer"),
    ],
)
def test_nothing_is_spent_on_what_cannot_end_well(
    tmp_path: Path, recipe: str, model: str, held_out: dict[str, str], why: str
) -> None:
    """The recipe, the student and the held-out questions are looked at before the logged runs are."""
    config(tmp_path)
    (tmp_path / "held_out.jsonl").write_text(json.dumps(held_out))
    given = [
        "--config",
        tmp_path / "config.toml",
        "--work",
        tmp_path / "work",
        "--evaluation",
        tmp_path / "held_out.jsonl",
    ]
    with pytest.raises(RolegateError, match=why):
        main([str(each) for each in (*given, "--recipe", recipe, "--model", model, "--yes")])
    assert not (tmp_path / "work").exists()


def test_rows_are_made_as_the_config_serves(tmp_path: Path) -> None:
    """Its switch for thinking, and whether there is a system role."""
    config(tmp_path, role=f"{ROLE}thinking = false\nsystem_role = false\n")
    filtered = tmp_path / "work" / "filtered"
    step = Step.begin(filtered, "filter", {}, {})
    write_lines(filtered / "kept.jsonl", kept(executed(*ONE)))
    step.finish({}, ["kept.jsonl"])
    given = argparse.Namespace(config=tmp_path / "config.toml", preset=None, work=tmp_path / "work", model=MINI)
    assert _dataset(given) is None
    settings = read_manifest(tmp_path / "work" / "data").origin.settings
    assert (settings["thinking"], settings["system_role"]) == (False, False)
