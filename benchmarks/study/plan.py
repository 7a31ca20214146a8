"""A sweep, as its TOML file describes it: which models stand in which roles, on which questions."""

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
    """A model that can stand in several roles. What is not said is as in the config's role, but for
    where it is served: a model of another name says that itself, by `engine` or `base_url`, or is a
    hosted one.
    """

    settings: dict[str, Any] = {}
    """Keys of `[roles.*]`, in whichever role it stands."""
    delegation: dict[str, Any] = {}
    """Further ones, as a backbone or single agent."""
    execution: dict[str, Any] = {}
    """The same, as an executor."""
    adapter: str | None = None
    """The folder of a LoRA adapter, which is loaded beside the model of the config's
    `[roles.execution]`.
    """
    parameters: float | None = None
    """Its number of them, for the axis of Fig. 2; without it, models stand there as the file
    orders them.
    """


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every backbone with every executor."""

    backbone: Annotated[tuple[str, ...], Meta(min_length=1)]
    executor: tuple[str, ...] = ()
    """None in topologies without one, and in `homogeneous`, where the backbone's model executes
    too.
    """
    topology: Literal["factorized", "host", "homogeneous", "single_agent", "no_retrieval"] = (
        "factorized"
    )


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sweep.toml`. Paths are relative to it."""

    questions: tuple[str, ...]
    """Files of questions, in any form that `rolegate bench datasets` reads."""
    models: dict[ModelName, StudyModel]
    pairs: Annotated[tuple[Pairs, ...], Meta(min_length=1)]
    config: str | None = None
    """The config of everything that does not vary: answerer, judge, retrieval, budgets,
    engines, prices.
    """
    preset: str | None = None
    """A shipped config instead."""
    title: str = ""
    rollouts: Count = 4
    """Of each question (mean@k)."""
    limit: Count | None = None
    """The first questions of each data set only."""
    seed: int = 0
    """Of the first rollout; the next one has the next."""
    temperature: float | None = None
    """Of all roles but the judge; absent for the config's."""
    max_turns: tuple[Count, ...] = ()
    """Limits of executor turns; every pair is run with each. Absent for the config's."""
    attribution: bool = False
    """Trace wrong answers to the role that lost them, where a question has a gold decomposition."""
    pilot: Annotated[int, Meta(ge=0)] = 5
    """Questions that each pair answers before the cost of the whole is estimated."""
    concurrency: Count = 8
    """Questions in flight."""
    engines_at_once: Count = 3
    """Engines of ours that may run side by side."""


def read_plan(path: Path) -> Plan:
    """Read and check a file; its paths come back absolute. Raises `BadConfig`, saying what,
    where and what to do.
    """
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
            beside = "an adapter stands beside the model of [roles.execution]"
            raise BadConfig(f"{path}: models.{name}: {beside}; give nothing else.")
    for number, pairs in enumerate(plan.pairs):
        if problem := _problem(pairs, plan):
            raise BadConfig(f"{path}: pairs[{number}].{problem}")
    return _resolved(plan, path.resolve().parent)


def _problem(pairs: Pairs, plan: Plan) -> str | None:
    for role, names in (("backbone", pairs.backbone), ("executor", pairs.executor)):
        for name in names:
            if name not in plan.models:
                return f"{role}: there is no model {name!r}; add [models.{name}]."
    if any(plan.models[name].adapter for name in pairs.backbone):
        return "backbone: an adapter cannot delegate; name a model."
    if (pairs.topology in ("factorized", "host")) == bool(pairs.executor):
        return None
    return (
        f"executor: topology {pairs.topology!r} "
        f"{'has none of its own' if pairs.executor else 'needs one'}."
    )


def _resolved(plan: Plan, base: Path) -> Plan:
    absolute = partial(located, base)

    def settings(given: dict[str, Any]) -> dict[str, Any]:
        return given | (
            {"prompt": absolute(given["prompt"])} if isinstance(given.get("prompt"), str) else {}
        )

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
    """Read the questions of all files, each once, the first `limit` of each data set; no two have
    the same id. Raises `BadCorpus`, naming file and line.
    """
    seen = set[tuple[str, str]]()
    ids = Counter[str]()
    of_dataset = Counter[str]()
    chosen: list[BenchmarkQuestion] = []
    for entry in (entry for file in plan.questions for entry in read_entries(Path(file))):
        question = entry.question
        same = question.dataset, normal_question(question.question)
        if same in seen:
            continue
        seen.add(same)
        ids[question.id] += 1  # before the limit, so that a higher one gives no question another id
        if plan.limit is not None and of_dataset[question.dataset] >= plan.limit:
            continue
        of_dataset[question.dataset] += 1
        apart = f"{question.id}#{ids[question.id]}" if ids[question.id] > 1 else question.id
        chosen.append(msgspec.structs.replace(question, id=apart))
    return chosen
