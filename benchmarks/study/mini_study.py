"""The paper's study in miniature: models of three sizes as backbones, as executors and alone, on
two mini worlds whose names none of them has seen, through real vLLM and real retrieval (TBSS 4.2 to
4.4).

The models come with the project; docs/LOG.md says how they were trained. A study that was stopped
goes on in its folder where it was.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from benchmarks import harness
from benchmarks.study import report, sweep
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.miniworld.compositional import CompositionalWorld, Kind
from executor_sft.miniworld.export import export, write_config, write_corpus
from executor_sft.miniworld.world import World
from router.errors import BadConfig
from serving.config.config import Config, EngineConfig
from serving.config.file import load_config, preset

SIZES = ("small", "medium", "large")
"""From the smallest to the largest."""
MODELS = Path(__file__).resolve().parent / "models"
_WEIGHTS = "model.safetensors"
_BYTES = 2
"""Of a parameter in a file."""


class StudyOptions(harness.Options, frozen=True, kw_only=True):
    """Options of a sweep over mini worlds."""

    work: Annotated[Path, Meta(description="where everything is kept")]
    worlds: Annotated[tuple[int, ...], Meta(description="seeds")] = (21, 22)
    questions: Annotated[int, Meta(ge=1, description="of each world")] = 75
    rollouts: Annotated[int, Meta(ge=1, description="of each question")] = 4


class Options(StudyOptions, frozen=True, kw_only=True):
    """Its options."""

    world: Annotated[Kind, Meta(description="of questions; the shipped models speak mini")] = "mini"
    models: Annotated[Path, Meta(description="holds small, medium and large")] = MODELS


def measure(options: Options) -> sweep.Figures:
    """Write worlds and plan, sweep, and report."""
    return study(write_study(options))


def study(plan: Path) -> sweep.Figures:
    """Sweep, without asking what may be spent, and report, both beside the plan."""
    results = plan.parent / "results"
    figures = sweep.measure(sweep.Options(plan=plan, out=results, yes=True))
    report.measure(report.Options(results=results, out=plan.parent / "report"))
    return figures


def write_sweep(config: Config, options: StudyOptions, plan: Plan, kind: Kind = "mini") -> Path:
    """Write the worlds of a kind, the config over them and the sweep over both; the sweep's file.
    All worlds share one index: no name is in two of them.
    """
    work = options.work.resolve()
    folders = [work / f"world-{seed}" for seed in options.worlds]
    # An index knows files by their names
    corpora = [folder / f"{folder.name}.jsonl" for folder in folders]
    for seed, folder, corpus in zip(options.worlds, folders, corpora, strict=True):
        if kind == "compositional":
            world = CompositionalWorld(seed, "test", options.questions, folder.name)
            write_corpus(folder, world.passages, questions=world.questions)
        else:
            export(World(seed, "test"), folder, options.questions, folder.name)
        (folder / "corpus.jsonl").replace(corpus)
    retrieval = msgspec.structs.replace(
        config.retrieval, documents=tuple(map(str, corpora)), index=str(work / "index")
    )
    config = msgspec.structs.replace(
        config,
        retrieval=retrieval,
        search=msgspec.structs.replace(config.search, vocabulary=None),
        server=msgspec.structs.replace(config.server, store=f"sqlite:///{work}/runs.db"),
        versions=msgspec.structs.replace(config.versions, start=None),
    )
    write_config(config, work / "rolegate.toml")
    plan = msgspec.structs.replace(
        plan,
        config="rolegate.toml",
        questions=tuple(f"{folder.name}/questions.jsonl" for folder in folders),
        rollouts=options.rollouts,
        temperature=0.3,
        attribution=True,
        concurrency=32,
    )
    write_config(plan, work / "sweep.toml")
    return work / "sweep.toml"


def write_study(options: Options) -> Path:
    """Write the worlds, their config and the sweep; the sweep's file. Raises `BadConfig` where
    a model is missing.
    """
    config = load_config(preset("mini"))
    models = options.models.resolve()
    largest = SIZES[-1]
    parameters = {size: _parameters(models / size) for size in SIZES}
    backbone = config.engines["backbone"]
    engines = {
        size: EngineConfig(path=str(models / size), arguments=backbone.arguments) for size in SIZES
    }
    execution, answer = (
        msgspec.structs.replace(role, engine=largest, model=largest)
        for role in (config.roles.execution, config.roles.answer)
    )
    config = msgspec.structs.replace(
        config,
        roles=msgspec.structs.replace(config.roles, execution=execution, answer=answer),
        engines={"backbone": backbone, **engines},
        distillation=msgspec.structs.replace(config.distillation, teacher=None),
    )
    plan = Plan(
        title="Capacity in miniature",
        questions=(),
        models={
            size: StudyModel(settings={"model": size, "engine": size}, parameters=parameters[size])
            for size in SIZES
        },
        pairs=(
            Pairs(backbone=SIZES, executor=(largest,)),
            Pairs(backbone=(largest,), executor=SIZES),
            *(Pairs(backbone=(size,), executor=(size,)) for size in SIZES[:-1]),
            Pairs(backbone=SIZES, topology="single_agent"),
        ),
    )
    return write_sweep(config, options, plan, options.world)


def _parameters(model: Path) -> float:
    try:
        return float((model / _WEIGHTS).stat().st_size // _BYTES)
    except OSError as error:
        how = f"`rolegate sft mini-model generalist --size {model.name}` trains one"
        raise BadConfig(f"--models: {model / _WEIGHTS}: {error.strerror}; {how}.") from error
