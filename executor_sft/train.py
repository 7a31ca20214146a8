"""`rolegate sft train`: fine-tune an executor on a data set of `rolegate sft dataset`.

Writes an adapter or whole weights (bf16) to DIR/model, and the loss of each step to DIR/loss.jsonl.
Checkpoints are kept meanwhile: the same command goes on where a killed one was, and ends with the
same model.

It computes on the GPU where there is one, and else on the CPU. For several GPUs, start it with
`accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 -m executor_sft train DATASET
--model … --out …`.

The batch of the recipe is the one over all of them.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from executor_sft.command import POSITIONAL, StepOptions, show
from executor_sft.dataset import RESULT as ROWS
from executor_sft.dataset import TrainingRow, read_rows, tokenizer_files
from executor_sft.step import Step, digest_of, read_manifest
from router.errors import BadConfig
from serving.dependencies import need
from serving.engines.versions import WEIGHTS, base_sha256
from serving.files import flush, write_atomically

MODEL = "model"
LOSS = "loss.jsonl"
NEEDED = ("accelerate", "datasets", "peft", "torch", "trl")
"""Modules that are loaded late, so that `--help` can do without."""
_CHECKPOINTS = "checkpoints"
_STATE = "trainer_state.json"
_SHIPPED = Path(__file__).resolve().parent / "recipes"
_Count = Annotated[int, Meta(ge=1)]
_Share = Annotated[float, Meta(ge=0, lt=1)]
_Positive = Annotated[float, Meta(gt=0)]
_SMOOTHED = 20
"""Last steps, whose mean loss is told."""


class Options(StepOptions, frozen=True, kw_only=True):
    """Options of the step."""

    dataset: Annotated[Path, POSITIONAL, Meta(description="the folder of `rolegate sft dataset`")]
    model: Annotated[Path, Meta(description="the folder of the model to begin with")]
    recipe: Annotated[str, Meta(description="mini, paper-qwen3-1.7b, or a TOML file")] = "mini"
    threads: (
        Annotated[int, Meta(ge=1, description="of the CPU; without it, one for each core")] | None
    ) = None


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides about the result, with the data and the base model."""

    method: Literal["full", "lora"]
    rank: _Count = 32
    """Of a LoRA adapter; the three below too."""
    alpha: _Positive = 64.0
    dropout: _Share = 0.0
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """The layers that are adapted, by the ends of their names."""
    epochs: _Positive = 3.0
    batch: _Count = 16
    """Rows of a step, over all devices."""
    device_batch: _Count = 16
    """Rows at once on one device; what is missing to `batch` is accumulated."""
    learning_rate: _Positive
    schedule: Literal["cosine", "linear"] = "cosine"
    warm_up_ratio: _Share = 0.03
    weight_decay: Annotated[float, Meta(ge=0)] = 0.01
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of computing; weights and the optimizer's state are kept in fp32 while training."""
    max_length: _Count = 4096
    """Tokens of a row; a longer one is an error, never cut."""
    gradient_checkpointing: bool = False
    """Less memory for more time."""
    seed: int = 1
    checkpoint_every: _Count = 100
    """Steps."""

    def accumulation(self, devices: int) -> int:
        """Passes of a step on each device. Raises `BadConfig` where the batch cannot be split
        so.
        """
        passes, rest = divmod(self.batch, self.device_batch * devices)
        if rest or not passes:
            raise BadConfig(
                f"batch = {self.batch} cannot be split over {devices} devices of "
                f"device_batch = {self.device_batch}; "
                "make it a multiple of both."
            )
        return passes


