"""`rolegate sft retrain`: from logged runs to a version that works as shadow, in one command.

mine → filter → dataset → train → evaluate → publish, each in a folder of its own under --work. Where a step says no, it
stops there and says why; started again, it goes on from there, and nothing is paid for twice. What becomes of the
version then is up to the gateway's gate (`rolegate versions decisions`).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from executor_sft import dataset, evaluate, mine, publish, train
from executor_sft.evaluate import Evaluation
from executor_sft.filter import main as filter_rollouts
from executor_sft.questions import read_questions
from executor_sft.recipe import load_recipe
from executor_sft.step import read_manifest
from router.errors import BadConfig
from serving.cli.connection import access, add_connection
from serving.cli.options import add_config, chosen_config, chosen_file
from serving.dependencies import need
from serving.engines.versions import base_sha256


def main(arguments: Sequence[str]) -> int:
    """Run all steps; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate sft retrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config(parser)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where the steps' folders go")
    parser.add_argument("--evaluation", type=Path, required=True, metavar="FILE", help="held-out questions, JSON lines")
    parser.add_argument("--model", type=Path, metavar="DIR", help="the student's weights (default: its engine's)")
    parser.add_argument(
        "--recipe",
        default="mini",
        metavar="NAME",
        help="of the training, or a file (default: mini, for the demo's model)",
    )
    parser.add_argument("--mix", metavar="STRATUM=N,…", help="as of `rolegate sft filter`")
    parser.add_argument(
        "--least",
        type=int,
        default=100,
        metavar="N",
        help="trajectories to learn from (default: 100); 500 logged questions of the demo gave 1,298",
    )
    parser.add_argument("--rollouts", type=int, default=1, metavar="K", help="of each held-out question (default: 1)")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="questions in flight (default: 8)")
    add_connection(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask whether re-running may cost what it does")
    given = parser.parse_args(arguments)
    given.config = chosen_file(given)
    _check(given)
    for step in (_mine, _filter, _dataset, _train, _evaluate, _publish):
        if reason := step(given):
            print(f"rolegate sft retrain: stopped at {step.__name__.strip('_')}: {reason}")
            return 1
    return 0


_EXECUTORS = 2
"""That are evaluated: the one before, and the new one."""
Stop = str | None
"""Why not to go on; None where nothing speaks against it."""


def _check(given: argparse.Namespace) -> None:
    """Raise `BadConfig` or `BadVersion` for what would stop a later step, before anything is spent."""
    need("sft", *dataset.NEEDED, *train.NEEDED)
    recipe, student = load_recipe(given.recipe), _student(given)
    if recipe.method != "lora":
        raise BadConfig(
            f"--recipe {given.recipe}: trains all weights, and an engine that runs takes in adapters only; name one "
            'with method = "lora", or run the steps one by one.'
        )
    dataset.tokenizer_files(student)
    publish.check_engine(
        f"--recipe {given.recipe} with {student}", chosen_config(given), base_sha256(student), recipe.rank
    )
    read_questions(given.evaluation)


def _mine(given: argparse.Namespace) -> Stop:
    runs = _EXECUTORS * given.rollouts * len(read_questions(given.evaluation))
    return _done(
        mine.main,
        *("--config", given.config, "--out", given.work / "mined", "--evaluation", given.evaluation),
        *("--leave-failed", given.yes and "--yes", "--concurrency", given.concurrency, "--then-evaluate", runs),
    )


def _filter(given: argparse.Namespace) -> Stop:
    folder = given.work / "filtered"
    stop = _done(filter_rollouts, given.work / "mined", "--out", folder, given.mix and f"--mix={given.mix}")
    kept = 0 if stop else int(read_manifest(folder).figures["kept"])
    if stop is None and kept < given.least:
        return f"{kept} trajectories are worth learning from, and --least wants {given.least}; log more questions."
    return stop


def _dataset(given: argparse.Namespace) -> Stop:
    role = chosen_config(given).roles.execution
    return _done(
        dataset.main,
        *(given.work / "filtered", "--model", _student(given), "--out", given.work / "data"),
        role.thinking is not None and f"--thinking={str(role.thinking).lower()}",
        f"--system-role={str(role.system_role).lower()}",
    )


def _train(given: argparse.Namespace) -> Stop:
    return _done(
        train.main,
        *(given.work / "data", "--model", _student(given), "--recipe", given.recipe, "--out", given.work / "trained"),
    )


def _evaluate(given: argparse.Namespace) -> Stop:
    folder = given.work / "evaluated"
    stop = _done(
        evaluate.main,
        *("--questions", given.evaluation, "--rollouts", given.rollouts, "--out", folder, "--config", given.config),
        *("--executors", chosen_config(given).versions.start or evaluate.BASE, given.work / "trained" / "model"),
        *("--concurrency", given.concurrency),
    )
    if stop is not None:
        return stop
    figures = msgspec.json.decode((folder / evaluate.RESULT).read_bytes(), type=Evaluation)
    gain = figures.comparisons[0].exact_match
    margin = chosen_config(given).versions.gate.margin
    if gain.high < -margin:
        return f"it is worse than the executor before it: exact match {gain.mean:+.3f}, at best {gain.high:+.3f}."
    return None


def _publish(given: argparse.Namespace) -> Stop:
    return _done(
        publish.main,
        *(given.work / "trained", "--config", given.config, "--address", given.address, "--traffic", "shadow"),
        *("--evaluation", given.work / "evaluated" / evaluate.RESULT),
        *(f"--{option}={file}" for option, file in access(given).items() if file),
    )


def _done(command: Callable[[Sequence[str]], int], *arguments: object) -> Stop:
    status = command([str(argument) for argument in arguments if argument])
    return f"it ended with status {status}." if status else None


def _student(given: argparse.Namespace) -> Path:
    config = chosen_config(given)
    engine = config.roles.execution.engine
    return given.model or Path(config.engines[engine].path if engine else config.roles.execution.model)
