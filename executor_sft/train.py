"""`rolegate sft train`: fine-tune an executor on a data set of `rolegate sft dataset`.

Writes an adapter or whole weights (bf16) to DIR/model, and the loss to DIR/loss.jsonl and DIR/loss.png. Checkpoints are
kept meanwhile: the same command goes on where a killed one was, and ends with the same model.

It computes on the GPU where there is one, and else on the CPU. For several GPUs, start it with accelerate:

  accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 -m executor_sft train DATASET --model … --out …

The batch of the recipe is the one over all of them.
"""

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback

from executor_sft.dataset import RESULT as ROWS
from executor_sft.dataset import Row, read_rows, tokenizer_files
from executor_sft.recipe import Recipe, load_recipe
from executor_sft.step import Step, digest_of, read_manifest
from router.errors import BadConfig
from serving.dependencies import need
from serving.engines.versions import WEIGHTS, base_sha256
from serving.files import flush, replacing, write_atomically


def base_files(model: Path, dataset: Path) -> dict[str, Path]:
    """The files that decide what the training begins with. Raises `BadConfig` where they are not there, or where the
    data set was made for another tokenizer.
    """
    weights = next((model / name for name in WEIGHTS if (model / name).is_file()), None)
    if weights is None or not (model / "config.json").is_file():
        raise BadConfig(f"{model}: is no model; name a folder with config.json and {' or '.join(WEIGHTS)}.")
    made_for = read_manifest(dataset).origin.inputs
    for name, path in tokenizer_files(model).items():
        if made_for.get(name) != digest_of(path):
            raise BadConfig(
                f"{dataset}: was made for another tokenizer ({path} differs); make it again with --model {model}."
            )
    return {"config": model / "config.json", "weights": weights}


def load_base(model: Path, rows: Sequence[Row], recipe: Recipe) -> Any:
    """The model in fp32. Raises `BadConfig` where it cannot be loaded whole, or cannot hold the rows."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        base, loaded = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise BadConfig(f"{model}: cannot be loaded ({error}); copy the model again.") from None
    if missing := loaded["missing_keys"]:
        raise BadConfig(f"{model}: has no weights for {min(missing)} and {len(missing) - 1} others; copy it again.")
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    most = min(recipe.max_length, base.config.max_position_embeddings)
    if longest > most:
        raise BadConfig(
            f"{model}: the longest row has {longest} tokens, and {most} are allowed, by the recipe's max_length = "
            f"{recipe.max_length} and by the model; make a data set of shorter rows, or raise max_length."
        )
    highest = max(max(row.prompt_ids + row.completion_ids) for row in rows)
    if highest >= base.config.vocab_size:
        raise BadConfig(f"{model}: knows {base.config.vocab_size} tokens, and the data set has token {highest}.")
    return base


_SMOOTHED = 20
"""Steps of the running mean."""


class StepLoss(msgspec.Struct, frozen=True):
    """One line of `loss.jsonl`."""

    step: int
    loss: float
    """Mean over the tokens of the step that carry one, in nats."""
    learning_rate: float
    token_accuracy: float | None = None
    """The share of these tokens that the model would have written itself."""


def draw(steps: Sequence[StepLoss], path: Path) -> None:
    """Write a PNG with the loss of each step and its running mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlabel="step", ylabel="loss (nats a token)", yscale="log")
    numbers = [step.step for step in steps]
    axes.plot(numbers, [step.loss for step in steps], color="0.75", linewidth=0.8, label="each step")
    axes.plot(numbers, smoothed([step.loss for step in steps]), label=f"mean of the last {_SMOOTHED}")
    axes.grid(alpha=0.3)
    axes.legend()
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format="png")


def smoothed(losses: Sequence[float]) -> list[float]:
    """For each step, the mean of the last few."""
    windows = (losses[max(0, end - _SMOOTHED) : end] for end in range(1, len(losses) + 1))
    return [sum(window) / len(window) for window in windows]


