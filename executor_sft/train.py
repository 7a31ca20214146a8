"""`rolegate sft train`: fine-tune an executor on a data set of `rolegate sft dataset`.

Writes an adapter or whole weights (bf16) to DIR/model, and the loss to DIR/loss.jsonl and DIR/loss.png. Checkpoints are
kept meanwhile: the same command goes on where a killed one was, and ends with the same model.

It computes on the GPU where there is one, and else on the CPU. For several GPUs, start it with accelerate:

  accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 -m executor_sft train DATASET --model … --out …

The batch of the recipe is the one over all of them.
"""

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from executor_sft.base_model import base_files, load_base
from executor_sft.dataset import RESULT as ROWS
from executor_sft.git_revision import git_revision
from executor_sft.loss_curve import StepLoss, draw, smoothed
from executor_sft.recipe import Recipe, load_recipe
from executor_sft.row import Row
from executor_sft.row_file import read_rows
from executor_sft.step import Step, read_manifest
from executor_sft.trained_model import save_trained
from router.errors import BadConfig
from serving.dependencies import need
from serving.engines.versions import base_sha256
from serving.files import write_atomically

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

    from executor_sft.training_progress import TrainingProgress

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
