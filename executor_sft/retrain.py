"""`rolegate sft retrain`: from logged runs to a version that works as shadow, in one command.

mine → filter → dataset → train → evaluate → publish, each in a folder of its own under --work.
Where a step says no, it stops there and says why; started again, it goes on from there, and nothing
is paid for twice. What becomes of the version then is up to the gateway's gate (`rolegate versions
decisions`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from rolegate.client.requests import ADDRESS

from executor_sft import dataset, evaluate, mine, publish, train
from executor_sft.filter import Options as FilterOptions
from executor_sft.filter import run as run_filter
from executor_sft.questions import read_questions
from executor_sft.runtime import BASE
from executor_sft.step import read_manifest
from executor_sft.train import load_recipe
from router.errors import BadConfig
from serving.config.config import Config
from serving.config.file import load_config
from serving.dependencies import need
from serving.engines.versions import base_sha256
from serving.terminal import complain


class Options(publish.GatewayOptions, frozen=True, kw_only=True):
    """Options of the command."""

    address: Annotated[str, Meta(description="HOST:PORT of the gateway")] = ADDRESS
    work: Annotated[Path, Meta(description="where the steps' folders go")]
    evaluation: Annotated[Path, Meta(description="held-out questions, JSON lines")]
    model: (
        Annotated[Path, Meta(description="the student's weights; without it, its engine's")] | None
    ) = None
    recipe: Annotated[
        str, Meta(description="of the training, or a file; mini is for the demo's model")
    ] = "mini"
    mix: Annotated[str, Meta(description="STRATUM=N,…, as of `rolegate sft filter`")] = ""
    least: Annotated[
        int,
        Meta(
            ge=1,
            description="trajectories to learn from; 500 logged questions of the demo gave 1,298",
        ),
    ] = 100
    rollouts: Annotated[int, Meta(ge=1, description="of each held-out question")] = 1
    concurrency: Annotated[int, Meta(ge=1, description="questions in flight")] = 8
    yes: Annotated[
        bool, Meta(description="do not ask whether re-running may cost what it does")
    ] = False


def run(options: Options) -> int:
    """Run all steps; the exit status."""
    config = load_config(options.config)
    engine = config.roles.execution.engine
    student = options.model or Path(
        config.engines[engine].path if engine else config.roles.execution.model
    )
    _check(options, config, student)
    for name, status, reason in _steps(options, config, student):
        if status or reason:
            why = f"it ended with status {status}." if status else reason
            complain(f"rolegate sft retrain: stopped at {name}: {why}")
            return 1
    return 0


def _check(options: Options, config: Config, student: Path) -> None:
    """Raise `BadConfig` or `BadVersion` for what would stop a later step, before anything is
    spent.
    """
    need("sft", *dataset.NEEDED, *train.NEEDED)
    recipe = load_recipe(options.recipe)
    if recipe.method != "lora":
        raise BadConfig(
            f"--recipe {options.recipe}: trains all weights, and an engine that runs "
            "takes in adapters only; name one "
            'with method = "lora", or run the steps one by one.'
        )
    dataset.tokenizer_files(student)
    what = f"--recipe {options.recipe} with {student}"
    publish.check_engine(what, config, base_sha256(student), recipe.rank)
    read_questions(options.evaluation)


def _steps(options: Options, config: Config, student: Path) -> Iterator[tuple[str, int, str]]:
    """Run the steps one after the other: name and status of each, and another reason not to go
    on, if there is one.
    """
    work = options.work
    role = config.roles.execution
    mining = mine.Options(
        config=options.config,
        out=work / "mined",
        evaluation=(options.evaluation,),
        leave_failed=True,
        concurrency=options.concurrency,
        yes=options.yes,
    )
    yield "mine", mine.run(mining), ""
    filtered = work / "filtered"
    filtering = FilterOptions(
        rollouts=(mining.out,), out=filtered, mix=options.mix, exclude=(options.evaluation,)
    )
    status = run_filter(filtering)
    samples = read_manifest(filtered).figures["samples"]
    too_few = (
        f"{samples} trajectories are worth learning from, and --least wants {options.least}; "
        "log more questions."
    )
    yield "filter", status, too_few if samples < options.least else ""
    data = dataset.Options(
        filtered=filtered,
        model=student,
        out=work / "data",
        thinking=role.thinking,
        system_role=role.system_role,
    )
    yield "dataset", dataset.run(data), ""
    trained = work / "trained"
    training = train.Options(dataset=data.out, model=student, recipe=options.recipe, out=trained)
    yield "train", train.run(training), ""
    evaluation = evaluate.Options(
        config=options.config,
        questions=options.evaluation,
        rollouts=options.rollouts,
        out=work / "evaluated",
        executors=(config.versions.start or BASE, str(trained / train.MODEL)),
        concurrency=options.concurrency,
    )
    status = evaluate.run(evaluation)
    figures = msgspec.convert(read_manifest(evaluation.out).figures, evaluate.Evaluation)
    gain = figures.comparisons[0].exact_match
    worse = (
        f"it is worse than the executor before it: exact match {gain.mean:+.3f}, at best "
        f"{gain.high:+.3f}."
    )
    yield "evaluate", status, worse if gain.high < 0 else ""
    publishing = publish.Options(
        trained=trained,
        evaluation=evaluation.out / evaluate.RESULT,
        traffic="shadow",
        **{
            name: getattr(options, name)
            for name in ("config", "address", "ca", "certificate", "key")
        },
    )
    yield "publish", publish.run(publishing), ""
