"""Train a mini model on one or two CPU cores. An interrupted training can be resumed."""

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
    """Length, learning rate and loss weights of a training. A step is one batch of 4,096 tokens."""

    steps: int
    peak_rate: float = 3e-3
    context_weight: tuple[float, float] = (0.5, 0.1)
    """Loss weights of tokens that the model does not write itself, at the first and at the last
    step. Predicting such tokens teaches the model to copy.
    """
    warm_up: int = 100
    """Number of steps in which the learning rate rises to its peak."""
    checkpoint_every: int = 100
    """Number of steps between checkpoints."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step. The rate rises linearly in the warm-up, stays
        constant, and decays linearly over the second half of the training.
        """
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
    """Train `model` in place. After an interruption, the same call resumes from the checkpoint in
    `folder`, and skips the batches of `source` that were already used.

    `compiled`: compile the loss. This takes a minute at the start, and makes each step more than
    twice as fast. The model computes in bf16 if the CPU has instructions for bf16, with which bf16
    is twice as fast as fp32. Without them, bf16 would be several times slower.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.pt"
    optimizer = torch.optim.AdamW(_groups(model), lr=schedule.peak_rate, betas=(0.9, 0.95))
    step = _resume(model, optimizer, checkpoint)
    # torch compiles one graph per row length
    losses: Any = torch.compile(_loss, dynamic=False) if compiled else _loss
    with progress_bar() as bar, (folder / "loss.jsonl").open("a") as log:
        task = bar.add_task("training", total=schedule.steps, completed=step)
        for batch in itertools.islice(source, step, schedule.steps):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            share = step / schedule.steps
            first, last = schedule.context_weight
            weights = _weights(batch, first * (1 - share) + last * share)
            inputs = batch.tokens, batch.positions, batch.attention()
            with torch.autocast("cpu", torch.bfloat16, enabled=computes_in_bf16()):
                loss, own = losses(model, *inputs, weights=weights, written=batch.written)
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
                _checkpoint(model, optimizer, step, checkpoint)
    _checkpoint(model, optimizer, step, checkpoint)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model, in bf16, and its tokenizer to `folder`, in the format that transformers and
    vLLM load.
    """
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
    """Return the weighted mean loss over all tokens, and the mean loss over the tokens that the
    model writes itself.
    """
    logits = model(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=attention,
        use_cache=False,
    ).logits
    token_losses = functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none"
    )
    own = written[:, 1:].flatten()
    weighted = (token_losses * weights).sum() / weights.sum()
    return weighted, (token_losses * own).sum() / own.sum()


def _weights(batch: Batch, context_weight: float) -> Tensor:
    """Return the loss weight of each predicted token, as a float32 tensor of the shape (rows *
    (row_tokens - 1)). Tokens that begin a conversation, and padding, have weight 0.
    """
    inside = (batch.positions[:, 1:] > 0).float()
    return (inside * torch.where(batch.written[:, 1:], 1.0, context_weight)).flatten()


def _groups(model: Qwen3ForCausalLM) -> list[dict[str, Any]]:
    """Return the model's parameters in groups for the optimizer. Only matrices get weight decay."""
    groups: dict[float, list[torch.nn.Parameter]] = {0.05: [], 0.0: []}
    for parameter in model.parameters():
        groups[0.05 if parameter.ndim > 1 else 0.0].append(parameter)
    return [{"params": parameters, "weight_decay": decay} for decay, parameters in groups.items()]


def _resume(model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, path: Path) -> int:
    """Load the checkpoint in the file `path` into model and optimizer, and return the number of
    finished steps; 0 if there is no checkpoint.
    """
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def _checkpoint(
    model: Qwen3ForCausalLM,
    optimizer: torch.optim.Optimizer,
    step: int,
    path: Path,
) -> None:
    """Write a checkpoint to the file `path`, which is replaced atomically."""
    with replacing(path) as unfinished:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            unfinished,
        )
