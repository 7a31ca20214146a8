"""The study in miniature, without running models."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.study.cells import cells_of
from benchmarks.study.mini_study import MODELS, SIZES, Options, write_study
from benchmarks.study.plan import questions_of, read_plan
from executor_sft.minimodel.model import LADDER
from router.errors import BadConfig
from serving.config.file import load_config
from serving.documents.source import find_sources


def test_the_plan_is_valid(tmp_path: Path) -> None:
    """It has both sweeps, each model as single agent and with itself; no pair needs more engines
    than may run.
    """
    assert tuple(LADDER) == SIZES
    for number, size in enumerate(SIZES, 1):
        (tmp_path / "models" / size).mkdir(parents=True)
        (tmp_path / "models" / size / "model.safetensors").write_bytes(bytes(2000 * number))
        (tmp_path / "models" / size / "config.json").write_text("{}")
    plan = read_plan(write_study(Options(work=tmp_path, models=tmp_path / "models", questions=3)))
    cells = cells_of(plan)
    assert [cell.name for cell in cells] == [
        "small + large",
        "medium + large",
        "large + large",
        "large + small",
        "large + medium",
        "small + small",
        "medium + medium",
        "single_agent: small",
        "single_agent: medium",
        "single_agent: large",
    ]
    assert max(len(cell.engines) for cell in cells) <= plan.engines_at_once
    assert [model.parameters for model in plan.models.values()] == [1000, 2000, 3000]
    documents = find_sources(
        [Path(path) for path in load_config(tmp_path / "rolegate.toml").retrieval.documents]
    )
    ids = [
        json.loads(line)["id"]
        for source in documents.sources
        for line in Path(source.path).read_text().splitlines()
    ]
    assert len(set(ids)) == len(ids)
    questions = questions_of(plan)
    assert len({question.id for question in questions}) == 6


def test_the_compositional_study_has_its_questions(tmp_path: Path) -> None:
    """The large model always answers."""
    for size in SIZES:
        (tmp_path / "models" / size).mkdir(parents=True)
        (tmp_path / "models" / size / "model.safetensors").write_bytes(bytes(2000))
        (tmp_path / "models" / size / "config.json").write_text("{}")
    options = Options(work=tmp_path, models=tmp_path / "models", questions=3, world="compositional")
    plan = read_plan(write_study(options))
    assert {cell.config.roles.answer.model for cell in cells_of(plan)} == {"large"}
    assert {question.type for question in questions_of(plan)} == {"compositional"}
    assert len(questions_of(plan)) == 6


def test_shipped_models_fit_the_study(tmp_path: Path) -> None:
    """They have the documented sizes and the tokenizer of the answerer."""
    plan = read_plan(write_study(Options(work=tmp_path, worlds=(21,), questions=1)))
    sizes = [round((model.parameters or 0.0) / 1e6, 2) for model in plan.models.values()]
    assert sizes == pytest.approx([0.25, 0.5, 1.8], rel=0.1)
    answerer = Path(load_config(tmp_path / "rolegate.toml").engines["backbone"].path)
    for size in LADDER:
        assert (MODELS / size / "tokenizer.json").read_bytes() == (
            answerer / "tokenizer.json"
        ).read_bytes()


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    """The error comes before anything is written."""
    missing = re.escape(str(tmp_path / "small" / "model.safetensors"))
    with pytest.raises(BadConfig, match=f"--models: {missing}: No such file"):
        write_study(Options(work=tmp_path / "work", models=tmp_path))
    assert not (tmp_path / "work").exists()
