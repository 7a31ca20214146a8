"""The loss of multi-agent GRPO in torch: minus the sum, over all tokens, of a clipped
policy-gradient term that contains the token's weight (WideSeek-R1, Eq. 1 and 2).

The loss needs only the log-probabilities of the tokens, so it works for any model.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from executor_sft.reinforcement.recipe import ObjectiveRecipe


class Sums(NamedTuple):
    """Sums over the tokens of micro-batches. A step's figures are computed from these sums."""

    tokens: float = 0
    clipped: float = 0
    """Number of tokens whose term has no gradient, because the ratio was clipped."""
    skipped: float = 0
    """Number of tokens in micro-batches that were skipped, because their mean ratio was too high.
    """
    gap: float = 0.0
    """Sum of the absolute differences between new and old log-probabilities."""
    kl: float = 0.0
    """Sum of the KL divergences from the model at the start of the training (k3 estimator)."""

    def plus(self, other: "Sums") -> "Sums":
        """Return the sums of `self` and `other`."""
        return Sums(*(own + others for own, others in zip(self, other, strict=True)))


def micro_loss(
    recipe: ObjectiveRecipe,
    new: Tensor,
    old: Tensor,
    weights: Tensor,
    *,
    shares: Tensor | None = None,
    start: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Return the loss of a micro-batch, and sums over its tokens. The loss of a batch is the sum of
    the losses of all its micro-batches, however the batch is divided.

    All tensors have the same shape, such as (tokens) or (rows, tokens). `new`, `old`:
    log-probabilities of the tokens now and when they were sampled; only `new` has a gradient.
    `weights`: see `token_weights`; 0 for padding. `shares`: see `token_shares`. `start`:
    log-probabilities in the model at the start of the training. If `recipe.kl` is not 0, `shares`
    and `start` are needed. The sums include only tokens with a share other than 0; without
    `shares`, tokens with a weight other than 0.
    """
    limit = recipe.max_log_ratio
    difference = new - old
    ratio = difference.clamp(-limit, limit).exp()
    clipped = ratio.clamp(1 - recipe.clip_low, 1 + recipe.clip_high)
    terms = torch.minimum(ratio * weights, clipped * weights)
    terms = torch.where(weights < 0, torch.maximum(terms, recipe.dual_clip * weights), terms)
    loss = -terms.sum()

    counted = (weights if shares is None else shares) != 0
    count = int(counted.sum())
    divergences = torch.zeros_like(new)
    if recipe.kl:
        assert shares is not None
        assert start is not None
        lead = (start - new).clamp(-limit, limit)
        divergences = lead.exp() - lead - 1
        loss = loss + recipe.kl * (divergences * shares).sum()

    with torch.no_grad():
        limited = ((weights > 0) & (ratio > 1 + recipe.clip_high)) | (
            (weights < 0) & ((ratio < 1 - recipe.clip_low) | (ratio > recipe.dual_clip))
        )
        sums = Sums(
            count,
            int(limited.sum()),
            0,
            float(difference[counted].abs().sum()),
            float(divergences[counted].sum()),
        )
        is_far = count and float(ratio[counted].mean()) > recipe.max_mean_ratio
    if is_far:
        loss = new.sum() * 0.0
        sums = sums._replace(skipped=count)
    return loss, sums


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probability of each of the `tokens` (any shape, integers).

    `logits`: logits at the position before each token (the same shape, then the vocabulary).
    """
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - logits.logsumexp(-1)