def save_trained(trainer: Any, base: Path, folder: Path) -> None:
    """Write the folder whole or not at all. All processes of a training must call it; the main one writes."""
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return
    unfinished = folder.with_name(f".{folder.name}")
    for left in (unfinished, folder):
        shutil.rmtree(left, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    if hasattr(model, "peft_config"):
        _save_adapter(model, _halved(weights), base, unfinished)
    else:
        _save_weights(model, _halved(weights), base, unfinished)
    for path in (*unfinished.iterdir(), unfinished):
        flush(path)
    unfinished.rename(folder)


def _save_adapter(model: Any, weights: dict[str, Any], base: Path, folder: Path) -> None:
    model.peft_config["default"].base_model_name_or_path = base.resolve().name  # not where it lies on this machine
    model.save_pretrained(folder, state_dict=weights, save_embedding_layers=False)
    (folder / "README.md").unlink()  # a form that nobody filled in


def _save_weights(model: Any, weights: dict[str, Any], base: Path, folder: Path) -> None:
    """All but the weights is the base model's own: training changes no architecture and no tokenizer."""
    model.save_pretrained(folder, state_dict=weights)
    for path in base.iterdir():
        if path.is_file() and ".safetensors" not in path.name:
            shutil.copyfile(path, folder / path.name)


def _halved(weights: dict[str, Any]) -> dict[str, Any]:
    """The same in bf16; what was one tensor under two names stays one."""
    import torch

    halves: dict[int, torch.Tensor] = {}
    return {
        name: halves.setdefault(tensor.data_ptr(), tensor.detach().to(torch.bfloat16))
        for name, tensor in weights.items()
    }


class TrainingProgress(TrainerCallback):  # type: ignore[misc] # transformers is not typed here
    """A bar with the loss of the last step."""

    def __init__(self) -> None:
        columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True))
        self._task = self._bar.add_task("")

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Show it, from where the training goes on."""
        self._bar.update(self._task, total=state.max_steps, completed=state.global_step)
        self._bar.start()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """One more."""
        self._bar.update(self._task, completed=state.global_step)

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """What was measured."""
        if logs and "loss" in logs:
            self._bar.update(self._task, description=f"loss {float(logs['loss']):.4f}")

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_: Any) -> None:
        """Leave the bar as it is."""
        self._bar.stop()


def git_revision() -> str:
    """Its commit, with `-dirty` where files were changed since; empty where this code is no git checkout."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - not a shell
    except FileNotFoundError:
        return ""
    return ran.stdout.strip()


MODEL, LOSS, CURVE = "model", "loss.jsonl", "loss.png"
_CHECKPOINTS, _STATE = "checkpoints", "trainer_state.json"
_NO_LOSS = -100
NEEDED = ("accelerate", "datasets", "matplotlib", "peft", "pyarrow", "torch", "trl")
"""Modules that are loaded late, so that `--help` can do without."""


