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
    """Keys of `[roles.*]` in every role."""
    delegation: dict[str, Any] = {}
    """More keys as backbone or single agent."""
    execution: dict[str, Any] = {}
    """More keys as executor."""
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
    """Empty in topologies without executor, and in `homogeneous`, where the backbone's model
    executes.
    """
    topology: Literal["factorized", "host", "homogeneous", "single_agent", "no_retrieval"] = (
        "factorized"
    )


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of `sweep.toml`. Paths are relative to the file."""

    questions: tuple[str, ...]
    """Files of questions, in any format that `rolegate bench datasets` reads."""
    models: dict[ModelName, StudyModel]
    pairs: Annotated[tuple[Pairs, ...], Meta(min_length=1)]
    config: str | None = None
    """Config of everything that does not vary: answerer, judge, retrieval, budgets, engines,
    prices.
    """
    preset: str | None = None
    """Name of a shipped config, instead of `config`."""
    title: str = ""
    rollouts: Count = 4
    """Rollouts per question (mean@k)."""
    limit: Count | None = None
    """Max questions of each data set; the first ones are taken."""
    seed: int = 0
    """Seed of the first rollout; each next rollout adds 1."""
    temperature: float | None = None
    """Temperature of all roles but the judge; None for the config's."""
    max_turns: tuple[Count, ...] = ()
    """Limits of executor turns; each pair runs with each limit. Empty for the config's."""
    attribution: bool = False
    """Trace wrong answers to the role that lost them, where a question has a gold decomposition."""
    pilot: Annotated[int, Meta(ge=0)] = 5
    """Questions that each pair answers before the cost of the sweep is estimated."""
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
    if (plan.config is None) == (plan.preset is None):
        raise BadConfig(f"{path}: config: give either config or preset.")
    for name, model in plan.models.items():
        if model.adapter and (model.settings or model.execution or model.delegation):
            raise BadConfig(
                f"{path}: models.{name}: an adapter uses the model of [roles.execution]; "
                "remove its other keys."
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

    def settings(given: dict[str, Any]) -> dict[str, Any]:
        prompt = given.get("prompt")
        return given | {"prompt": absolute(prompt)} if isinstance(prompt, str) else given

    models = {
        name: msgspec.structs.replace(
            model,
            settings=settings(model.settings),
            delegation=settings(model.delegation),
            execution=settings(model.execution),
            adapter=model.adapter and absolute(model.adapter),
        )
        for name, model in plan.models.items()
    }
    questions = tuple(map(absolute, plan.questions))
    config = plan.config and absolute(plan.config)
    return msgspec.structs.replace(plan, questions=questions, config=config, models=models)


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
