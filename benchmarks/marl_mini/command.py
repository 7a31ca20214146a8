"""Test the multi-agent reinforcement learning of `rolegate sft reinforce` (its weights and its
loss) in miniature. A lead agent and its readers share a model of about 60,000 parameters.

A world has eight pages, each with a topic and some items. The lead sees the topics of the pages and
the wanted topic, and dispatches readers to pages, in two turns. Each reader sees its page, and
reports items. A run's reward is the F1 of all reported items against the items of the wanted topic.
The start model was trained on examples with many mistakes, so that it explores.

With the same seed, all variants train from the same start model, with the same number of runs. Two
variants imitate the best of eight runs instead of learning by reinforcement.
"""

import time
from collections.abc import Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from benchmarks import harness
from benchmarks.marl_mini.world import Run, Turn, World, careless, pages_in
from executor_sft.command import Count
from executor_sft.reinforcement.weights import (
    AgentTurns,
    WeightRecipe,
    advantages,
    token_shares,
    token_weights,
)
from router.errors import BadRequest
from router.frozen import Frozen
from serving.dependencies import need
from serving.files import save_picture
from serving.terminal import progress_bar

if TYPE_CHECKING:
    from benchmarks.marl_mini.model import TinyModel

_LEAD_TURNS = 2
"""Number of turns of the lead in a run."""
_WORLDS = 8
_GROUP = 8
"""`_WORLDS`: number of worlds per training step. `_GROUP`: number of runs on each world."""
_TAUGHT = 300
"""Number of updates that train the start model."""
_TURNS = 64
"""Number of turns in an update by imitation."""
_EPOCHS = 2
"""Number of passes over the best runs of a round when they are imitated."""
_UNSEEN = 200
"""Number of worlds on which a model is evaluated."""


class Variant(Frozen):
    """One way to train the model."""

    weights: WeightRecipe = WeightRecipe()
    roles: tuple[str, ...] = ("delegation", "execution")
    """The roles that are trained."""
    cost: float = 0.0
    """Subtracted from a run's reward for each reader."""
    rounds: int = 0
    """Number of rounds of the training. At the end of a round, the best run of each group is
    imitated. 0 to learn by reinforcement instead.
    """


VARIANTS = {
    "Eq. 1": Variant(),
    "agents: none": Variant(WeightRecipe(agents="none")),
    "agents: role": Variant(WeightRecipe(agents="role")),
    "tokens: turn": Variant(WeightRecipe(tokens="turn")),
    "tokens: all": Variant(WeightRecipe(tokens="all")),
    "cost 0.01": Variant(cost=0.01),
    "lead only": Variant(roles=("delegation",)),
    "readers only": Variant(roles=("execution",)),
    "best of 8, one round": Variant(rounds=1),
    "best of 8, four rounds": Variant(rounds=4),
}


class Options(harness.Options):
    """Options of the benchmark."""

    seeds: Count = 5
    """number of seeds; each variant is trained once with each seed"""
    steps: Count = 80
    """number of training steps for each variant and seed; a step has 64 runs"""
    rate: Annotated[float, Meta(gt=0)] = 1e-3
    """learning rate"""
    only: tuple[str, ...] = ()
    """variants of the training method to compare, such as "Eq. 1". To see all names, give an
    unknown one (default: all)
    """
    picture: Path | None = None
    """write a picture of F1 and number of readers over the steps to this PNG file"""


class Scores(Frozen):
    """Figures of a model on unseen worlds. For `greedy_f1`, the runs are decoded greedily; for all
    other figures, they are sampled at temperature 1.
    """

    f1: float
    greedy_f1: float
    readers: float
    """Mean number of readers per run."""
    useful: float
    """Share of useful readers: the first reader on each page of the wanted topic."""


class VariantScores(Scores):
    """Mean figures of a variant over all seeds, with the lowest and the highest F1."""

    lowest_f1: float
    highest_f1: float


class Figures(Frozen):
    """Figures of the start model, and of all variants."""

    parameters: int
    runs: int
    """Number of runs per training."""
    cpu_s: float
    """CPU time of the whole benchmark, in seconds."""
    scores: dict[str, VariantScores]


class Point(Frozen):
    """Mean figures of all runs of one training step."""

    f1: float
    readers: float


Curve = list[Point]


def measure(options: Options) -> Figures:
    """Train all variants with all seeds, and evaluate them. Raises `BadRequest` for an unknown
    variant.
    """
    need("sft", "torch")
    if unknown := set(options.only) - VARIANTS.keys():
        raise BadRequest(
            f"--only {min(unknown)}: unknown variant; the variants are: {', '.join(VARIANTS)}."
        )
    import torch

    from benchmarks.marl_mini.model import TinyModel

    torch.set_num_threads(1)  # more threads make so small a model slower
    chosen = options.only or tuple(VARIANTS)
    scores = dict[str, list[Scores]]()
    curves = dict[str, list[Curve]]()
    began = time.process_time()
    with progress_bar() as bar:
        task = bar.add_task("training", total=options.seeds * len(chosen))
        for seed in range(options.seeds):
            start = TinyModel(options.rate, seed)
            lessons = careless(Random(seed))
            for _ in range(_TAUGHT):
                start.imitate([*islice(lessons, _TURNS)])
            scores.setdefault("start", []).append(evaluated(start, seed))
            for name in chosen:
                model = TinyModel(options.rate, seed)
                model.load_state_dict(start.state_dict())
                curve = trained(model, VARIANTS[name], options.steps, Random(1000 + seed))
                curves.setdefault(name, []).append(curve)
                scores.setdefault(name, []).append(evaluated(model, seed))
                bar.advance(task)
    if options.picture:
        draw(curves, options.picture)
    return Figures(
        start.size,
        options.steps * _WORLDS * _GROUP,
        time.process_time() - began,
        {name: _mean(of_seeds) for name, of_seeds in scores.items()},
    )


