"""Run the study of the TBSS paper (sections 4.2 to 4.4) in miniature. Models of three sizes work as
backbones, as executors and as single agents, on questions about two unseen mini worlds, with real
vLLM and real retrieval.

The models are part of the project; docs/LOG.md describes their training. After an interruption, the
same command with the same folder resumes the study.
"""

from pathlib import Path

from msgspec.structs import replace

from benchmarks import harness
from benchmarks.study import report, sweep
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.command import Count
from executor_sft.miniworld.compositional import CompositionalWorld, Kind
from executor_sft.miniworld.export import export, write_config, write_corpus
from executor_sft.miniworld.world import World
from router.errors import BadConfig
from serving.config.config import EngineConfig
from serving.config.file import load_config, preset

SIZES = ("small", "medium", "large")
"""Names of the models, from the smallest to the largest."""
MODELS = Path(__file__).resolve().parent / "models"
_WEIGHTS = "model.safetensors"
_ALONE = "shipped:prompts/mini/agent.txt"
"""Prompt with which the models were trained to work as single agents."""
_BYTES = 2
"""Bytes per parameter in a file of weights."""


class Options(harness.Options):
    """Options of the study."""

    work: Path
    """folder for worlds, results and report; an unfinished study in this folder is resumed"""
    worlds: tuple[int, ...] = (21, 22)
    """seeds of the worlds"""
    questions: Count = 75
    """number of questions per world"""
    rollouts: Count = 4
    """number of answers to each question with each combination of models"""
    world: Kind = "mini"
    """kind of the worlds: mini (the shipped models were trained on such worlds), or compositional
    (with questions that nest more deeply)
    """
    models: Path = MODELS
    """folder with the models to compare, in its subfolders small, medium and large (default: the
    shipped models)
    """


async def measure(options: Options) -> sweep.Figures:
    """Write worlds and plan, run the sweep, and write the report. Raises `BadConfig` if a model is
    missing, and the errors of the sweep.
    """
    plan = write_study(options)
    results = plan.parent / "results"
    figures = await sweep.measure(sweep.Options(plan=plan, out=results))
    report.measure(report.Options(results=results, out=plan.parent / "report"))
    return figures


def write_study(options: Options) -> Path:
    """Write the worlds, a config with their documents, and the plan of the sweep. Return the path
    of the plan.

    All worlds are in one index. This is possible because no two worlds have a name in common.
    Raises `BadConfig` if a model is missing.
    """
    config = load_config(preset("mini"))
    models = options.models.resolve()
    largest = SIZES[-1]
    parameters = {size: _parameters(models / size) for size in SIZES}
    work = options.work.resolve()
    folders = [work / f"world-{seed}" for seed in options.worlds]
    # Files in the same index need different names
    corpora = [folder / f"{folder.name}.jsonl" for folder in folders]
    for seed, folder, corpus in zip(options.worlds, folders, corpora, strict=True):
        if options.world == "compositional":
            world = CompositionalWorld(seed, "test", options.questions, folder.name)
            write_corpus(folder, world.passages, questions=world.questions)
        else:
            export(World(seed, "test"), folder, options.questions, folder.name)
        (folder / "corpus.jsonl").replace(corpus)

    backbone = config.engines["backbone"]
    engines = {
        size: EngineConfig(path=str(models / size), arguments=backbone.arguments) for size in SIZES
    }
    execution, answer = (
        replace(role, engine=largest, model=largest)
        for role in (config.roles.execution, config.roles.answer)
    )
    config = replace(
        config,
        roles=replace(config.roles, execution=execution, answer=answer),
        engines={"backbone": backbone, **engines},
        distillation=replace(config.distillation, teacher=None),
        retrieval=replace(
            config.retrieval, documents=tuple(map(str, corpora)), index=str(work / "index")
        ),
        search=replace(config.search, vocabulary=None),
        server=replace(config.server, store=f"sqlite:///{work}/runs.db"),
        versions=replace(config.versions, start=None),
    )
    write_config(config, work / "rolegate.toml")
    plan = Plan(
        title="Capacity in miniature",
        config="rolegate.toml",
        questions=tuple(f"{folder.name}/questions.jsonl" for folder in folders),
        models={
            size: StudyModel(settings={"model": size, "engine": size}, parameters=parameters[size])
            for size in SIZES
        },
        pairs=(
            Pairs(backbone=SIZES, executor=(largest,)),
            Pairs(backbone=(largest,), executor=SIZES),
            *(Pairs(backbone=(size,), executor=(size,)) for size in SIZES[:-1]),
            Pairs(backbone=SIZES, topology="single_agent", prompt=_ALONE),
        ),
        rollouts=options.rollouts,
        temperature=0.3,
        concurrency=32,
    )
    write_config(plan, work / "sweep.toml")
    return work / "sweep.toml"


def _parameters(model: Path) -> float:
    """Return the number of parameters of a model, computed from the size of its weights file.
    Raises `BadConfig` if there is no such file.
    """
    try:
        return float((model / _WEIGHTS).stat().st_size // _BYTES)
    except OSError as error:
        train = f"train it with `rolegate sft mini-model generalist --size {model.name}`"
        raise BadConfig(f"--models: {model / _WEIGHTS}: {error.strerror}; {train}.") from error
