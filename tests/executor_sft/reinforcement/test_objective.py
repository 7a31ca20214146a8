"""The objective, against a literal implementation of Eq. 1 and against TRL's code."""

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from executor_sft.reinforcement.objective import (
    Sums,
    micro_loss,
    token_logprobs,
)
from executor_sft.reinforcement.recipe import ObjectiveRecipe
from executor_sft.reinforcement.weights import (
    AgentTurns,
    WeightRecipe,
    advantages,
    token_shares,
    token_weights,
)

VOCABULARY = 11
EQUATION = WeightRecipe()
LIMITS = ObjectiveRecipe()


class Written(NamedTuple):
    """A run: its reward, and the token ids of each turn of each agent."""

    reward: float
    agents: list[list[list[int]]]


token = st.integers(1, VOCABULARY - 1)
turn = st.lists(token, min_size=1, max_size=6)
agent = st.lists(turn, min_size=1, max_size=3)
run = st.builds(
    Written, st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.lists(agent, min_size=1, max_size=4)
)
groups = st.lists(st.lists(run, min_size=2, max_size=4), min_size=1, max_size=3)


def model(seed: int) -> tuple[Tensor, Tensor]:
    """Return the logits of the next token after each token, now and when it was sampled."""
    random = torch.Generator().manual_seed(seed)
    old = torch.randn(VOCABULARY, VOCABULARY, generator=random, dtype=torch.float64)
    moved = 0.25 * torch.randn(VOCABULARY, VOCABULARY, generator=random, dtype=torch.float64)
    return (old + moved).requires_grad_(), old


def literal(batch: list[list[Written]], new: Tensor, old: Tensor) -> Tensor:
    """Return minus Eq. 1, as the paper writes it: sums and means of single tokens."""
    every_group = []
    for group in batch:
        mean = sum(one.reward for one in group) / len(group)
        variance = sum((one.reward - mean) ** 2 for one in group) / (len(group) - 1)
        of_runs = []
        for one in group:
            advantage = (one.reward - mean) / (math.sqrt(variance) + 1e-6)
            of_agents = []
            for turns in one.agents:
                total = torch.zeros((), dtype=torch.float64)
                for ids in turns:
                    for before, after in pairwise([0, *ids]):
                        now = new[before].log_softmax(-1)[after]
                        was = old[before].log_softmax(-1)[after]
                        ratio = (now - was).exp()
                        clipped = ratio.clamp(1 - 0.2, 1 + 0.28)
                        term = torch.minimum(ratio * advantage, clipped * advantage)
                        if advantage < 0:
                            term = torch.maximum(term, torch.tensor(10.0 * advantage))
                        total = total + term
                of_agents.append(total / sum(map(len, turns)))
            of_runs.append(sum(of_agents) / len(of_agents))
        every_group.append(sum(of_runs) / len(of_runs))
    return -torch.stack([torch.as_tensor(value) for value in every_group]).mean()


def flat(batch: list[list[Written]], weighted: WeightRecipe) -> tuple[list[list[int]], Tensor]:
    """Return all turns of a batch, and the weight of a token of each."""
    of_runs = [value for group in batch for value in advantages([one.reward for one in group])]
    runs = [
        [AgentTurns("execution", tuple(map(len, turns))) for turns in one.agents]
        for group in batch
        for one in group
    ]
    weights = token_weights(token_shares(runs, weighted), of_runs)
    turns = [ids for group in batch for one in group for turns in one.agents for ids in turns]
    every = [weight for one in weights for own in one for weight in own]
    return turns, torch.tensor(every, dtype=torch.float64)


def losses(
    batch: list[list[Written]], new: Tensor, old: Tensor, size: int, weighted: WeightRecipe
) -> tuple[Tensor, Sums]:
    """Return the loss of a batch in micro-batches of so many turns, padded."""
    turns, weights = flat(batch, weighted)
    total = torch.zeros((), dtype=torch.float64)
    sums = Sums()
    for start in range(0, len(turns), size):
        part = turns[start : start + size]
        longest = max(map(len, part))
        ids = torch.tensor([[0, *own, *[0] * (longest - len(own))] for own in part])
        mask = torch.arange(longest) < torch.tensor([[len(own)] for own in part])
        now, was = (token_logprobs(logits[ids[:, :-1]], ids[:, 1:]) for logits in (new, old))
        of_tokens = weights[start : start + size, None] * mask
        loss, own_sums = micro_loss(LIMITS, now, was, of_tokens)
        total = total + loss
        sums = sums.plus(own_sums)
    return total, sums


