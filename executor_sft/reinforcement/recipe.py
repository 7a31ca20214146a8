"""Recipe of `rolegate sft reinforce`. With models, questions and config, the recipe determines the
result. `executor_sft/recipes/marl-mini.toml` has all keys.
"""

from typing import Annotated, Literal

from msgspec import Meta

from executor_sft.command import Count
from executor_sft.reinforcement.rewards import RewardRecipe
from executor_sft.reinforcement.weights import WeightRecipe
from router.frozen import Frozen
from router.trace import RoleName

_Positive = Annotated[float, Meta(gt=0)]
Trained = Literal["delegator", "executor"]
"""A role that can be trained."""
ROLES: dict[Trained, RoleName] = {"delegator": "delegation", "executor": "execution"}
"""Name of each trained role in configs and runs."""


class ObjectiveRecipe(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Limits of the training objective. A token's ratio is the probability of the token now,
    divided by the probability with which it was sampled. The defaults are from the paper
    WideSeek-R1.
    """

    clip_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """A ratio below 1 − `clip_low` is clipped to 1 − `clip_low`."""
    clip_high: _Positive = 0.28
    """A ratio above 1 + `clip_high` is clipped to 1 + `clip_high`."""
    dual_clip: Annotated[float, Meta(gt=1)] = 10.0
    """If the advantage is negative, a ratio above this value is clipped to this value."""
    max_log_ratio: _Positive = 20.0
    """Max absolute value of a ratio's logarithm."""
    max_mean_ratio: _Positive = 5.0
    """A micro-batch whose mean ratio is above this value is skipped."""
    kl: Annotated[float, Meta(ge=0)] = 0.0
    """Coefficient of the KL divergence from the model at the start of the training; 0 to leave the
    divergence out.
    """


class ReinforceRecipe(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Settings of a training by reinforcement learning."""

    questions: Count = 8
    """Number of questions per training step."""
    group: Annotated[int, Meta(ge=2)] = 8
    """Number of runs per question. The runs of a question form a group."""
    temperature: float = 1.0
    """Sampling temperature of the trained roles."""
    rank: Count = 32
    """Rank of a new adapter. An adapter from which the training starts keeps its own rank."""
    alpha: _Positive = 64.0
    """Scaling factor of a new adapter."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Layers that get a new adapter: all linear layers, or each layer whose name ends in one of
    these texts.
    """
    learning_rate: _Positive
    gradient_clip: _Positive = 1.0
    """Max norm of a step's gradient."""
    micro_tokens: Count = 8192
    """Max tokens of a forward pass, with padding. A longer sequence gets a separate pass."""
    max_gap: _Positive = 0.02
    """Max difference, in nats, between the log-probabilities of a token in engine and trainer. It
    is averaged over all tokens of a step; the training stops if the mean is larger.
    """
    seed: int = 1
    reward: RewardRecipe = RewardRecipe()
    weights: WeightRecipe = WeightRecipe()
    objective: ObjectiveRecipe = ObjectiveRecipe()
