"""A training learns the rows, can be resumed after a kill, and writes files that vLLM loads."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from executor_sft.__main__ import run
from executor_sft.dataset import TrainingRow, read_rows
from executor_sft.minimodel.model import Shape, load_tokenizer, new_model
from executor_sft.step import read_manifest
from executor_sft.train import (
    Recipe,
    _last_checkpoint,
    base_files,
    load_base,
    read_recipe,
)
from router.errors import BadConfig
from serving.engines.versions import base_sha256
from tests.executor_sft.traces import MINI, TWO, executed, filtered, row, write_lines

ROOT = Path(__file__).parents[2]
RECIPE = """
method = "{method}"
rank = 4
dropout = 0.1
epochs = 6.0
batch = 4
device_batch = 2
learning_rate = 1e-2
precision = "fp32"
checkpoint_every = 3
"""
ADAPTER = Recipe(method="lora", learning_rate=1e-3, max_length=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny untrained model."""
    import torch

    from executor_sft.minimodel.training import save

    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("base")
    tokenizer = load_tokenizer(MINI)
    save(new_model(Shape(width=32, layers=1, feed_forward=32), tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def data(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of 24 rows for it."""
    folder = tmp_path_factory.mktemp("data")
    samples = filtered(*(executed(*TWO, sub_query=f"Who made film {n}?") for n in range(8)))
    write_lines(folder / "filtered.jsonl", samples)
    run(
        [
            "dataset",
            str(folder / "filtered.jsonl"),
            "--model",
            str(base),
            "--out",
            str(folder / "data"),
        ]
    )
    return folder / "data"


def command(data: Path, base: Path, out: Path, method: str = "lora") -> list[str]:
    recipe = out.with_suffix(".toml")
    recipe.write_text(RECIPE.format(method=method))
    return [
        "train",
        *map(str, (data, "--model", base, "--out", out, "--recipe", recipe, "--threads", 1)),
    ]


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def losses(folder: Path) -> list[tuple[int, float]]:
    """Return the steps with their losses."""
    lines = (folder / "loss.jsonl").read_bytes().splitlines()
    entries = [msgspec.json.decode(line) for line in lines]
    return [(entry["step"], entry["loss"]) for entry in entries]


@pytest.mark.slow
def test_a_killed_training_ends_like_an_undisturbed_one(
    base: Path, data: Path, tmp_path: Path
) -> None:
    """It is killed by a signal after its first checkpoint, and resumes: the loss at every step and
    the adapter are equal. The loss falls as far as it can with an adapter of a random model.
    """
    import torch
    from safetensors.torch import load_file

    undisturbed = tmp_path / "whole"
    killed = tmp_path / "killed"
    run(command(data, base, undisturbed))
    process = started("-m", "executor_sft", *command(data, base, killed))
    while not (killed / "checkpoints" / "checkpoint-3" / "trainer_state.json").exists():
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended by itself: {process.communicate()}")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and not (killed / "manifest.json").exists()
    run(command(data, base, killed))
    assert len(losses(killed)) == 36 and losses(killed) == losses(undisturbed)
    assert losses(undisturbed)[-1][1] < losses(undisturbed)[0][1]
    adapter = load_file(killed / "model" / "adapter_model.safetensors")
    for name, tensor in load_file(undisturbed / "model" / "adapter_model.safetensors").items():
        assert torch.equal(tensor, adapter[name]) and tensor.dtype == torch.bfloat16
    assert {path.name for path in (undisturbed / "model").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    manifest = read_manifest(undisturbed)
    assert (manifest.figures["base"], manifest.figures["base_sha256"]) == (
        base.name,
        base_sha256(base),
    )
    assert manifest.steps["dataset"].figures["rows"] == 24
    assert not (undisturbed / "checkpoints").exists()


@pytest.mark.slow
def test_whole_weights_are_trained_by_several_processes(
    base: Path, data: Path, tmp_path: Path
) -> None:
    """Under `accelerate launch`, one process writes; the result loads like its base, with the same
    tokenizer.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    launch = (
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    )
    ports = ("--main_process_port", "0", "--mixed_precision", "no", "--dynamo_backend", "no")
    process = started(
        *launch, *ports, "-m", "executor_sft", *command(data, base, tmp_path / "out", "full")
    )
    shown, errors = process.communicate()
    assert process.returncode == 0, errors
    assert shown.count("figure") == 1
    folder = tmp_path / "out" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert model.dtype == torch.bfloat16 and model.config.tie_word_embeddings
    base_weights = load_file(base / "model.safetensors")
    trained_weights = load_file(folder / "model.safetensors")
    assert trained_weights.keys() == base_weights.keys()
    assert not any(
        torch.equal(trained_weights[name], tensor)
        for name, tensor in base_weights.items()
        if tensor.ndim == 2
    )
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        assert (folder / name).read_bytes() == (base / name).read_bytes()
    assert losses(tmp_path / "out")[-1][1] < losses(tmp_path / "out")[0][1] / 2


def test_a_torn_checkpoint_is_skipped(tmp_path: Path) -> None:
    """Its state is written last; the previous checkpoint is whole."""
    assert _last_checkpoint(tmp_path) is None
    for step, state in ((3, "{}"), (9, "{}"), (12, '{"glo'), (15, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert _last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-9")


def test_a_base_that_does_not_fit_is_named(base: Path, data: Path, tmp_path: Path) -> None:
    """The folder is missing, the tokenizer differs (its ids mean other text), or weights are torn
    or missing.
    """
    copy = tmp_path / "copy"
    shutil.copytree(base, copy)
    with pytest.raises(
        BadConfig, match=r"nowhere: is not a model; name a folder with config\.json"
    ):
        base_files(tmp_path / "nowhere", data)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(
        BadConfig, match=r"was made for another tokenizer .*chat_template\.jinja differs"
    ):
        base_files(copy, data)
    weights = (base / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(BadConfig, match="copy: cannot be loaded"):
        load_base(copy, [row((1,), (2,))], ADAPTER)
    (copy / "model.safetensors").unlink()
    with pytest.raises(BadConfig, match="copy: is not a model"):
        base_files(copy, data)


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (row((1,) * 60, (2,) * 5), "row has 65 tokens, but the recipe.s max_length is 64"),
        (row((1,), (9_999,)), "vocabulary of 1256 tokens, but the data set has the token id 9999"),
    ],
)
def test_rows_beyond_the_base_s_context_are_refused(
    base: Path, one: TrainingRow, message: str
) -> None:
    """Nothing is cut."""
    with pytest.raises(BadConfig, match=message):
        load_base(base, [one], ADAPTER)


@pytest.mark.slow
@pytest.mark.parametrize("without", [[], ["labels"]])
def test_plain_trl_trains_on_the_rows(
    base: Path, data: Path, tmp_path: Path, without: list[str]
) -> None:
    """Ten lines are enough, with labels or with masks: the labels are equal, and the weights
    change.
    """
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset(
        "json",
        data_files=str(data / "rows.jsonl"),
        split="train",
        cache_dir=str(tmp_path / "cache"),
    )
    rows = rows.remove_columns(without)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = [weights.clone() for weights in model.parameters()]
    settings = SFTConfig(
        str(tmp_path), max_steps=1, use_cpu=True, bf16=False, report_to="none", max_length=None
    )
    trainer = SFTTrainer(
        model, settings, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(base)
    )
    trainer.train()
    made = read_rows(data / "rows.jsonl")
    assert trainer.train_dataset["labels"][:] == [list(row.labels) for row in made]
    assert trainer.train_dataset["input_ids"][:] == [list(row.input_ids) for row in made]
    assert any(
        not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)
    )


def test_shipped_recipes_have_the_documented_settings() -> None:
    """The paper's settings are those of TBSS, appendix D; the mini models get an adapter of their
    engine's rank.
    """
    paper = read_recipe("paper-qwen3-1.7b", Recipe)
    mini = read_recipe("mini", Recipe)
    assert (paper.method, paper.epochs, paper.batch, paper.learning_rate) == ("full", 3, 16, 1e-5)
    assert (paper.schedule, paper.warm_up_ratio, paper.weight_decay) == ("cosine", 0.03, 0.01)
    assert (paper.precision, paper.max_length) == ("bf16", 4096)
    assert (mini.method, mini.rank, mini.target_modules) == ("lora", 32, "all-linear")
    with pytest.raises(BadConfig, match=r"maxi\.toml: .*mini, paper-qwen3-1\.7b"):
        read_recipe("maxi", Recipe)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('method = "lora"\nlearning_rate = 1e-3\nepoch = 3', "unknown field `epoch`"),
        ('method = "qlora"\nlearning_rate = 1e-3', "qlora"),
        ('method = "full"', "learning_rate"),
        ('method = "full"\nlearning_rate = 0.0', "learning_rate"),
        ("method = ", r"own\.toml"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    """Keys are unknown or missing, or values are impossible."""
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(BadConfig, match=message):
        read_recipe(str(tmp_path / "own.toml"), Recipe)


def test_the_batch_is_split_over_devices() -> None:
    """Rows that do not fit on them are accumulated; a batch that cannot be split is refused."""
    recipe = Recipe(method="full", learning_rate=1e-5, batch=16, device_batch=2)
    assert [recipe.accumulation(devices) for devices in (1, 2, 8)] == [8, 4, 1]
    for devices in (3, 16):
        with pytest.raises(BadConfig, match=f"times {devices} devices"):
            recipe.accumulation(devices)
