"""Plan of a sweep, read from a TOML file: models, their roles, and questions."""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from benchmarks.datasets.question import BenchmarkQuestion
from benchmarks.datasets.reader import read_entries
from executor_sft.command import Count
from executor_sft.jsonl import read_json
from router.errors import BadConfig
from router.frozen import Frozen
from router.protocol.sub_queries import normal_question
from serving.config.file import located

ModelName = Annotated[str, Meta(pattern=r"^[\w.:/-]+$")]


class StudyModel(Frozen, forbid_unknown_fields=True, kw_only=True):
    """A model that can work in several roles.

    Keys that are missing in `settings` have the values of the config's role. But if `settings` has
    another `model` than the config's role, the role's keys about the endpoint do not apply.
    `settings` must then have `engine` or `base_url`, unless the model is called through LiteLLM.
    """

    settings: dict[str, Any] = {}
    """Keys as in a section `[roles.*]` of the config. They apply in every role of the model. A
    model that needs different keys in two roles is listed twice, with two names.
    """
    adapter: str | None = None
    """Folder of a LoRA adapter for the model of the config's `[roles.execution]`."""
    parameters: float | None = None
    """Number of parameters. It is the position of the model in Fig. 2 of the report; if any model
    has none, models are placed in the order of the plan.
    """


class Pairs(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Configurations to run: each backbone is combined with each executor."""

    backbone: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Names of the backbones, which are keys of the plan's `models`."""
    executor: tuple[str, ...] = ()
    """Names of the executors, which are keys of the plan's `models`; empty if the backbone works
    alone.
    """
    topology: Literal["factorized", "host", "single_agent", "no_retrieval"] = "factorized"
    """Name for the set of agents that search and answer. In `single_agent` and `no_retrieval`, the
    backbone works alone.
    """
    prompt: str | None = None
    """File with the system prompt of a model that works alone; None for the shipped prompt."""


class Plan(Frozen, forbid_unknown_fields=True, kw_only=True):
    """Content of a plan's file, such as `sweep.toml`. Paths in it are relative to the file."""

    questions: tuple[str, ...]
    """Files of questions, in any format that `rolegate bench datasets` can read."""
    models: dict[ModelName, StudyModel]
    pairs: Annotated[tuple[Pairs, ...], Meta(min_length=1)]
    config: str
    """Config file, such as `shipped:presets/mini.toml`, with everything that all cells share:
    answerer, judge, retrieval, limits, engines and prices.
    """
    title: str = ""
    """Title of the report."""
    rollouts: Count = 4
    """Number of answers to each question in each cell (mean@k)."""
    limit: Count | None = None
    """Use only this number of questions of each data set, the first ones. None for all questions.
    """
    seed: int = 0
    """Seed of the first rollout of a question. The seed of each further rollout is higher by 1."""
    temperature: float | None = None
    """Sampling temperature of all roles but the judge; None for the temperatures in the config."""
    concurrency: Count = 8
    """Number of questions to answer at the same time."""
    engines_at_once: Count = 3
    """Max number of engines that run at the same time."""


def read_plan(path: Path) -> Plan:
    """Return the plan in the file `path`, with absolute paths. Raises `BadConfig` if the plan is
    invalid.
    """
    advice = "name a TOML file with the keys of the class Plan in benchmarks/study/plan.py"
    plan = read_json(path, Plan, advice, msgspec.toml.decode)
    for name, model in plan.models.items():
        if model.adapter and model.settings:
            raise BadConfig(
                f"{path}: models.{name}: has both adapter and settings, but an adapter always uses "
                "the model and the settings of [roles.execution]; remove settings."
            )
    for number, pairs in enumerate(plan.pairs):
        if problem := _problem(pairs, plan):
            raise BadConfig(f"{path}: pairs[{number}].{problem}")
    return _resolved(plan, path.resolve().parent)


def _problem(pairs: Pairs, plan: Plan) -> str | None:
    """Return a message about the first problem of an entry of `pairs`; it begins with the key.
    Return None if the entry is valid.
    """
    for role, names in (("backbone", pairs.backbone), ("executor", pairs.executor)):
        for name in names:
            if name not in plan.models:
                return f"{role}: unknown model {name!r}; add a table [models.{name}]."
    if any(plan.models[name].adapter for name in pairs.backbone):
        return "backbone: an adapter cannot delegate; name a model without adapter."
    if (pairs.topology in ("factorized", "host")) == bool(pairs.executor):
        return None
    remedy = "has no executors; remove this key" if pairs.executor else "needs executors; name some"
    return f"executor: topology {pairs.topology!r} {remedy}."


def _resolved(plan: Plan, base: Path) -> Plan:
    """Return the plan with absolute paths. `base`: folder of the plan's file."""
    absolute = partial(located, base)

    def resolved(model: StudyModel) -> StudyModel:
        settings = model.settings
        if isinstance(prompt := settings.get("prompt"), str):
            settings = settings | {"prompt": absolute(prompt)}
        adapter = model.adapter and absolute(model.adapter)
        return replace(model, settings=settings, adapter=adapter)

    return replace(
        plan,
        questions=tuple(map(absolute, plan.questions)),
        config=absolute(plan.config),
        models={name: resolved(model) for name, model in plan.models.items()},
        pairs=tuple(
            replace(pairs, prompt=pairs.prompt and absolute(pairs.prompt)) for pairs in plan.pairs
        ),
    )


def questions_of(plan: Plan) -> list[BenchmarkQuestion]:
    """Return the questions of all files of the plan, without duplicates, and at most `limit` of
    each data set. If an id occurs again, a number is added to it. Raises `BadCorpus`, with file and
    line, for an invalid row.
    """
    seen = set[tuple[str, str]]()
    ids = Counter[str]()
    of_dataset = Counter[str]()
    chosen = list[BenchmarkQuestion]()
    for entry in (entry for file in plan.questions for entry in read_entries(Path(file))):
        question = entry.question
        key = question.dataset, normal_question(question.question)
        if key in seen:
            continue
        seen.add(key)
        ids[question.id] += 1  # also over the limit, so that ids do not depend on the limit
        if plan.limit is not None and of_dataset[question.dataset] >= plan.limit:
            continue
        of_dataset[question.dataset] += 1
        if ids[question.id] > 1:
            question = replace(question, id=f"{question.id}#{ids[question.id]}")
        chosen.append(question)
    return chosen
