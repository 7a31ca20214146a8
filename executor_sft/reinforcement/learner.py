"""Training of a LoRA adapter with plain torch and PEFT: one update per batch of rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor

from executor_sft.reinforcement.objective import Sums, micro_loss, token_logprobs
from executor_sft.reinforcement.recipe import ReinforceRecipe
from executor_sft.reinforcement.sequences import TokenSequence
from executor_sft.train import load_weights, replacing_folder
from router.errors import BadConfig

_START = "start"
"""Name of the adapter's frozen copy, which keeps the weights from the start of the training."""


class Learner:
    """A base model with an adapter that is trained, and the state of its optimizer."""

    def __init__(self, base: Path, start: Path | None, recipe: ReinforceRecipe) -> None:
        """Load the base model, and the adapter in the folder `start`. Without `start`, create an
        adapter that does not change the model's outputs yet. Raises `BadConfig` if model or adapter
        cannot be loaded.
        """
        self._base = base
        self._recipe = recipe
        torch.manual_seed(recipe.seed)
        weights = load_weights(base)
        try:
            if start:
                model = peft.PeftModel.from_pretrained(weights, start, is_trainable=True)
                model.load_adapter(start, _START)
            else:
                config = peft.LoraConfig(
                    r=recipe.rank,
                    lora_alpha=recipe.alpha,
                    target_modules=recipe.target_modules,
                    task_type="CAUSAL_LM",
                )
                model = peft.get_peft_model(weights, config)
        except (ValueError, RuntimeError, OSError) as error:
            raise BadConfig(
                f"{base}: the adapter does not fit this model ({error}); name the adapter's base "
                "model, or correct target_modules in the recipe."
            ) from None
        self._has_start = start is not None
        self._model: Any = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.Adam(self._weights, recipe.learning_rate)

    def update(self, rows: Sequence[TokenSequence]) -> dict[str, float]:
        """Make one update of the adapter with all rows. Return figures about the update, by name.
        Without rows, the adapter does not change.

        Raises `BadConfig` if the gradient is not finite, or if the model's log-probabilities differ
        too much from the engine's. The adapter then stays unchanged.
        """
        self._optimizer.zero_grad()
        sums = Sums()
        entropy = 0.0
        for part in _parts(rows, self._recipe.micro_tokens):
            loss, part_sums, part_entropy = self._loss(part)
            torch.autograd.backward(loss)
            sums = sums.plus(part_sums)
            entropy += part_entropy
        tokens = max(1, sums.tokens)
        norm = float(torch.nn.utils.clip_grad_norm_(self._weights, self._recipe.gradient_clip))
        gap = sums.gap / tokens
        if not isfinite(norm + gap):
            raise BadConfig(
                "Training stopped: the gradient is infinite or not a number. Lower the recipe's "
                "learning_rate, and start again from the last adapter (folder steps of --out)."
            )
        if gap > self._recipe.max_gap:
            raise BadConfig(
                f"Training stopped: log-probabilities of engine and trainer differ by {gap:.4f} "
                f"nats a token, above the recipe's max_gap, {self._recipe.max_gap}. Serve exactly "
                "this base model, in fp32 or bf16, unquantized; or raise max_gap for a large model."
            )
        if rows:
            self._optimizer.step()
        return {
            "trained_tokens": sums.tokens,
            "clipped": sums.clipped / tokens,
            "skipped": sums.skipped / tokens,
            "logprob_gap": gap,
            "kl": sums.kl / tokens,
            "entropy": entropy / tokens,
            "gradient_norm": norm,
        }

    def _loss(self, rows: Sequence[TokenSequence]) -> tuple[Tensor, Sums, float]:
        """Return three values for a micro-batch: the loss, the `Sums`, and the sum of the entropies
        of all tokens, in nats.
        """
        device = self._weights[0].device
        ids = _padded([row.input_ids for row in rows], torch.long, device)
        lengths = torch.tensor([[len(row.input_ids)] for row in rows], device=device)
        mask = torch.arange(ids.shape[1], device=device) < lengths

        def logits() -> Tensor:
            output: Tensor = self._model(input_ids=ids, attention_mask=mask).logits
            return output[:, :-1].float()

        old, shares, weights = (
            _padded([getattr(row, name) for row in rows], torch.float32, device)[:, 1:]
            for name in ("logprobs", "shares", "weights")
        )
        start = None
        if self._recipe.objective.kl:
            with torch.no_grad(), self._at_start():
                start = token_logprobs(logits(), ids[:, 1:])
        now = logits()
        new = token_logprobs(now, ids[:, 1:])
        loss, sums = micro_loss(
            self._recipe.objective, new, old, weights, shares=shares, start=start
        )
        with torch.no_grad():
            chosen = now[shares != 0].log_softmax(-1)
            entropy = -(chosen.exp() * chosen).sum()
        return loss, sums, float(entropy)

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        """While the context is open, let the model compute with its weights from the start of the
        training.
        """
        if not self._has_start:
            with self._model.disable_adapter():
                yield
            return
        self._model.set_adapter(_START)
        try:
            yield
        finally:
            self._model.set_adapter("default")

    def save(self, folder: Path) -> None:
        """Write the adapter to `folder`, and remove the folder's old content."""
        config = self._model.peft_config["default"]
        # Store the base model's name instead of its local path, and a set in a fixed order
        config.base_model_name_or_path = self._base.resolve().name
        config.target_modules = sorted(config.target_modules)
        with replacing_folder(folder) as unfinished:
            self._model.save_pretrained(
                unfinished, selected_adapters=["default"], save_embedding_layers=False
            )
            (unfinished / "README.md").unlink()  # an empty template

    @property
    def state(self) -> bytes:
        """Serialized weights of the adapter and state of the optimizer, for `restore`."""
        buffer = BytesIO()
        torch.save((self._weights, self._optimizer.state_dict()), buffer)
        return buffer.getvalue()

    def restore(self, state: bytes) -> None:
        """Load weights and optimizer from a value of `state`."""
        weights, optimizer = torch.load(BytesIO(state))
        with torch.no_grad():
            for weight, saved in zip(self._weights, weights, strict=True):
                weight.copy_(saved)
        self._optimizer.load_state_dict(optimizer)


def _parts(rows: Sequence[TokenSequence], limit: int) -> Iterator[Sequence[TokenSequence]]:
    """Yield the rows in micro-batches of similar lengths, each with at most `limit` tokens."""
    part = list[TokenSequence]()
    for row in sorted(rows, key=lambda row: len(row.input_ids)):
        if part and (len(part) + 1) * len(row.input_ids) > limit:
            yield part
            part = []
        part.append(row)
    if part:
        yield part


def _padded(rows: Sequence[Sequence[float]], kind: torch.dtype, device: torch.device) -> Tensor:
    tensors = [torch.tensor(row, dtype=kind, device=device) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True)
