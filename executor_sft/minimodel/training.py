"""Train a mini model from scratch on one or two CPU cores; resumable."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from executor_sft.minimodel.stream import Batch
from serving.engines.engine import computes_in_bf16
from serving.files import replacing
from serving.terminal import progress_bar


@dataclass(frozen=True, slots=True)
class Schedule:
    """Length and rate of a training; a step is one batch of 4,096 tokens."""

    steps: int
    peak_rate: float = 3e-3
    context_weight: tuple[float, float] = (0.5, 0.1)
    """Loss weight of tokens that the model does not write, first and last: predicting them
    teaches it to copy.
    """
    warm_up: int = 100
    checkpoint_every: int = 100

    def rate(self, step: int) -> float:
        """Linear warm-up, constant, then linear decay over the last half."""
        decay = min(1.0, 2 * (1 - step / self.steps))
        return self.peak_rate * min(1.0, (step + 1) / self.warm_up) * max(decay, 0.01)


def train(
    model: Qwen3ForCausalLM,
    source: Iterator[Batch],
    schedule: Schedule,
    folder: Path,
    *,
    compiled: bool = True,
) -> None:
    """Train `model` in place. A killed run goes on from `folder/checkpoint.pt`, with the batches
    not yet seen.

    `compiled` costs a minute at the start and makes each step more than twice as fast. Computes in
    bf16 where the CPU can, which is twice as fast as fp32 there, and several times slower
    elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optimizer = torch.optim.AdamW(_groups(model), lr=schedule.peak_rate, betas=(0.9, 0.95))
    step = _resume(model, optimizer, folder / "checkpoint.pt")
    # A graph for each length of rows
    losses: Any = torch.compile(_loss, dynamic=False) if compiled else _loss
    with progress_bar() as bar, (folder / "loss.jsonl").open("a") as log:
        task = bar.add_task("training", total=schedule.steps, completed=step)
        for batch in itertools.islice(source, step, schedule.steps):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            share = step / schedule.steps
            (first, last) = schedule.context_weight
            weight = first * (1 - share) + last * share
            with torch.autocast("cpu", torch.bfloat16, enabled=computes_in_bf16()):
                weights = _weights(batch, weight)
                attention = batch.attention()
                loss, own = losses(
                    model,
                    batch.tokens,
                    batch.positions,
                    attention,
                    weights=weights,
                    written=batch.written,
                )
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            bar.update(task, completed=step)
            if step % 20 == 0:
                figures = {
                    "step": step,
                    "loss": round(loss.item(), 4),
                    "own_loss": round(own.item(), 4),
                }
                log.write(json.dumps(figures) + "\n")
                log.flush()
            if step % schedule.checkpoint_every == 0:
                _checkpoint(model, optimizer, step, folder / "checkpoint.pt")
    _checkpoint(model, optimizer, step, folder / "checkpoint.pt")


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write bf16 safetensors and the tokenizer, as transformers and vLLM load them."""
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _loss(
    model: Qwen3ForCausalLM,
    tokens: Tensor,
    positions: Tensor,
    attention: Tensor,
    *,
    weights: Tensor,
    written: Tensor,
) -> tuple[Tensor, Tensor]:
    """The weighted loss over all tokens, and the mean loss over the model's own."""
    logits = model(
        input_ids=tokens, position_ids=positions, attention_mask=attention, use_cache=False
    ).logits
    each = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    )
    own = written[:, 1:].flatten()
    return (each * weights).sum() / weights.sum(), (each * own).sum() / own.sum()


def _weights(batch: Batch, context_weight: float) -> Tensor:
    """(rows * (row_tokens - 1)) float32: the weight of predicting each token from those before
    it.
    """
    inside = (batch.positions[:, 1:] > 0).float()
    return (inside * torch.where(batch.written[:, 1:], 1.0, context_weight)).flatten()


def _groups(model: Qwen3ForCausalLM) -> list[dict[str, Any]]:
    """Weight decay for matrices only."""
    groups: dict[float, list[torch.nn.Parameter]] = {0.05: [], 0.0: []}
    for parameter in model.parameters():
        groups[0.05 if parameter.ndim > 1 else 0.0].append(parameter)
    return [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]


def _resume(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Load the checkpoint, if there is one; the number of steps that were done."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _checkpoint(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, step: int, path: Path
) -> None:
    """Write a checkpoint whole or not at all."""
    with replacing(path) as unfinished:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            unfinished,
        )