def _mean(of_seeds: Sequence[Scores]) -> VariantScores:
    means = {
        name: fmean(getattr(score, name) for score in of_seeds) for name in Scores.__struct_fields__
    }
    f1 = [score.f1 for score in of_seeds]
    return VariantScores(**means, lowest_f1=min(f1), highest_f1=max(f1))


def trained(model: "TinyModel", variant: Variant, steps: int, rng: Random) -> Curve:
    """Train a model in place, and return its curve, with a point for each step."""
    curve: Curve = []
    best = list[Run]()
    for step in range(steps):
        worlds = list[World]()
        for _ in range(_WORLDS):
            worlds += [World.made(rng)] * _GROUP
        runs = rolled_out(model, worlds, rng)
        curve.append(Point(fmean(run.f1 for run in runs), fmean(len(run.readers) for run in runs)))
        if not variant.rounds:
            reinforce(model, variant, runs)
            continue
        best += best_runs(runs)
        ends = (step + 1) * variant.rounds // steps > step * variant.rounds // steps
        if ends:  # this step ends a round
            imitate(model, best, rng)
            best = []
    return curve


def rolled_out(
    model: "TinyModel", worlds: Sequence[World], rng: Random, *, greedy: bool = False
) -> list[Run]:
    """Let the model make one run on each world, and return the runs. In each turn, the agents of
    all runs write in one batch.
    """
    runs = [Run(world, [], []) for world in worlds]
    write = partial(model.write, rng=rng, greedy=greedy)
    for _ in range(_LEAD_TURNS):
        prompts = [run.world.lead_prompt(run.dispatched) for run in runs]
        readings = list[tuple[Run, int]]()
        for run, turn in zip(runs, write("delegation", prompts), strict=True):
            run.lead.append(turn)
            readings += [(run, page) for page in pages_in(turn)]
        prompts = [run.world.reader_prompt(page) for run, page in readings]
        for (run, page), turn in zip(readings, write("execution", prompts), strict=True):
            run.readers.append((page, turn))
    return runs


def reinforce(model: "TinyModel", variant: Variant, runs: Sequence[Run]) -> None:
    """Make one update of the model from the runs of a step. The runs must be ordered by group."""
    run_advantages = list[float]()
    for start in range(0, len(runs), _GROUP):
        rewards = [run.f1 - variant.cost * len(run.readers) for run in runs[start : start + _GROUP]]
        run_advantages += advantages(rewards)
    agents = [[agent for agent in run.agents if agent[0].role in variant.roles] for run in runs]
    lengths = [[_lengths(agent) for agent in run] for run in agents]
    weights = token_weights(token_shares(lengths, variant.weights), run_advantages)
    turns = list(chain.from_iterable(chain.from_iterable(agents)))
    model.update(turns, list(chain.from_iterable(chain.from_iterable(weights))))


def _lengths(agent: Sequence[Turn]) -> AgentTurns:
    return AgentTurns(agent[0].role, tuple(len(turn.tokens) for turn in agent))


def best_runs(runs: Sequence[Run]) -> list[Run]:
    """Return the best run of each group, except groups whose runs are all equally good."""
    groups = [runs[start : start + _GROUP] for start in range(0, len(runs), _GROUP)]
    best = [max(group, key=lambda run: (run.f1, -len(run.readers))) for group in groups]
    worst = [min(run.f1 for run in group) for group in groups]
    return [run for run, low in zip(best, worst, strict=True) if run.f1 > low]


def imitate(model: "TinyModel", runs: Sequence[Run], rng: Random) -> None:
    """Train the model to imitate the turns of runs, `_EPOCHS` times each."""
    turns = list(chain.from_iterable(chain.from_iterable(run.agents for run in runs)))
    for _ in range(_EPOCHS):
        rng.shuffle(turns)
        for start in range(0, len(turns), _TURNS):
            model.imitate(turns[start : start + _TURNS])


def evaluated(model: "TinyModel", seed: int) -> Scores:
    """Return the figures of a model on unseen worlds."""
    rng = Random(10_000 + seed)
    worlds = [World.made(rng) for _ in range(_UNSEEN)]
    runs = rolled_out(model, worlds, rng)
    greedy = rolled_out(model, worlds, rng, greedy=True)
    readers = sum(len(run.readers) for run in runs)
    return Scores(
        fmean(run.f1 for run in runs),
        fmean(run.f1 for run in greedy),
        readers / len(runs),
        sum(run.useful_readers for run in runs) / max(1, readers),
    )


def draw(curves: dict[str, list[Curve]], path: Path) -> None:
    """Draw F1 and number of readers over the steps into a PNG file. Values are means over all seeds
    and ten steps.
    """
    need("sft", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("f1", "readers"), strict=True):
        for variant, of_seeds in curves.items():
            means = [
                fmean(getattr(point, name) for point in step)
                for step in zip(*of_seeds, strict=True)
            ]
            smooth = [fmean(means[max(0, at - 9) : at + 1]) for at in range(len(means))]
            axes.plot(range(1, len(smooth) + 1), smooth, label=variant)
        axes.set(xlabel="step", ylabel="F1" if name == "f1" else "readers of a run")
    axes.legend(fontsize=7)
    save_picture(figure, path)
