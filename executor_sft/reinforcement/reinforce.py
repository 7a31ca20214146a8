"""`rolegate sft reinforce`: train delegator and executors together by reinforcement learning.

In each step, the config's engines answer a few questions, or fill a few tables, several times.
Trained roles use the recipe's sampling temperature; all other roles keep the config's temperature.
The runs of a question are a group; a run's advantage is its reward compared with the rewards of its
group, and all agents of the run get it (WideSeek-R1, section 3.3). Then each adapter is updated
once. New adapters are written to OUT/steps, and loaded under new names.

steps.jsonl and curves.png show the progress. After an interruption, the same command resumes the
unfinished step, and repeats no finished model call. To continue a finished training, pass a higher
`--steps`; to finish a training that stopped early, pass the number of its last complete step.
`rolegate sft publish OUT` publishes the executor's last adapter as a version.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, get_args

import msgspec

from executor_sft.asking import failures
from executor_sft.call_cache import CallCache
from executor_sft.command import Count, StepOptions, show
from executor_sft.jsonl import read_json, write_jsonl
from executor_sft.publish import check_engine
from executor_sft.questions import Question, select_questions
from executor_sft.reinforcement.recipe import ROLES, ReinforceRecipe, Trained
from executor_sft.reinforcement.sequences import batch_of
from executor_sft.rollout import Group, roll_out_run
from executor_sft.runtime import (
    BASE,
    Runtime,
    adapter_files,
    adapter_name,
    named_adapters,
    open_runtime,
)
from executor_sft.step import Step, config_settings
from executor_sft.train import read_recipe
from router.errors import BadConfig
from router.models import Message, Prompt, Sampling
from router.trace import RoleName, Run
from serving.config.config import Config
from serving.config.file import load_config
from serving.dependencies import need
from serving.engines.versions import base_sha256
from serving.files import write_atomically
from serving.terminal import complain, progress_bar

NEEDED = ("matplotlib", "peft", "torch", "transformers")
"""Optional packages that the step needs; imported late, so that `--help` works without them."""
STEPS = "steps.jsonl"
CURVES = "curves.png"
STATE = "state.msgpack"
_MAX_TIED = 10
"""The training stops after this number of consecutive steps without any difference between the
rewards of a group.
"""
_MAX_FAILED = 0.1
"""Max share of failed runs in a step."""
_MIN_TEMPERATURE = 0.7


class Options(StepOptions):
    """Options of the step."""

    config: Path
    questions: Path
    """file of questions with right answers, or of requests for tables with right rows. Each line is
    JSON, such as {"question": "When …?", "answer": "1864"}
    """
    exclude: tuple[Path, ...] = ()
    """files of held-out questions (JSON lines); leave out questions that are the same as, or nearly
    the same as, a held-out question
    """
    recipe: str = "marl-mini"
    """settings of the training, such as the learning rate: marl-mini (for the demo's models), or a
    TOML file with the keys of this recipe
    """
    roles: tuple[Trained, ...] = get_args(Trained)
    """roles to train: delegator, executor or both"""
    executor: str = BASE
    """adapter (LoRA) of the executor to begin with: base (a new adapter for the config's model), or
    the folder of an adapter to train further
    """
    delegator: str = BASE
    """adapter (LoRA) of the delegator to begin with: base (a new adapter for the config's model),
    or the folder of an adapter to train further
    """
    model: Path | None = None
    """folder with the weights of the trained roles' model; needed if a trained role has base_url
    instead of engine in the config (default: the model of the engine)
    """
    steps: Count = 20
    """total number of training steps; each step updates each adapter once"""
    concurrency: Count = 8
    """number of runs to make at the same time"""


class Policy(NamedTuple):
    """An adapter to train, for one role or for both."""

    name: str
    """Name of the adapter's folder in each step: executor, delegator, or shared."""
    roles: tuple[RoleName, ...]
    base: Path
    """Folder of the base model."""
    start: Path | None
    """Folder of the adapter from which the training starts; None for a new adapter."""


class State(msgspec.Struct):
    """Everything that the next step needs from earlier steps. Stored in `state.msgpack`."""

    rows: list[dict[str, Any]]
    """Lines of `steps.jsonl`."""
    learners: dict[str, bytes]
    """Value of `Learner.state` for each policy, by the policy's name."""


def run(options: Options) -> int:
    """Run the step and return the exit status."""
    need("sft", *NEEDED)
    config = load_config(options.config)
    recipe = read_recipe(options.recipe, ReinforceRecipe)
    policies = _policies(config, options, recipe)
    questions, selection = select_questions(options.questions, options.exclude, rows_needed=True)
    starts = named_adapters([options.executor]) | named_adapters([options.delegator])
    inputs = {
        "questions": options.questions,
        **{f"exclude {path}": path for path in options.exclude},
        **adapter_files(starts),
    }
    settings = {
        **msgspec.to_builtins(recipe),
        **options.settings("roles", "executor", "delegator"),
        "bases": {policy.name: base_sha256(policy.base) for policy in policies},
        **config_settings(config),
    }
    step = Step.begin(options.out, "reinforce", inputs, settings)
    manifest = step.finished
    if manifest is None or manifest.figures["steps"] < options.steps:
        step.reopen()
        rows = asyncio.run(_trained(options, config, recipe, policies, questions))
        figures = {
            "selection": selection,
            "steps": len(rows),
            "reward_at_start": rows[0]["reward"],
            "reward": rows[-1]["reward"],
            "kind": "adapter",
            "executor": "",
        }
        for policy in policies:
            if "execution" in policy.roles:
                figures |= {
                    "executor": policy.name,
                    "base_sha256": base_sha256(policy.base),
                    "rank": _rank(policy, recipe),
                }
        adapters = (options.out / "steps").glob("*/[!.]*/*")
        files = [str(path.relative_to(options.out)) for path in sorted(adapters)]
        manifest = step.finish(figures, [*files, STEPS, CURVES])
    show(manifest.figures, as_json=options.json)
    return 0


def _policies(config: Config, options: Options, recipe: ReinforceRecipe) -> list[Policy]:
    """Return the adapters to train: one for both roles if they have the same base model, else one
    for each role.

    Raises `BadConfig` or `BadVersion` if config, recipe and base models do not allow the training.
    """
    if recipe.temperature < _MIN_TEMPERATURE:
        raise BadConfig(
            f"recipe: temperature must be at least {_MIN_TEMPERATURE}, got {recipe.temperature}; "
            "raise it. Engines report probabilities at temperature 1, so ratios would be wrong."
        )
    policies = list[Policy]()
    for trained in options.roles:
        name = ROLES[trained]
        role = config.roles.by_name[name]
        if role.top_p != 1:
            raise BadConfig(
                f"roles.{name}.top_p: must be 1, got {role.top_p}; set it to 1, as a lower value "
                "would bias the probability ratios of the training."
            )
        base = options.model
        if role.engine:
            base = Path(config.engines[role.engine].path)
        if base is None or not base_sha256(base):
            raise BadConfig(
                f"roles.{name}: no folder with the model's weights is known; name one with --model."
            )
        start = named_adapters([getattr(options, trained)])
        policy = Policy(trained, (name,), base, next(iter(start.values())))
        check_engine(name, config, base_sha256(base), _rank(policy, recipe), name)
        policies.append(policy)
    if len({base_sha256(policy.base) for policy in policies}) == 1 < len(policies):
        if len({policy.start for policy in policies}) > 1:
            raise BadConfig(
                "--executor, --delegator: both roles have the same base model, so they share one "
                "adapter; give both options the same value."
            )
        both = tuple(ROLES[role] for role in options.roles)
        return [policies[0]._replace(name="shared", roles=both)]
    return policies


def _rank(policy: Policy, recipe: ReinforceRecipe) -> int:
    if policy.start is None:
        return recipe.rank
    path = policy.start / "adapter_config.json"
    return int(read_json(path, dict[str, Any], "name the folder of an adapter")["r"])


async def _trained(
    options: Options,
    config: Config,
    recipe: ReinforceRecipe,
    policies: Sequence[Policy],
    questions: Sequence[Question],
) -> list[dict[str, Any]]:
    """Run the remaining training steps, and return all lines of `steps.jsonl`."""
    from executor_sft.reinforcement.learner import Learner

    out = options.out
    learners = {policy.name: Learner(policy.base, policy.start, recipe) for policy in policies}
    state = State([], {})
    if (out / STATE).exists():
        state = msgspec.msgpack.decode((out / STATE).read_bytes(), type=State)
        for name, learner in learners.items():
            learner.restore(state.learners[name])
        _record(out, state.rows)  # the process may have been killed after it wrote STATE
    if len(state.rows) >= options.steps:
        return state.rows
    executors = named_adapters([options.executor])
    delegators = named_adapters([options.delegator])
    trained = [ROLES[role] for role in options.roles]
    async with open_runtime(config, complain, adapters=executors, delegators=delegators) as opened:
        runtime = replace(
            opened.with_versions(*executors, *delegators),
            asking={role: {"return_token_ids": True, "logprobs": True} for role in trained},
        )
        await _probe(runtime)
        if state.rows:
            runtime = await _load(runtime, policies, out, len(state.rows))
        for number in range(len(state.rows) + 1, options.steps + 1):
            begun = time.monotonic()
            with CallCache.open(_calls(out, number)) as cache:
                groups = await _groups(
                    replace(runtime, cache=cache), recipe, questions, number, options.concurrency
                )
            batch = await asyncio.to_thread(batch_of, groups, recipe, trained, number)
            row: dict[str, Any] = {
                "step": number,
                "groups": len(groups),
                **batch.figures,
                "rollout_s": round(time.monotonic() - begun, 3),
            }
            for policy in policies:
                learner = learners[policy.name]
                sequences = [tokens for tokens in batch.rows if tokens.role in policy.roles]
                row[policy.name] = await asyncio.to_thread(learner.update, sequences)
                learner.save(_folder(out, number, policy))
            row["seconds"] = round(time.monotonic() - begun, 3)
            state.rows.append(row)
            state.learners = {name: learner.state for name, learner in learners.items()}
            write_atomically(out / STATE, msgspec.msgpack.encode(state))
            _record(out, state.rows)
            complain(
                f"step {number} of {options.steps}: mean reward {row['reward']:.3f}; runs had "
                f"different rewards for {row['mixed_groups']:.0%} of the questions; "
                f"{row['seconds']:.1f} s; about {(options.steps - number) * row['seconds']:.0f} s "
                "left"
            )
            _check_ties(state.rows)
            runtime = await _load(runtime, policies, out, number)
    return state.rows


def _record(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the figures of all steps, and remove the call cache of the last step."""
    from executor_sft.reinforcement.curves import draw

    write_jsonl(out / STEPS, rows)
    draw(rows, out / CURVES)
    _calls(out, len(rows)).unlink(missing_ok=True)


def _calls(out: Path, number: int) -> Path:
    return out / f"calls-{number:04}.jsonl"


def _folder(out: Path, number: int, policy: Policy) -> Path:
    """Return the folder of a policy's adapter after the step of this number."""
    folder = out / "steps" / f"{number:04}" / policy.name
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


async def _probe(runtime: Runtime) -> None:
    """Raise `BadConfig` if a trained role's endpoint returns no token ids or log-probabilities."""
    for name in runtime.asking:
        role = runtime.role(name, runtime.config.roles.by_name[name])
        prompt = Prompt((Message("user", "?"),), Sampling(max_tokens=1))
        tokens = (await role.model.complete(prompt)).tokens
        if tokens is msgspec.UNSET or tokens.logprobs is msgspec.UNSET:
            raise BadConfig(
                f"roles.{name}: its endpoint returns no token ids or no log-probabilities, which "
                "the training needs; serve the role with vLLM."
            )


async def _load(runtime: Runtime, policies: Sequence[Policy], out: Path, number: int) -> Runtime:
    """Load the adapters of the step `number`, and unload the adapters of the step `number - 2`.
    Return a runtime that uses the newly loaded adapters.
    """
    versions = dict(runtime.versions)
    for policy in policies:
        folder = _folder(out, number, policy)
        for role in policy.roles:
            versions[role] = adapter_name(folder)
            await runtime.loaders[role].load(versions[role], folder.resolve())
            if number > 2:
                old = adapter_name(_folder(out, number - 2, policy))
                await runtime.loaders[role].unload(old)
    return replace(runtime, versions=versions)


async def _groups(
    runtime: Runtime,
    recipe: ReinforceRecipe,
    questions: Sequence[Question],
    number: int,
    concurrency: int,
) -> list[Group]:
    """Make all runs of a step, and return them in groups, one for each question. Groups with a
    failed run are left out. Raises `BadConfig` if too many runs failed.
    """
    chosen = Random(f"{recipe.seed}/{number}").sample(
        questions, min(recipe.questions, len(questions))
    )
    seeds = range((number - 1) * recipe.group, number * recipe.group)
    pairs = [(place, seed) for place in range(len(chosen)) for seed in seeds]
    runs = dict[tuple[int, int], Run]()

    async def roll_out(pair: tuple[int, int]) -> None:
        # Roles that are not trained usually decode greedily, so the runs of a group repeat many of
        # their calls. The step's cache answers the repeated calls
        sampled = runtime.sampled(pair[1], recipe.temperature, roles=runtime.asking.keys())
        runs[pair] = await roll_out_run(sampled, "factorized", chosen[pair[0]])

    with progress_bar() as bar:
        task = bar.add_task(f"step {number}", total=len(pairs))
        failed = await failures(
            roll_out,
            pairs,
            concurrency,
            lambda: bar.advance(task),
            name=str,
            so_far=lambda count: f"Step {number}: {count} of {len(pairs)} runs are finished",
        )
    kept = [
        Group(question, tuple(runs[place, seed] for seed in seeds))
        for place, question in enumerate(chosen)
        if all((place, seed) in runs for seed in seeds)
    ]
    if not kept or len(failed) > _MAX_FAILED * len(pairs):
        raise BadConfig(
            f"Step {number}: {len(failed)} of {len(pairs)} runs failed, the first with: "
            f"{next(iter(failed.values()))} Fix the cause, and start the same command again."
        )
    return kept


def _check_ties(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise `BadConfig` if, in the last `_MAX_TIED` steps, all runs of each group had equal
    rewards, so that nothing could be learnt.
    """
    last = rows[-_MAX_TIED:]
    if len(last) < _MAX_TIED or any(row["mixed_groups"] for row in last):
        return
    right = sum(row["reward_answer"] for row in last) / len(last)
    what = "wrong; give easier questions, or start from a model that is sometimes right"
    if right > 0.5:
        what = "right; give harder questions"
    raise BadConfig(
        f"The training stopped: in the last {_MAX_TIED} steps, all runs of a question had the same "
        f"reward, so nothing can be learnt. Most runs are {what} (mean score {right:.2f})."
    )
