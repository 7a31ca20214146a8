"""`rolegate sft retrain`: run all steps, from logged runs to a version that works as a shadow.

mine → filter → dataset → train → evaluate → publish, each in its own folder under --work. If a step
fails, the command stops there and says why. Started again, it resumes there, and no model call is
paid for twice. The gateway's gate then decides about the version (`rolegate versions decisions`).
"""

from collections.abc import Iterator
from pathlib import Path

from executor_sft import dataset, evaluate, mine, publish, train
from executor_sft import filter as filter_step
from executor_sft.command import Count
from executor_sft.questions import read_questions
from executor_sft.runtime import BASE
from executor_sft.step import read_manifest
from executor_sft.train import load_recipe
from router.errors import BadConfig
from serving.cli.options import ConnectionOptions, with_client
from serving.config.config import Config
from serving.config.file import load_config
from serving.dependencies import need
from serving.engines.versions import base_sha256
from serving.terminal import complain


class Options(ConnectionOptions, frozen=True, kw_only=True):
    """Options of the command."""

    config: Path
    work: Path
    """where the steps' folders go"""
    evaluation: Path
    """held-out questions, JSON lines"""
    model: Path | None = None
    """the student's weights (default: its engine's)"""
    recipe: str = "mini"
    """recipe of the training, or a file; mini is for the demo's model"""
    mix: str = ""
    """STRATUM=N,…, as of `rolegate sft filter`"""
    min_trajectories: Count = 100
    """min trajectories to learn from; 500 logged questions of the demo gave 1,298"""
    rollouts: Count = 1
    """answers to each held-out question"""
    concurrency: Count = 8
    """questions in flight"""
    yes: bool = False
    """do not ask to confirm the cost"""


def run(options: Options) -> int:
    """Run all steps and return the exit status."""
    config = load_config(options.config)
    engine = config.roles.execution.engine
    student = options.model or Path(
        config.engines[engine].path if engine else config.roles.execution.model
    )
    _check(options, config, student)
    for name, problem in _steps(options, config, student):
        if problem:
            complain(f"rolegate sft retrain: stopped at {name}: {problem}")
            return 1
    return 0


def _check(options: Options, config: Config, student: Path) -> None:
    """Raise `BadConfig` or `BadVersion` for what would stop a later step, before any cost."""
    need("sft", *dataset.NEEDED, *train.NEEDED)
    recipe = load_recipe(options.recipe)
    if recipe.method != "lora":
        raise BadConfig(
            f"--recipe {options.recipe}: trains all weights, but a running engine loads adapters "
            'only; name a recipe with method = "lora", or run the steps one by one.'
        )
    dataset.tokenizer_files(student)
    what = f"--recipe {options.recipe} with {student}"
    publish.check_engine(what, config, base_sha256(student), recipe.rank)
    read_questions(options.evaluation)


def _steps(options: Options, config: Config, student: Path) -> Iterator[tuple[str, str]]:
    """Run the steps in order, and yield the name of each and the reason to stop, if any."""
    mining = mine.Options(
        config=options.config,
        out=options.work / "mined",
        evaluation=(options.evaluation,),
        leave_failed=True,
        concurrency=options.concurrency,
        yes=options.yes,
    )
    yield "mine", "not finished." if mine.run(mining) else ""
    filtering = filter_step.Options(
        rollouts=(mining.out,),
        out=options.work / "filtered",
        mix=options.mix,
        exclude=(options.evaluation,),
    )
    filter_step.run(filtering)
    samples = read_manifest(filtering.out).figures["samples"]
    too_few = (
        f"only {samples} trajectories passed the filter, "
        f"and --min-trajectories is {options.min_trajectories}; log more "
        "questions."
    )
    yield "filter", too_few if samples < options.min_trajectories else ""
    data = dataset.Options(
        filtered=filtering.out,
        model=student,
        out=options.work / "data",
        thinking=config.roles.execution.thinking,
        system_role=config.roles.execution.system_role,
    )
    dataset.run(data)
    yield "dataset", ""
    training = train.Options(
        dataset=data.out,
        model=student,
        recipe=options.recipe,
        out=options.work / "trained",
    )
    train.run(training)
    yield "train", ""
    evaluation = evaluate.Options(
        config=options.config,
        questions=options.evaluation,
        rollouts=options.rollouts,
        out=options.work / "evaluated",
        executors=(config.versions.start or BASE, str(training.out / train.MODEL)),
        concurrency=options.concurrency,
    )
    evaluate.run(evaluation)
    yield "evaluate", _worse(evaluation.out)
    version = publish.publish(training.out, config, evaluation.out / evaluate.RESULT)
    status = with_client(lambda client, _: publish.try_version(client, version), options)
    yield "publish", "the gateway refused it." if status else ""


def _worse(evaluated: Path) -> str:
    """Return the reason to stop if the new executor is worse than the old one, else nothing."""
    gain = read_manifest(evaluated).figures["comparisons"][0]["exact_match"]
    if gain["high"] >= 0:
        return ""
    return (
        f"the new executor is worse than the old one: exact match {gain['mean']:+.3f}, at best "
        f"{gain['high']:+.3f}."
    )