def main(arguments: Sequence[str]) -> int:
    """Run the step; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="the folder of `rolegate sft dataset`")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="what to begin with")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes")
    parser.add_argument(
        "--recipe", default="mini", metavar="NAME|FILE", help="mini (default), paper-qwen3-1.7b, or a TOML file"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU (default: one for each core)")
    given = parser.parse_args(arguments)
    need("sft", *NEEDED)
    recipe = load_recipe(given.recipe)
    inputs = {"dataset": given.dataset, **base_files(given.model, given.dataset)}
    import torch
    from accelerate import PartialState

    if given.threads:
        torch.set_num_threads(given.threads)
    processes = PartialState(cpu=not torch.cuda.is_available())
    with processes.main_process_first():
        step = Step.begin(given.out, "train", inputs, msgspec.to_builtins(recipe))
        finished = step.finished
    if finished is None:
        _train(step, given.dataset, given.model, recipe, processes.num_processes)
    if processes.is_main_process:
        figures = read_manifest(given.out).figures
        print(f"{given.out / MODEL}: {figures['steps']} steps, loss {figures['loss']:.4f} at the end")
    return 0


def _train(step: Step, dataset: Path, base: Path, recipe: Recipe, devices: int) -> None:
    rows = read_rows(dataset / ROWS)
    checkpoints = step.folder / _CHECKPOINTS
    trainer = _trainer(rows, base, recipe, checkpoints, devices)
    trainer.train(resume_from_checkpoint=_last_checkpoint(checkpoints))
    save_trained(trainer, base, step.folder / MODEL)
    if trainer.is_world_process_zero():
        losses = _losses(trainer)
        write_atomically(step.folder / LOSS, b"".join(msgspec.json.encode(loss) + b"\n" for loss in losses))
        draw(losses, step.folder / CURVE)
        files = [path.relative_to(step.folder).as_posix() for path in sorted((step.folder / MODEL).iterdir())]
        step.finish(_figures(trainer, losses, dataset, base, recipe), [*files, LOSS, CURVE])
        shutil.rmtree(checkpoints)


def _trainer(rows: Sequence[Row], base: Path, recipe: Recipe, checkpoints: Path, devices: int) -> Any:
    """TRL's, over exactly these rows. Raises `BadConfig` where base, rows and recipe do not fit each other."""
    import huggingface_hub.constants
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTTrainer

    pass

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL would report each training
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    examples = {
        "input_ids": [[*row.prompt_ids, *row.completion_ids] for row in rows],
        "labels": [[*[_NO_LOSS] * len(row.prompt_ids), *row.completion_ids] for row in rows],
    }
    modules = recipe.target_modules if recipe.target_modules == "all-linear" else list(recipe.target_modules)
    adapter = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=modules,
        task_type="CAUSAL_LM",
    )
    settings = _settings(recipe, checkpoints, devices)
    try:
        trainer = SFTTrainer(
            load_base(base, rows, recipe),
            settings,
            train_dataset=Dataset.from_dict(examples),
            processing_class=transformers.AutoTokenizer.from_pretrained(base, local_files_only=True),
            peft_config=adapter if recipe.method == "lora" else None,
        )
    except ValueError as error:  # PEFT's, for layers that are not there
        raise BadConfig(f"{base}: does not fit the recipe: {error}") from None
    if trainer.train_dataset.to_dict() != examples:
        raise AssertionError("TRL changed the rows")
    trainer.remove_callback(transformers.PrinterCallback)
    if trainer.is_world_process_zero():
        trainer.add_callback(TrainingProgress())
    return trainer


def _settings(recipe: Recipe, checkpoints: Path, devices: int) -> Any:
    import torch
    from trl import SFTConfig

    on_gpu = torch.cuda.is_available()
    return SFTConfig(
        output_dir=str(checkpoints),
        per_device_train_batch_size=recipe.device_batch,
        gradient_accumulation_steps=recipe.accumulation(devices),
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.schedule,
        warmup_steps=recipe.warm_up_ratio,
        weight_decay=recipe.weight_decay,
        bf16=recipe.precision == "bf16",
        gradient_checkpointing=recipe.gradient_checkpointing,
        seed=recipe.seed,
        save_steps=recipe.checkpoint_every,
        save_total_limit=2,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=not on_gpu,
        dataloader_pin_memory=on_gpu,
        max_length=None,  # no row is cut
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def _last_checkpoint(folder: Path) -> str | None:
    """The last one that was written to its end, which its state is; None where there is none."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)
    for checkpoint in found:
        try:
            msgspec.json.decode((checkpoint / _STATE).read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        return str(checkpoint)
    return None


def _losses(trainer: Any) -> list[StepLoss]:
    return [
        StepLoss(entry["step"], entry["loss"], entry["learning_rate"], entry.get("mean_token_accuracy"))
        for entry in trainer.state.log_history
        if "loss" in entry
    ]


def _figures(trainer: Any, losses: Sequence[StepLoss], dataset: Path, base: Path, recipe: Recipe) -> dict[str, object]:
    return {
        "kind": "adapter" if recipe.method == "lora" else "weights",
        "steps": losses[-1].step,
        "loss": smoothed([loss.loss for loss in losses])[-1],
        "trained_parameters": trainer.model.num_parameters(only_trainable=True),
        "device": str(trainer.args.device),
        "git_revision": git_revision(),
        "base": {"name": base.resolve().name, "sha256": base_sha256(base)},
        "data": msgspec.to_builtins(read_manifest(dataset)),
    }
