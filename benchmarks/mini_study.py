"""The paper's study in miniature: models of three sizes as backbones, as executors and alone, on two mini worlds whose
names none of them has seen, through real vLLM and real retrieval (TBSS 4.2 to 4.4).

Two of the models come with the project; one that is neither there nor shipped is trained first. Every step goes on
where it was, and is skipped once done.
"""

import argparse
import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks import report, sweep
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.miniworld.config import write_config
from executor_sft.miniworld.export import export
from executor_sft.miniworld.world import World
from router.errors import RolegateError
from serving.config import EngineConfig
from serving.config_file import load_config, preset

SIZES = ("small", "medium", "large")
_SHIPPED = Path(__file__).resolve().parent / "study" / "models"
_BEGINNINGS = {"large": ("teacher", 700)}
"""Which of the demo's models, of the same size, goes on learning, and for how many steps; others begin from scratch."""
_GENTLY = ("--rate", "1.5e-3", "--context-weight", "0.3", "0.1")
"""How those learn that can copy already."""
_WEIGHTS = "model.safetensors"
_BYTES = 2
"""Of a parameter in a file."""


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, sweep, and report; the exit status."""
    parser = argparse.ArgumentParser(
        prog="rolegate bench mini-study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where everything is kept")
    parser.add_argument("--models", type=Path, metavar="DIR", help="where the models are, or go (default: in --work)")
    parser.add_argument("--worlds", type=int, nargs="+", default=[21, 22], metavar="SEED", help="(default: 21 22)")
    parser.add_argument("--questions", type=int, default=75, metavar="N", help="of each world (default: 75)")
    parser.add_argument("--rollouts", type=int, default=4, metavar="K", help="of each question (default: 4)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="that train (default: 2)")
    given = parser.parse_args(arguments)
    work = given.work.resolve()
    models = (given.models or work / "models").resolve()
    for size in SIZES:
        asyncio.run(_provide(size, models, given.threads))
    plan = write_plan(work, models, given.worlds, given.questions, given.rollouts)
    if status := sweep.main(["--config", str(plan), "--out", str(work / "results"), "--yes"]):
        return status
    return report.main([str(work / "results"), "--out", str(work / "report")])


def write_plan(work: Path, models: Path, worlds: Sequence[int], questions: int, rollouts: int) -> Path:
    """Write the worlds, their config and the sweep into `work`; the sweep's file. All worlds share one index: no name
    is in two of them.
    """
    folders = [work / f"world-{seed}" for seed in worlds]
    corpora = [folder / f"{folder.name}.jsonl" for folder in folders]  # an index knows files by their names
    for seed, folder, corpus in zip(worlds, folders, corpora, strict=True):
        export(World(seed, "test"), folder, questions, folder.name)
        (folder / "corpus.jsonl").replace(corpus)
    config = load_config(preset("mini"))
    backbone = config.engines["backbone"]
    engines = {size: EngineConfig(path=str(models / size), arguments=backbone.arguments) for size in SIZES}
    retrieval = msgspec.structs.replace(config.retrieval, documents=tuple(map(str, corpora)), index=str(work / "index"))
    largest = SIZES[-1]
    execution = msgspec.structs.replace(config.roles.execution, engine=largest, model=largest)
    config = msgspec.structs.replace(
        config,
        roles=msgspec.structs.replace(config.roles, execution=execution),
        engines={"backbone": backbone, **engines},
        retrieval=retrieval,
        search=msgspec.structs.replace(config.search, scope=None),
        server=msgspec.structs.replace(config.server, store=f"sqlite:///{work}/runs.db"),
        versions=msgspec.structs.replace(config.versions, start=None),
        distillation=msgspec.structs.replace(config.distillation, teacher=None),
    )
    write_config(config, work / "rolegate.toml")
    plan = Plan(
        title="Capacity in miniature",
        config="rolegate.toml",
        questions=tuple(f"{folder.name}/questions.jsonl" for folder in folders),
        models={size: _model(size, models / size) for size in SIZES},
        pairs=(
            Pairs(backbone=SIZES, executor=(largest,)),
            Pairs(backbone=(largest,), executor=SIZES),
            *(Pairs(backbone=(size,), executor=(size,)) for size in SIZES[:-1]),
            Pairs(backbone=SIZES, topology="single_agent"),
        ),
        rollouts=rollouts,
        temperature=0.3,
        attribution=True,
        concurrency=32,
    )
    write_config(plan, work / "sweep.toml")
    return work / "sweep.toml"


def _model(size: str, folder: Path) -> StudyModel:
    parameters = float((folder / _WEIGHTS).stat().st_size // _BYTES)
    return StudyModel(settings={"model": size, "engine": size}, parameters=parameters)


async def _provide(size: str, models: Path, threads: int) -> None:
    """Take the shipped one, or train one in a process of its own, which leaves no memory behind. Raises
    `RolegateError`.
    """
    done, unfinished, work = models / size, models / f"{size}-unfinished", models / f"{size}-work"
    if done.exists():
        return
    if (shipped := _SHIPPED / size).exists():
        shutil.copytree(shipped, unfinished, dirs_exist_ok=True)
        unfinished.rename(done)
        return
    print(f"{done}: training", file=sys.stderr)
    engines = load_config(preset("mini")).engines
    further: tuple[str, ...] = ()
    if size in _BEGINNINGS:
        beginning, steps = _BEGINNINGS[size]
        further = "--start", engines[beginning].path, "--steps", str(steps), *_GENTLY
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "executor_sft", "mini-model", "generalist", "--size", size, "--threads", str(threads)),
        *("--tokenizer", engines["backbone"].path, "--out", str(unfinished), "--work", str(work)),
        *further,
    )
    if status := await process.wait():
        raise RolegateError(f"training {done} ended with status {status}; the same command goes on with it.")
    unfinished.rename(done)
