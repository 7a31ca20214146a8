"""The paper's Tables 3 and 4 in miniature: the naive, the distilled and the teaching executor on held-out mini worlds,
under the same backbone and answerer, through real vLLM and real retrieval, once for each limit of executor turns.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.mini_study import study, study_parser, write_worlds
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.miniworld.export import write_config
from router.errors import BadConfig
from serving.config.file import load_config, preset


def main(arguments: Sequence[str]) -> int:
    """Write worlds and plan, sweep, and report; the exit status."""
    parser = study_parser("executors", __doc__, worlds=[11, 12], questions=150)
    parser.add_argument("--turns", type=int, nargs="+", default=[3, 4], metavar="K", help="(default: 3 4)")
    parser.add_argument("--version", type=Path, metavar="DIR", help="the distilled one (default: the shipped one)")
    given = parser.parse_args(arguments)
    version = given.version or load_config(preset("mini")).versions.start
    if version is None:
        raise BadConfig("--version: the preset mini starts without one; name the folder of the distilled executor.")
    work, version = given.work.resolve(), Path(version).resolve()
    return study(write_study(work, version, given.worlds, given.questions, given.rollouts, turns=given.turns))


def write_study(
    work: Path, version: Path, worlds: Sequence[int], questions: int, rollouts: int, *, turns: Sequence[int]
) -> Path:
    """Write the worlds, their config and the sweep into `work`; the sweep's file."""
    config, files = write_worlds(load_config(preset("mini")), work, worlds, questions)
    write_config(config, work / "rolegate.toml")
    plan = Plan(
        title="Executors in miniature",
        config="rolegate.toml",
        questions=files,
        models={
            "naive": StudyModel(),
            "distilled": StudyModel(adapter=str(version)),
            "teacher": StudyModel(settings={"model": "mini-teacher", "engine": "teacher"}),
            "backbone": StudyModel(),
        },
        pairs=(Pairs(backbone=("backbone",), executor=("naive", "distilled", "teacher")),),
        rollouts=rollouts,
        temperature=0.3,
        max_turns=tuple(turns),
        attribution=True,
        concurrency=32,
    )
    write_config(plan, work / "sweep.toml")
    return work / "sweep.toml"
