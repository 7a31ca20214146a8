"""The paper's Tables 3 and 4 in miniature: the naive, the distilled and the teaching executor on
held-out mini worlds, under the same backbone and answerer, through real vLLM and real retrieval,
once for each limit of executor turns.
"""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from benchmarks.study import sweep
from benchmarks.study.mini_study import StudyOptions, study, write_sweep
from benchmarks.study.plan import Pairs, Plan, StudyModel
from router.errors import BadConfig
from serving.config.file import load_config, preset


class Options(StudyOptions, frozen=True, kw_only=True):
    """Its options."""

    worlds: Annotated[tuple[int, ...], Meta(description="seeds")] = (11, 12)
    questions: Annotated[int, Meta(ge=1, description="of each world")] = 150
    turns: Annotated[tuple[int, ...], Meta(description="limits of executor turns")] = (3, 4)
    version: (
        Annotated[Path, Meta(description="the distilled one, instead of the shipped one")] | None
    ) = None


def measure(options: Options) -> sweep.Figures:
    """Write worlds and plan, sweep, and report."""
    return study(write_study(options))


def write_study(options: Options) -> Path:
    """Write the worlds, their config and the sweep; the sweep's file. Raises `BadConfig`."""
    config = load_config(preset("mini"))
    version = options.version or config.versions.start
    if version is None:
        raise BadConfig(
            "--version: the preset mini starts without one; name the folder of the "
            "distilled executor."
        )
    models = {
        "naive": StudyModel(),
        "distilled": StudyModel(adapter=str(Path(version).resolve())),
        "teacher": StudyModel(settings={"model": "mini-teacher", "engine": "teacher"}),
        "backbone": StudyModel(),
    }
    pairs = (Pairs(backbone=("backbone",), executor=("naive", "distilled", "teacher")),)
    plan = Plan(
        title="Executors in miniature",
        questions=(),
        models=models,
        pairs=pairs,
        max_turns=options.turns,
    )
    return write_sweep(config, options, plan)
