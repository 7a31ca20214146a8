"""`rolegate sft train`: fine-tune an executor on a data set of `rolegate sft dataset`.

Writes the trained adapter, or all weights, in bf16 to OUT/model. OUT/loss.jsonl has a line for each
training step, with its loss and the other values that the trainer logs.

The training writes checkpoints. After an interruption, the same command resumes from the last
checkpoint; the resulting model is the same as that of an uninterrupted training.

Runs on the GPU if there is one, else on the CPU. To use several GPUs, start the command with
`accelerate launch --num_processes 4 --use_fsdp --fsdp_version 2 -m executor_sft train DATASET
--model … --out …`. `batch` in the recipe is the number of rows over all GPUs.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from executor_sft.command import Count, StepOptions, show
from executor_sft.dataset import RESULT as ROWS
from executor_sft.dataset import TrainingRow, read_rows, tokenizer_files
from executor_sft.jsonl import read_json, write_jsonl
from executor_sft.step import Step, digest_of, read_manifest
from router.errors import BadConfig
from router.frozen import Frozen
from serving.cli.command import POSITIONAL
from serving.dependencies import need
from serving.engines.versions import WEIGHTS, base_sha256
from serving.files import flush

MODEL = "model"
LOSS = "loss.jsonl"
NEEDED = ("accelerate", "datasets", "peft", "torch", "trl")
"""Optional packages that the step needs; imported late, so that `--help` works without them."""
_CHECKPOINTS = "checkpoints"
_STATE = "trainer_state.json"
_SHIPPED = Path(__file__).resolve().parent / "recipes"
_Kind = TypeVar("_Kind")
_Share = Annotated[float, Meta(ge=0, lt=1)]
_Positive = Annotated[float, Meta(gt=0)]
_SMOOTHED = 20
"""Number of training steps, the last ones, whose mean loss is reported."""


class Options(StepOptions):
    """Options of the step."""

    dataset: Annotated[Path, POSITIONAL]
    """result folder of `rolegate sft dataset`"""
    model: Path
    """folder of the model to train"""
    recipe: str = "mini"
    """settings of the training, such as the learning rate: mini (for the demo's model),
    paper-qwen3-1.7b (for Qwen3-1.7B), or a TOML file with the keys of these recipes
    """
    threads: Count | None = None
    """number of CPU threads (default: one per core)"""


class Recipe(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Settings of a training. Data set, base model and recipe together determine the result."""

    method: Literal["full", "lora"]
    """`full`: train all weights. `lora`: train a LoRA adapter."""
    rank: Count = 32
    """Rank of the LoRA adapter."""
    alpha: _Positive = 64.0
    """Scaling factor of the LoRA adapter."""
    dropout: _Share = 0.0
    """Dropout of the LoRA adapter's layers."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Layers that get a LoRA adapter: all linear layers, or the layers whose names end in one of
    these texts.
    """
    epochs: _Positive = 3.0
    batch: Count = 16
    """Rows per training step, in total over all devices."""
    device_batch: Count = 16
    """Rows per forward pass on one device. Gradients are accumulated until a step has `batch` rows.
    """
    learning_rate: _Positive
    """Peak learning rate."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Decay of the learning rate: along a cosine, or linear."""
    warm_up_ratio: _Share = 0.03
    """Share of the training steps in which the learning rate rises from 0 to its peak."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.01
    precision: Literal["bf16", "fp32"] = "bf16"
    """Precision of the forward pass; weights and optimizer state are always fp32."""
    max_length: Count = 4096
    """Max tokens of a row. A longer row is an error; rows are never shortened."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory at the cost of time."""
    seed: int = 1
    checkpoint_every: Count = 100
    """Steps between checkpoints."""

    def accumulation(self, devices: int) -> int:
        """Return the number of forward passes that each device makes for one training step.

        `devices`: number of devices. Raises `BadConfig` if `batch` cannot be split evenly.
        """
        passes, rest = divmod(self.batch, self.device_batch * devices)
        if rest or not passes:
            raise BadConfig(
                f"recipe: batch = {self.batch} is not a multiple of device_batch = "
                f"{self.device_batch} times {devices} devices; change batch or device_batch."
            )
        return passes


def read_recipe(name: str, kind: type[_Kind]) -> _Kind:
    """Load a recipe. `name`: name of a shipped recipe, or path of a file that ends in `.toml`.
    `kind`: type of the recipe. Raises `BadConfig` if the recipe does not exist or is invalid.
    """
    path = Path(name) if name.endswith(".toml") else _SHIPPED / f"{name}.toml"
    known = ", ".join(sorted(file.stem for file in _SHIPPED.glob("*.toml")))
    advice = f"name a TOML file with correct keys, or one of: {known}"
    return read_json(path, kind, advice, msgspec.toml.decode)


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    need("sft", *NEEDED)
    recipe = read_recipe(options.recipe, Recipe)
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


def _train(
    step: Step,
    options: Options,
    recipe: Recipe,
    devices: int,
) -> None:
    """Train the model, write model and losses, and finish the step. In a training on several
    devices, every process must call this function.
    """
    rows = read_rows(options.dataset / ROWS)
    base = options.model
    checkpoints = step.folder / _CHECKPOINTS
    trainer = _trainer(
        rows,
        base,
        recipe,
        checkpoints,
        devices,
    )
    trainer.train(resume_from_checkpoint=_last_checkpoint(checkpoints))
    save_trained(trainer, base, step.folder / MODEL)
    if not trainer.is_world_process_zero():
        return
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    write_jsonl(step.folder / LOSS, losses)
    figures = {
        "kind": "adapter" if recipe.method == "lora" else "weights",
        "steps": losses[-1]["step"],
        "loss": fmean(entry["loss"] for entry in losses[-_SMOOTHED:]),
        "trained_parameters": trainer.model.num_parameters(only_trainable=True),
        "device": str(trainer.args.device),
        "base": base.resolve().name,
        "base_sha256": base_sha256(base),
    }
    files = [f"{MODEL}/{path.name}" for path in sorted((step.folder / MODEL).iterdir())]
    step.finish(figures, [*files, LOSS])
    shutil.rmtree(checkpoints)


def base_files(model: Path, dataset: Path) -> dict[str, Path]:
    """Return the paths of the config and the weights in the folder `model`. They become inputs of
    the step, under these keys.

    Raises `BadConfig` if a file is missing, or if the data set was made for another tokenizer.
    """
    weights = next((model / name for name in WEIGHTS if (model / name).is_file()), None)
    if weights is None or not (model / "config.json").is_file():
        raise BadConfig(
            f"{model}: is not a model; name a folder with config.json and {' or '.join(WEIGHTS)}."
        )
    made_for = read_manifest(dataset).origin.inputs
    for name, path in tokenizer_files(model).items():
        if made_for.get(name) != digest_of(path):
            raise BadConfig(
                f"{dataset}: this data set was made for another tokenizer ({path} differs); make "
                f"the data set again with `rolegate sft dataset --model {model}`."
            )
    return {"config": model / "config.json", "weights": weights}


def load_weights(model: Path) -> Any:
    """Return the model in the folder `model`, loaded in fp32. Raises `BadConfig` if the model
    cannot be loaded.
    """
    import torch
    import transformers
    from safetensors import SafetensorError

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        base, loaded = transformers.AutoModelForCausalLM.from_pretrained(
            model,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise BadConfig(f"{model}: cannot be loaded ({error}); copy the model again.") from None
    if missing := loaded["missing_keys"]:
        raise BadConfig(
            f"{model}: has no weights for {min(missing)} (missing in total: {len(missing)}); copy "
            "the model again."
        )
    return base


def load_base(model: Path, rows: Sequence[TrainingRow], recipe: Recipe) -> Any:
    """Return the base model in the folder `model`, loaded in fp32.

    Raises `BadConfig` if the model cannot be loaded, or if the rows are too long or have token ids
    that the model does not have.
    """
    base = load_weights(model)
    longest = max(len(row.input_ids) for row in rows)
    positions = base.config.max_position_embeddings
    if longest > min(recipe.max_length, positions):
        raise BadConfig(
            f"{model}: the longest row has {longest} tokens, but the recipe's max_length is "
            f"{recipe.max_length} and the model reads at most {positions} tokens. Raise "
            "max_length, or show the executor fewer or shorter passages. Rows are never cut off, "
            "as they would lose the report at their end."
        )
    highest = max(max(row.input_ids) for row in rows)
    if highest >= base.config.vocab_size:
        raise BadConfig(
            f"{model}: has a vocabulary of {base.config.vocab_size} tokens, but the data set has "
            f"the token id {highest}; make the data set again with --model {model}."
        )
    return base


def _trainer(
    rows: Sequence[TrainingRow],
    base: Path,
    recipe: Recipe,
    checkpoints: Path,
    devices: int,
) -> Any:
    """Return a trainer of TRL for the base model in the folder `base`. It trains on exactly these
    rows, and shortens none.

    `checkpoints`: folder for checkpoints. `devices`: number of devices. Raises `BadConfig` if base
    model, rows and recipe do not fit together.
    """
    import huggingface_hub.constants
    import transformers
    from datasets import Dataset
    from peft import LoraConfig
    from transformers.trainer_callback import ProgressCallback
    from trl import SFTTrainer

    # Without this, TRL reports each training to Hugging Face
    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True
    examples = {
        name: [list(getattr(row, name)) for row in rows] for name in ("input_ids", "labels")
    }
    adapter = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=recipe.target_modules,
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
    except ValueError as error:  # PEFT raises it if the model has no layers of these names
        raise BadConfig(
            f"{base}: this model does not fit the recipe ({error}); correct the recipe, for "
            "example its target_modules."
        ) from None
    if trainer.train_dataset.to_dict() != examples:
        raise AssertionError(
            "TRL changed the rows; install the release of trl that rolegate[sft] requires"
        )
    trainer.remove_callback(transformers.PrinterCallback)
    bar = ProgressCallback()
    bar.on_log = lambda *_, **__: None  # do not print a line per step
    trainer.add_callback(bar)
    return trainer


def _settings(recipe: Recipe, checkpoints: Path, devices: int) -> Any:
    """Return the recipe as settings of TRL's trainer. Raises `BadConfig` if the recipe's batch
    cannot be split over the devices.
    """
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
        max_length=None,  # do not shorten rows
        dataset_kwargs={"skip_prepare_dataset": True},
    )


def _last_checkpoint(folder: Path) -> str | None:
    """Return the path of the last complete checkpoint in `folder`; None if there is none. A
    checkpoint is complete if the file with its state can be read, because that file is written
    last.
    """
    checkpoints = folder.glob("checkpoint-*")
    for checkpoint in sorted(checkpoints, key=lambda path: -int(path.name.rpartition("-")[2])):
        with suppress(OSError, msgspec.DecodeError):
            msgspec.json.decode((checkpoint / _STATE).read_bytes())
            return str(checkpoint)
    return None


def save_trained(trainer: Any, base: Path, folder: Path) -> None:
    """Write the trained model to `folder`, and remove the old content. If writing fails, there is
    no incomplete model in `folder`.

    All processes of a training must call this function; only the main process writes. `base`:
    folder of the base model.
    """
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if not trainer.is_world_process_zero():
        return
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    with replacing_folder(folder) as unfinished:
        if hasattr(model, "peft_config"):
            # Store the base model's name instead of its path on this machine
            model.peft_config["default"].base_model_name_or_path = base.resolve().name
            model.save_pretrained(
                unfinished, state_dict=_halved(weights), save_embedding_layers=False
            )
            (unfinished / "README.md").unlink()  # an empty template
        else:
            # Training changes only the weights, so all other files are copied from the base model
            model.save_pretrained(unfinished, state_dict=_halved(weights))
            for path in base.iterdir():
                if path.is_file() and ".safetensors" not in path.name:
                    shutil.copyfile(path, unfinished / path.name)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Yield the path of a temporary folder to write a model to. On exit, sync the temporary folder
    to disk, and rename it to `folder`. The old `folder` is removed on entry.
    """
    unfinished = folder.with_name(f".{folder.name}")
    for path in (unfinished, folder):
        shutil.rmtree(path, ignore_errors=True)
    yield unfinished
    for path in (*unfinished.iterdir(), unfinished):
        flush(path)
    unfinished.rename(folder)


def _halved(weights: dict[str, Any]) -> dict[str, Any]:
    """Return the weights as bf16. Tensors that share memory still share it in the result."""
    import torch

    halves = dict[int, torch.Tensor]()
    return {
        name: halves.setdefault(tensor.data_ptr(), tensor.detach().to(torch.bfloat16))
        for name, tensor in weights.items()
    }
