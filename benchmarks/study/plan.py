"""A sweep, as its TOML file describes it: which models stand in which roles, on which questions."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from router.errors import BadConfig
from router.trace.values import TopologyName
from serving.config.file import located

WITH_EXECUTOR = ("factorized", "searcher")
"""Topologies whose executor is a model of its own."""


class StudyModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model that can stand in several roles. What is not said is as in the config's role, but for where it is served:
    a model of another name says that itself, by `engine` or `base_url`, or is a hosted one.
    """

    settings: dict[str, Any] = {}
    """Keys of `[roles.*]`, in whichever role it stands."""
    delegation: dict[str, Any] = {}
    """Further ones, as a backbone or single agent."""
    execution: dict[str, Any] = {}
    """The same, as an executor."""
    adapter: str | None = None
    """The folder of a LoRA adapter, which is loaded beside the model of the config's `[roles.execution]`."""
    parameters: float | None = None
    """How many it has, for the axis of Fig. 2; without it, models stand there as the file orders them."""


class Pairs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every backbone with every executor."""

    backbone: tuple[str, ...]
    executor: tuple[str, ...] = ()
    """None in topologies without one, and in `homogeneous`, where the backbone's model executes too."""
    topology: TopologyName = "factorized"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`sweep.toml`. Paths are relative to it."""

    questions: tuple[str, ...]
    """Files of questions, in any form that `rolegate bench datasets` reads."""
    models: dict[str, StudyModel]
    pairs: tuple[Pairs, ...]
    config: str | None = None
    """The config of everything that does not vary: answerer, judge, retrieval, budgets, engines, prices."""
    preset: str | None = None
    """A shipped config instead."""
    title: str = ""
    rollouts: int = 4
    """Of each question (mean@k)."""
    limit: int | None = None
    """The first questions of each data set only."""
    seed: int = 0
    """Of the first rollout; the next one has the next."""
    temperature: float | None = None
    """Of all roles but the judge; absent for the config's."""
    max_turns: tuple[int, ...] = ()
    """Limits of executor turns; every pair is run with each. Absent for the config's."""
    attribution: bool = False
    """Whether wrong answers are traced to the role that lost them, where a question has a gold decomposition."""
    pilot: int = 5
    """Questions that each pair answers before the cost of the whole is estimated."""
    concurrency: int = 8
    """Questions in flight."""
    engines_at_once: int = 3
    """How many engines of ours may run side by side."""


def read_plan(path: Path) -> Plan:
    """Read and check a file; its paths come back absolute. Raises `BadConfig`, saying what, where and what to do."""
    try:
        plan = msgspec.toml.decode(path.read_bytes(), type=Plan)
    except OSError as error:
        raise BadConfig(f"{path}: cannot be read ({error.strerror}); name a TOML file.") from None
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at `$")
        raise BadConfig(f"{path}: {where.strip('`').lstrip('.') or 'the file'}: {text}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path}: not TOML: {error}") from None
    for problem in _problems(plan):
        raise BadConfig(f"{path}: {problem}")
    return _resolved(plan, path.resolve().parent)


def _problems(plan: Plan) -> list[str]:
    found: list[str] = []
    if (plan.config is None) == (plan.preset is None):
        found.append("config: give either config or preset.")
    least = {"rollouts": 1, "concurrency": 1, "engines_at_once": 1, "limit": 1, "pilot": 0}
    found += [
        f"{name}: {getattr(plan, name)} must be at least {count}."
        for name, count in least.items()
        if (getattr(plan, name) or 0) < count and getattr(plan, name) is not None
    ]
    for name, model in plan.models.items():
        if not re.fullmatch(r"[\w.:/-]+", name):
            found.append(f"models.{name}: name it with letters, digits and . _ - : / only.")
        if model.adapter and (model.settings or model.execution or model.delegation):
            found.append(f"models.{name}: an adapter stands beside the model of [roles.execution]; give nothing else.")
    for number, pairs in enumerate(plan.pairs):
        found += [f"pairs[{number}].{problem}" for problem in _pair_problems(pairs, plan)]
    return found if found or plan.pairs else ["pairs: name at least one backbone with its executor."]


def _pair_problems(pairs: Pairs, plan: Plan) -> list[str]:
    found = [
        f"{role}: there is no model {name!r}; add [models.{name}]."
        for role, names in (("backbone", pairs.backbone), ("executor", pairs.executor))
        for name in names
        if name not in plan.models
    ]
    if found:
        return found
    if not pairs.backbone:
        return ["backbone: name at least one model."]
    if any(plan.models[name].adapter for name in pairs.backbone):
        return ["backbone: an adapter cannot delegate; name a model."]
    needed = pairs.topology in WITH_EXECUTOR
    if needed and not pairs.executor:
        return [f"executor: topology {pairs.topology!r} needs one."]
    return [] if needed or not pairs.executor else [f"executor: topology {pairs.topology!r} has none of its own."]


def _resolved(plan: Plan, base: Path) -> Plan:
    absolute = partial(located, base)

    def settings(given: dict[str, Any]) -> dict[str, Any]:
        return given | ({"prompt": absolute(given["prompt"])} if isinstance(given.get("prompt"), str) else {})

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
    return msgspec.structs.replace(
        plan,
        questions=tuple(map(absolute, plan.questions)),
        config=plan.config and absolute(plan.config),
        models=models,
    )
