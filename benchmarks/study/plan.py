"""Plan of a sweep, read from TOML: models, their roles, and questions."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from router.errors import BadConfig
from router.protocol.sub_queries import normal_question
from serving.config.file import located

Count = Annotated[int, Meta(ge=1)]
ModelName = Annotated[str, Meta(pattern=r"^[\w.:/-]+$")]


class StudyModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Model that can work in several roles. Missing keys are those of the config's role, except for
    the endpoint: a model with another name is hosted, or gives `engine` or `base_url`.
    """

    settings: dict[str, Any] = {}
    """Keys of `[roles.*]` in every role; a model whose roles differ has a name for each."""
    adapter: str | None = None
    """Folder of a LoRA adapter on the model of the config's `[roles.execution]`."""
    parameters: float | None = None
    """Number of parameters, for the axis of Fig. 2; without it, models are in the order of the
    file.
    """


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All combinations of backbones and executors."""

    backbone: Annotated[tuple[str, ...], Meta(min_length=1)]
    executor: tuple[str, ...] = ()
    """Empty where the backbone's model works alone."""
    topology: Literal["factorized", "host", "single_agent", "no_retrieval"] = "factorized"
    prompt: str | None = None
    """File with the system prompt of a model that works alone; absent for the shipped one."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of `sweep.toml`. Paths are relative to the file."""

    questions: tuple[str, ...]
    """Files of questions, in any format that `rolegate bench datasets` reads."""
    models: dict[ModelName, StudyModel]
    pairs: Annotated[tuple[Pairs, ...], Meta(min_length=1)]
    config: str
    """Config of everything that does not vary: answerer, judge, retrieval, limits, engines, prices;
    such as `shipped:presets/mini.toml`.
    """
    title: str = ""
    rollouts: Count = 4
    """Rollouts per question (mean@k)."""
    limit: Count | None = None
    """Max questions of each data set; the first ones are taken."""
    seed: int = 0
    """Seed of the first rollout; each next rollout adds 1."""
    temperature: float | None = None
    """Temperature of all roles but the judge; None for the config's."""
    concurrency: Count = 8
    """Concurrent questions."""
    engines_at_once: Count = 3
    """Max engines that run at the same time."""


def read_plan(path: Path) -> Plan:
    """Read and check a plan; return it with absolute paths. Raises `BadConfig`."""
    try:
        plan = msgspec.toml.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file.") from None
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise BadConfig(f"{path}: {where.strip('`').lstrip('.') or 'the file'}: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    for name, model in plan.models.items():
        if model.adapter and model.settings:
            raise BadConfig(
                f"{path}: models.{name}: an adapter uses the model of [roles.execution]; "
                "remove its settings."
            )
    for number, pairs in enumerate(plan.pairs):
        if problem := _problem(pairs, plan):
            raise BadConfig(f"{path}: pairs[{number}].{problem}")
    return _resolved(plan, path.resolve().parent)


def _problem(pairs: Pairs, plan: Plan) -> str | None:
    for role, names in (("backbone", pairs.backbone), ("executor", pairs.executor)):
        for name in names:
            if name not in plan.models:
                return f"{role}: unknown model {name!r}; add [models.{name}]."
    if any(plan.models[name].adapter for name in pairs.backbone):
        return "backbone: an adapter cannot delegate; name a model."
    if (pairs.topology in ("factorized", "host")) == bool(pairs.executor):
        return None
    remedy = "has no executors; remove them" if pairs.executor else "needs executors; name some"
    return f"executor: topology {pairs.topology!r} {remedy}."


def _resolved(plan: Plan, base: Path) -> Plan:
    absolute = partial(located, base)

    def resolved(model: StudyModel) -> StudyModel:
        settings = model.settings
        if isinstance(prompt := settings.get("prompt"), str):
            settings = settings | {"prompt": absolute(prompt)}
        adapter = model.adapter and absolute(model.adapter)
        return msgspec.structs.replace(model, settings=settings, adapter=adapter)

    return msgspec.structs.replace(
        plan,
        questions=tuple(map(absolute, plan.questions)),
        config=absolute(plan.config),
        models={name: resolved(model) for name, model in plan.models.items()},
        pairs=tuple(
            msgspec.structs.replace(pairs, prompt=pairs.prompt and absolute(pairs.prompt))
            for pairs in plan.pairs
        ),
    )


def questions_of(plan: Plan) -> list[BenchmarkQuestion]:
    """Read the questions of all files, each once, the first `limit` of each data set. Their ids are
    made unique. Raises `BadCorpus` with file and line.
    """
    seen = set[tuple[str, str]]()
    ids = Counter[str]()
    of_dataset = Counter[str]()
    chosen: list[BenchmarkQuestion] = []
    for entry in (entry for file in plan.questions for entry in read_entries(Path(file))):
        question = entry.question
        key = question.dataset, normal_question(question.question)
        if key in seen:
            continue
        seen.add(key)
        ids[question.id] += 1  # before the limit, so that ids do not depend on it
        if plan.limit is not None and of_dataset[question.dataset] >= plan.limit:
            continue
        of_dataset[question.dataset] += 1
        if ids[question.id] > 1:
            question = msgspec.structs.replace(question, id=f"{question.id}#{ids[question.id]}")
        chosen.append(question)
    return chosen
