"""`rolegate sft retrain`: run all steps, from stored runs to a new version on shadow traffic.

The steps are mine → filter → dataset → train → evaluate → publish, each with its own folder under
--work. If a step fails, the command stops and prints the reason. The same command then resumes at
the failed step, and no model call is paid for twice.

At the end, the new version is registered with a running gateway. The gateway repeats some finished
runs with the new version (shadow traffic), and compares the results without using them. The gateway
then decides whether to promote the version (`rolegate versions decisions`).
"""

from collections.abc import Iterator
from pathlib import Path

from rolegate.client import GatewayError

from executor_sft import dataset, evaluate, mine, publish, train
from executor_sft import filter as filter_step
from executor_sft.command import Count
from executor_sft.questions import read_questions
from executor_sft.runtime import BASE
from executor_sft.step import read_manifest
from executor_sft.train import Recipe, read_recipe
from router.errors import BadConfig
from serving.cli.options import ConnectionOptions, with_client
from serving.config.config import Config
from serving.config.file import load_config
from serving.dependencies import need
from serving.engines.versions import base_sha256
from serving.terminal import complain


class Options(ConnectionOptions, kw_only=True):
    """Options of `rolegate sft retrain`."""

    config: Path
    work: Path
    """folder for the result folders of all steps; the same command with the same folder resumes"""
    evaluation: Path
    """file of held-out questions, for comparing the new version with the model before the training;
    never trained on. Each line is JSON, such as {"question": "When …?",
    "golden_answers": ["1864"]}
    """
    model: Path | None = None
    """folder with the weights of the model to train (default: the model that the executor's engine
    serves)
    """
    recipe: str = "mini"
    """settings of the training, such as the learning rate: mini (for the demo's model), or a TOML
    file with the keys of `executor_sft/recipes/mini.toml`; it must train a LoRA adapter
    """
    mix: str = ""
    """max trajectories of each stratum to train on, as STRATUM=N,…, such as
    student_single=1000,teacher_single=500,teacher_multi=668; `rolegate sft filter --help` explains
    the strata (default: no limits)
    """
    min_trajectories: Count = 100
    """stop before the training if fewer trajectories pass the filter. A trajectory is an executor's
    work on one sub-query; 500 questions of the demo gave 1,298 trajectories
    """
    rollouts: Count = 1
    """in the evaluation: number of answers to each held-out question with each executor"""
    concurrency: Count = 8
    """number of questions to answer at the same time"""
    yes: bool = False
    """start without asking for confirmation of the cost"""


def run(options: Options) -> int:
    """Run all steps and return the exit status: 1 if the command stopped after a step."""
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
    """Check the requirements of later steps, before model calls cost anything. Raise `BadConfig` or
    `BadVersion` if a package is missing, or if recipe, tokenizer, engine or held-out questions are
    unsuitable.
    """
    need("sft", *dataset.NEEDED, *train.NEEDED)
    recipe = read_recipe(options.recipe, Recipe)
    if recipe.method != "lora":
        raise BadConfig(
            f"--recipe {options.recipe}: trains all weights, but a running engine can load only "
            'adapters; name a recipe with method = "lora", or run the steps one by one.'
        )
    dataset.tokenizer_files(student)
    what = f"--recipe {options.recipe} with {student}"
    publish.check_engine(what, config, base_sha256(student), recipe.rank)
    read_questions(options.evaluation)


def _steps(options: Options, config: Config, student: Path) -> Iterator[tuple[str, str]]:
    """Run the steps in order. After each step, yield its name and the reason to stop, which is
    empty if the next step can begin.
    """
    mining = mine.Options(
        config=options.config,
        out=options.work / "mined",
        evaluation=(options.evaluation,),
        leave_failed=True,
        concurrency=options.concurrency,
        yes=options.yes,
    )
    yield "mine", "the cost was not confirmed; pass --yes." if mine.run(mining) else ""
    filtering = filter_step.Options(
        rollouts=(mining.out,),
        out=options.work / "filtered",
        mix=options.mix,
        exclude=(options.evaluation,),
    )
    filter_step.run(filtering)
    samples = read_manifest(filtering.out).figures["samples"]
    too_few = (
        f"{samples} trajectories passed the filter, and --min-trajectories requires "
        f"{options.min_trajectories}; log more questions, or lower --min-trajectories."
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
    try:
        with_client(lambda client, _: publish.try_version(client, version), options)
    except GatewayError as error:
        yield "publish", f"the gateway did not accept {version.name}: {error}"


def _worse(evaluated: Path) -> str:
    """Return the reason to stop if the new executor is worse than the old one with 95 % confidence,
    else an empty text. `evaluated`: result folder of the evaluation.
    """
    gain = read_manifest(evaluated).figures["comparisons"][0]["exact_match"]
    if gain["high"] >= 0:
        return ""
    return (
        "the new executor is worse than the old one: its share of right answers is lower by "
        f"{-gain['mean']:.3f} (by at least {-gain['high']:.3f} with 95 % confidence). Log more "
        "runs, and name a new folder with --work."
    )