def load_recipe(name: str) -> Recipe:
    """A shipped recipe by its name, or one in a file by its path (`….toml`). Raises `BadConfig`."""
    path = Path(name) if name.endswith(".toml") else _SHIPPED / f"{name}.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Recipe)
    except FileNotFoundError:
        known = ", ".join(sorted(file.stem for file in _SHIPPED.glob("*.toml")))
        raise BadConfig(
            f"recipe {name}: is not there; name a file (….toml), or one of: {known}."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: {error}") from None


class StepLoss(msgspec.Struct, frozen=True):
    """One line of `loss.jsonl`."""

    step: int
    loss: float
    """Mean over the tokens of the step that carry one, in nats."""
    learning_rate: float
    token_accuracy: float | None = None
    """Share of these tokens that the model would have written itself."""


def run(options: Options) -> int:
    """Run the step; the exit status."""
    need("sft", *NEEDED)
    recipe = load_recipe(options.recipe)
    inputs = {"dataset": options.dataset, **base_files(options.model, options.dataset)}
    import torch
    from accelerate import PartialState

    if options.threads:
        torch.set_num_threads(options.threads)
    processes = PartialState(cpu=not torch.cuda.is_available())
    with processes.main_process_first():
        step = Step.begin(options.out, "train", inputs, msgspec.to_builtins(recipe))
        finished = step.finished
    if finished is None:
        _train(step, options, recipe, processes.num_processes)
    if processes.is_main_process:
        show(read_manifest(options.out).figures, as_json=options.json)
    return 0


def _train(step: Step, options: Options, recipe: Recipe, devices: int) -> None:
    rows = read_rows(options.dataset / ROWS)
    base = options.model
    checkpoints = step.folder / _CHECKPOINTS
    trainer = _trainer(rows, base, recipe, checkpoints, devices)
    trainer.train(resume_from_checkpoint=_last_checkpoint(checkpoints))
    save_trained(trainer, base, step.folder / MODEL)
    if not trainer.is_world_process_zero():
        return
    losses = [
        StepLoss(
            entry["step"], entry["loss"], entry["learning_rate"], entry.get("mean_token_accuracy")
        )
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    write_atomically(step.folder / LOSS, msgspec.json.Encoder().encode_lines(losses))
    figures = {
        "kind": "adapter" if recipe.method == "lora" else "weights",
        "steps": losses[-1].step,
        "loss": fmean(loss.loss for loss in losses[-_SMOOTHED:]),
        "trained_parameters": trainer.model.num_parameters(only_trainable=True),
        "device": str(trainer.args.device),
        "git_revision": _git_revision(),
        "base": base.resolve().name,
        "base_sha256": base_sha256(base),
    }
    files = [
        path.relative_to(step.folder).as_posix() for path in sorted((step.folder / MODEL).iterdir())
    ]
    step.finish(figures, [*files, LOSS])
    shutil.rmtree(checkpoints)


def base_files(model: Path, dataset: Path) -> dict[str, Path]:
    """The files that decide what the training begins with. Raises `BadConfig` where they are not
    there, or where the data set was made for another tokenizer.
    """
    weights = next((model / name for name in WEIGHTS if (model / name).is_file()), None)
    if weights is None or not (model / "config.json").is_file():
        raise BadConfig(
            f"{model}: is no model; name a folder with config.json and {' or '.join(WEIGHTS)}."
        )
    made_for = read_manifest(dataset).origin.inputs
    for name, path in tokenizer_files(model).items():
        if made_for.get(name) != digest_of(path):
            raise BadConfig(
                f"{dataset}: was made for another tokenizer ({path} differs); make it "
                f"again with --model {model}."
            )
    return {"config": model / "config.json", "weights": weights}


def load_base(model: Path, rows: Sequence[TrainingRow], recipe: Recipe) -> Any:
    """The model in fp32. Raises `BadConfig` where it cannot be loaded whole, or cannot hold the
    rows.
    """
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
        raise BadConfig(
            f"{model}: has no weights for {min(missing)} and {len(missing) - 1} others; "
            "copy it again."
        )
    longest = max(len(row.input_ids) for row in rows)
    most = min(recipe.max_length, base.config.max_position_embeddings)
    if longest > most:
        raise BadConfig(
            f"{model}: the longest row has {longest} tokens, and {most} are allowed, by "
            "the recipe's max_length = "
            f"{recipe.max_length} and by the model; make a data set of shorter rows, or "
            "raise max_length."
        )
    highest = max(max(row.input_ids) for row in rows)
    if highest >= base.config.vocab_size:
        raise BadConfig(
            f"{model}: knows {base.config.vocab_size} tokens, and the data set has token {highest}."
        )
    return base


def _trainer(
    rows: Sequence[TrainingRow], base: Path, recipe: Recipe, checkpoints: Path, devices: int
) -> Any:
    """TRL's, over exactly these rows. Raises `BadConfig` where base, rows and recipe do not fit
    each other.
    """
    import huggingface_hub.constants
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from transformers.trainer_callback import ProgressCallback
    from trl import SFTTrainer

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # TRL would report each training
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    examples = {
        name: [list(getattr(row, name)) for row in rows] for name in ("input_ids", "labels")
    }
    modules = (
        recipe.target_modules
        if recipe.target_modules == "all-linear"
        else list(recipe.target_modules)
    )
    adapter = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=modules,
        task_type="CAUSAL_LM",
    )
    try:
        trainer = SFTTrainer(
            load_base(base, rows, recipe),
            _settings(recipe, checkpoints, devices),
            train_dataset=Dataset.from_dict(examples),
            processing_class=transformers.AutoTokenizer.from_pretrained(
                base, local_files_only=True
            ),
            peft_config=adapter if recipe.method == "lora" else None,
        )
    except ValueError as error:  # PEFT's, for layers that are not there
        raise BadConfig(f"{base}: does not fit the recipe: {error}") from None
    if trainer.train_dataset.to_dict() != examples:
        raise AssertionError("TRL changed the rows")
    trainer.remove_callback(transformers.PrinterCallback)
    bar = ProgressCallback()
    bar.on_log = lambda *_, **__: None  # no line for each step
    trainer.add_callback(bar)
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
    found = sorted(
        folder.glob("checkpoint-*"),
        key=lambda path: int(path.name.rpartition("-")[2]),
        reverse=True,
    )
    for checkpoint in found:
        try:
            msgspec.json.decode((checkpoint / _STATE).read_bytes())
        except (OSError, msgspec.DecodeError):
            continue
        return str(checkpoint)
    return None


def save_trained(trainer: Any, base: Path, folder: Path) -> None:
    """Write the folder whole or not at all. All processes of a training must call it; the main
    one writes.
    """
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return
    unfinished = folder.with_name(f".{folder.name}")
    for left in (unfinished, folder):
        shutil.rmtree(left, ignore_errors=True)
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    if hasattr(model, "peft_config"):
        # Not where it lies on this machine
        model.peft_config["default"].base_model_name_or_path = base.resolve().name
        model.save_pretrained(unfinished, state_dict=_halved(weights), save_embedding_layers=False)
        (unfinished / "README.md").unlink()  # a form that nobody filled in
    else:
        # All but the weights is the base model's: training changes no architecture or tokenizer.
        model.save_pretrained(unfinished, state_dict=_halved(weights))
        for path in base.iterdir():
            if path.is_file() and ".safetensors" not in path.name:
                shutil.copyfile(path, unfinished / path.name)
    for path in (*unfinished.iterdir(), unfinished):
        flush(path)
    unfinished.rename(folder)


def _halved(weights: dict[str, Any]) -> dict[str, Any]:
    """The same in bf16; what was one tensor under two names stays one."""
    import torch

    halves: dict[int, torch.Tensor] = {}
    return {
        name: halves.setdefault(tensor.data_ptr(), tensor.detach().to(torch.bfloat16))
        for name, tensor in weights.items()
    }


def _git_revision() -> str:
    """The code's commit, with `-dirty` where files were changed since; empty where it is no git
    checkout.
    """
    root = Path(__file__).resolve().parents[1]
    command = [
        "git",
        "-C",
        str(root),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - no shell
