"""The update of a real adapter: its gradient, and what it refuses."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from executor_sft.questions import Question
from executor_sft.reinforcement.learner import Learner
from executor_sft.reinforcement.recipe import ReinforceRecipe
from executor_sft.reinforcement.sequences import TokenSequence, batch_of
from executor_sft.reinforcement.weigh import Options, run
from executor_sft.rollout import Group
from router.errors import BadConfig
from tests.executor_sft.reinforcement.test_sequences import QUESTION, answered, output, worked
from tests.executor_sft.reinforcement.tiny_engine import write_base
from tests.executor_sft.traces import write_lines

RECIPE = """
rank = 4
alpha = 8.0
learning_rate = 0.01
max_gap = 9.0
gradient_clip = 1e6
micro_tokens = 12
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base")


@pytest.fixture
def recipe() -> ReinforceRecipe:
    return msgspec.toml.decode(RECIPE.encode(), type=ReinforceRecipe)


def groups() -> list[Group]:
    """Return groups with agents of several turns, in part with prompts that do not continue."""
    turns = output(5, 6), output(7, prompt=(1, 5, 6, 3)), output(8, 9, prompt=(1, 2))
    right = answered(0, "Mann", turns, worked(output(4, 5)), worked(output(6)))
    wrong = answered(1, "Nobody", [output(9)], worked(*turns))
    other = Question("q2", "Who else?", ("Nobody",))
    renamed = [msgspec.structs.replace(one, id=f"q2/{one.id[-1]}") for one in (right, wrong)]
    return [Group(QUESTION, (right, wrong)), Group(other, tuple(renamed))]


def plain_torch(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradient that a trainer of few lines gets from the rows of `sft weigh`."""
    total = torch.zeros(())
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        ids = torch.tensor([row["input_ids"]])
        old, weights = (torch.tensor([row[name]])[:, 1:] for name in ("logprobs", "weights"))
        logits = model(input_ids=ids).logits[:, :-1]
        new = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (new - old).exp()
        terms = torch.minimum(ratio * weights, ratio.clamp(0.8, 1.28) * weights)
        terms = torch.where(weights < 0, torch.maximum(terms, 10 * weights), terms)
        total = total - terms.sum()
    torch.autograd.backward(total)
    return {
        name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None
    }


def test_rows_give_any_trainer_the_gradient_of_the_own_update(
    base: Path, recipe: ReinforceRecipe, tmp_path: Path
) -> None:
    """Twenty lines of plain torch, a row at a time, against the update in padded micro-batches."""
    (tmp_path / "own.toml").write_text(RECIPE, "utf-8")
    write_lines(tmp_path / "rollouts.jsonl", groups())
    path = tmp_path / "sequences.jsonl"
    assert run(Options(groups=tmp_path, out=path, recipe=str(tmp_path / "own.toml"))) == 0
    start = Learner(base, None, recipe)
    start.update(batch_of(groups(), recipe, ("delegation",), 0).rows)
    start.save(tmp_path / "start")

    learner = Learner(base, tmp_path / "start", recipe)
    learner.update(batch_of(groups(), recipe, ("delegation", "execution"), 0).rows)
    own = {name: weight.grad for name, weight in learner._model.named_parameters()}
    plain = plain_torch(path, Learner(base, tmp_path / "start", recipe)._model)
    assert len(plain) == 14
    assert max(float(gradient.abs().max()) for gradient in plain.values()) > 1e-4
    for name, gradient in plain.items():
        assert own[name] is not None
        assert torch.allclose(own[name], gradient, rtol=1e-4, atol=1e-7)


def row(weight: float, logprob: float = -2.5) -> TokenSequence:
    tokens = (1, 2, 5), (0.0, 0.0, logprob), (0.0, 0.0, 1.0), (0.0, 0.0, weight)
    return TokenSequence("q", "q/0", "execution-0", "execution", 1.0, 1.0, *tokens)


def test_a_gradient_that_is_no_number_changes_nothing(base: Path, recipe: ReinforceRecipe) -> None:
    learner = Learner(base, None, recipe)
    before = [weight.clone() for weight in learner._weights]
    with pytest.raises(BadConfig, match=r"not a number. Lower the recipe"):
        learner.update([row(1.0), row(float("nan"))])
    assert all(torch.equal(*pair) for pair in zip(before, learner._weights, strict=True))


def test_a_state_continues_exactly(base: Path, recipe: ReinforceRecipe) -> None:
    """Also the moments of the optimizer."""
    whole = Learner(base, None, recipe)
    whole.update([row(1.0)])
    resumed = Learner(base, None, recipe)
    resumed.restore(whole.state)
    for learner in (whole, resumed):
        learner.update([row(-1.0, -3.0)])
    assert all(torch.equal(*pair) for pair in zip(whole._weights, resumed._weights, strict=True))


def test_no_rows_change_nothing(base: Path, recipe: ReinforceRecipe) -> None:
    learner = Learner(base, None, recipe)
    before = [weight.clone() for weight in learner._weights]
    assert learner.update([])["trained_tokens"] == 0
    assert all(torch.equal(*pair) for pair in zip(before, learner._weights, strict=True))


def test_an_adapter_of_another_model_is_refused(
    base: Path, recipe: ReinforceRecipe, tmp_path: Path
) -> None:
    Learner(write_base(tmp_path / "other", 32), None, recipe).save(tmp_path / "start")
    with pytest.raises(BadConfig, match="the adapter does not fit this model"):
        Learner(base, tmp_path / "start", recipe)
