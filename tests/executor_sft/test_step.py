from pathlib import Path

import pytest

from executor_sft.step import MANIFEST, Step, digest_of, read_manifest
from router.errors import BadConfig


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "in.jsonl"
    file.write_text("{}\n")
    return file


def test_a_finished_step_is_not_repeated(tmp_path: Path, source: Path) -> None:
    """With the same inputs, a finished step has its manifest; before its end, it has none."""
    out = tmp_path / "out"
    step = Step.begin(out, "filter", {"rollouts": source}, {"mix": None})
    assert step.finished is None
    (out / "filtered.jsonl").write_text("{}\n")
    step.finish({"samples": 1}, ["filtered.jsonl"])
    finished = Step.begin(out, "filter", {"rollouts": source}, {"mix": None}).finished
    assert finished is not None and finished.figures == {"samples": 1}
    assert finished.files == {"filtered.jsonl": digest_of(out / "filtered.jsonl")}


def test_a_folder_of_other_inputs_is_refused(tmp_path: Path, source: Path) -> None:
    """A step is not resumed with another input or setting; the error names the differences."""
    out = tmp_path / "out"
    settings: dict[str, object] = {"mix": None, "model": {"temperature": 0, "stop": ["a"]}}
    Step.begin(out, "filter", {"rollouts": source}, settings)
    with pytest.raises(BadConfig, match=r"with settings\.mix absent \(now 3\); use the old values"):
        Step.begin(out, "filter", {"rollouts": source}, settings | {"mix": 3})
    with pytest.raises(
        BadConfig, match=r"with settings\.model\.temperature 0 \(now 0\.5\); use the old values"
    ):
        Step.begin(
            out,
            "filter",
            {"rollouts": source},
            settings | {"model": {"temperature": 0.5, "stop": ["a"]}},
        )
    with pytest.raises(BadConfig) as refused:
        Step.begin(
            out,
            "filter",
            {"rollouts": source},
            {f"key {number}": "long " * 1000 for number in range(100)},
        )
    assert len(str(refused.value)) < 1000
    source.write_text('{"changed": true}\n')
    with pytest.raises(
        BadConfig, match=r"with inputs\.rollouts \"[0-9a-f]{64}\" \(now \"[0-9a-f]{64}\"\)"
    ):
        Step.begin(out, "filter", {"rollouts": source}, settings)


def test_a_step_resumes_in_its_own_folder_only(tmp_path: Path, source: Path) -> None:
    """The order of settings and temporary files after a kill do not matter; a folder with other
    files is refused.
    """
    for folder in ("out", "mine"):
        (tmp_path / folder).mkdir()
    (tmp_path / "out" / ".begun.json.0123abcd").write_text('{"step"')
    Step.begin(tmp_path / "out", "filter", {"rollouts": source}, {"seed": 1, "mix": 2})
    Step.begin(
        tmp_path / "out", "filter", {"rollouts": source}, {"mix": 2, "seed": 1, "later": None}
    )
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(BadConfig, match="contains files that this command did not write"):
        Step.begin(tmp_path / "mine", "filter", {"rollouts": source}, {})


def test_an_unfinished_step_is_no_input(tmp_path: Path, source: Path) -> None:
    """A folder counts by its manifest, which is written last; without one it cannot be built
    upon.
    """
    out = tmp_path / "out"
    Step.begin(out, "filter", {"rollouts": source}, {})
    with pytest.raises(BadConfig, match="finish the step"):
        digest_of(out)
    with pytest.raises(BadConfig, match=r"no manifest\.json"):
        read_manifest(out)


def test_a_manifest_of_another_release_is_refused(tmp_path: Path) -> None:
    """An unknown field means that the manifest is not understood."""
    (tmp_path / MANIFEST).write_text(
        '{"origin": {"step": "filter", "inputs": {}, "settings": {}}, "new": 1}'
    )
    with pytest.raises(BadConfig, match="another release"):
        read_manifest(tmp_path)