@settings(deadline=None, max_examples=60)
@given(groups, st.integers(0, 1000), st.integers(1, 7))
def test_loss_and_gradient_are_those_of_equation_1(
    batch: list[list[Written]], seed: int, size: int
) -> None:
    """Any number of groups of equal size, runs, agents, turns and tokens, in any micro-batches."""
    size_of_groups = min(map(len, batch))
    batch = [group[:size_of_groups] for group in batch]
    new, old = model(seed)
    expected = literal(batch, new, old)
    (gradient,) = torch.autograd.grad(expected, new, allow_unused=True, materialize_grads=True)
    loss, sums = losses(batch, new, old, size, EQUATION)
    (own,) = torch.autograd.grad(loss, new, allow_unused=True, materialize_grads=True)
    assert not sums.skipped
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(own, gradient, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    groups,
    st.integers(0, 1000),
    st.sampled_from(["run", "none", "role"]),
    st.sampled_from(["agent", "turn", "all"]),
)
def test_the_gradient_does_not_depend_on_micro_batches(
    batch: list[list[Written]], seed: int, agents: str, tokens: str
) -> None:
    """All turns together give the gradient that they give one by one."""
    weighted = WeightRecipe(agents=agents, tokens=tokens)  # type: ignore[arg-type]
    new, old = model(seed)
    turns, _ = flat(batch, weighted)
    gradients = [
        torch.autograd.grad(losses(batch, new, old, size, weighted)[0], new)[0]
        for size in (1, 3, len(turns))
    ]
    for other in gradients[1:]:
        assert torch.allclose(gradients[0], other, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 1.0]), turn), min_size=2, max_size=8),
    st.integers(0, 1000),
)
def test_with_one_agent_and_one_turn_it_is_the_loss_of_trl(
    answers: list[tuple[float, list[int]]], seed: int
) -> None:
    """TRL's own code computes the loss of the type `grpo`."""
    from trl import GRPOTrainer

    new, old = model(seed)
    batch = [[Written(reward, [[ids]]) for reward, ids in answers]]
    longest = max(len(ids) for _, ids in answers)
    ids = torch.tensor([[0, *own, *[0] * (longest - len(own))] for _, own in answers])
    mask = (torch.arange(longest) < torch.tensor([[len(own)] for _, own in answers])).long()
    now, was = (token_logprobs(logits[ids[:, :-1]], ids[:, 1:]) for logits in (new, old))
    of_runs = torch.tensor(advantages([reward for reward, _ in answers]), dtype=torch.float64)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (now, torch.zeros_like(now), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="token",
        beta=0.0,
        loss_type="grpo",
        epsilon_low=0.2,
        epsilon_high=0.28,
        args=SimpleNamespace(delta=None),
        use_vllm=False,
        model=SimpleNamespace(training=False),
        _entropy_bonus_enabled=False,
        _metrics={"eval": _Metrics()},
        accelerator=SimpleNamespace(gather=lambda value: value, reduce=lambda value, **_: value),
    )
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(len(answers), 1),
        "completion_ids": ids[:, 1:],
        "completion_mask": mask,
        "advantages": of_runs,
        "old_per_token_logps": was,
    }
    expected = GRPOTrainer._compute_loss(trainer, None, inputs)
    (gradient,) = torch.autograd.grad(expected, new, retain_graph=True)
    loss, _ = losses(batch, new, old, 3, EQUATION)
    (own,) = torch.autograd.grad(loss, new)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(own, gradient, rtol=0, atol=1e-6)


class _Metrics(dict[str, list[float]]):
    def __missing__(self, key: str) -> list[float]:
        return self.setdefault(key, [])


def ratios(*values: float) -> Tensor:
    return torch.tensor([math.log(value) for value in values], dtype=torch.float64)


def test_limited_ratios_have_no_gradient() -> None:
    """Above 1.28 with a positive weight; below 0.8 and above 10 with a negative one."""
    new = ratios(1.27, 1.29, 0.81, 0.79, 3.0, 11.0).requires_grad_()
    weights = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    loss, sums = micro_loss(LIMITS, new, torch.zeros(6), weights)
    (gradient,) = torch.autograd.grad(loss, new)
    assert (gradient != 0).tolist() == [True, False, True, False, True, False]
    assert (sums.tokens, sums.clipped, sums.skipped) == (6, 3, 0)


def test_a_micro_batch_far_from_the_samples_contributes_nothing() -> None:
    """Its mean ratio is above 5. Even a difference of a thousand nats gives finite numbers."""
    new = torch.tensor([1000.0, 0.0], requires_grad=True)
    loss, sums = micro_loss(LIMITS, new, torch.zeros(2), torch.tensor([1.0, -1.0]))
    (gradient,) = torch.autograd.grad(loss, new)
    assert (loss.item(), gradient.tolist(), sums.skipped) == (0.0, [0.0, 0.0], 2)


def test_divergence_from_the_start_counts_tokens_without_advantage() -> None:
    """It is estimated by k3, and averaged as the objective is."""
    recipe = ObjectiveRecipe(kl=0.5)
    new = ratios(0.5, 0.25).requires_grad_()
    shares = torch.tensor([0.75, 0.25], dtype=torch.float64)
    start = ratios(0.5, 0.5)
    loss, sums = micro_loss(recipe, new, new.detach(), shares * 0, shares=shares, start=start)
    k3 = 2 - math.log(2) - 1
    assert loss.item() == pytest.approx(0.5 * 0.25 * k3)
    assert sums.tokens == 2
    assert sums.kl == pytest.approx(k3)
