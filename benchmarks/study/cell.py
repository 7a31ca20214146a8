"""A cell of a sweep: one configuration, from its models to its budgets."""

import hashlib
import re
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.study.plan import Plan, StudyModel
from executor_sft.evaluate import adapter_name
from router.errors import BadConfig
from router.trace.call import RoleName
from router.trace.values import TopologyName
from serving.config.check import problems
from serving.config.config import Config, RoleConfig, SearchConfig
from serving.config.file import load_config, located, preset
from serving.topologies import ROLE_OF, role_configs

_SEARCHER = "shipped:prompts/full/searcher.txt"
_PLACE = ("engine", "base_url", "api_key_env", "replicas", "fallbacks", "extra_body")
"""Settings that belong to a model's endpoint, and not to its role."""


class Cell(msgspec.Struct, frozen=True):
    """Who does what."""

    name: str
    topology: TopologyName
    backbone: str
    """A name of the plan's models, as the executor's is."""
    executor: str | None
    max_turns: int
    """Of the executor (K in TBSS 4.1)."""
    max_searches: int

    @property
    def folder(self) -> str:
        """Its name, as a folder may be called; no two cells have the same."""
        plain = re.sub(r"[^\w.+-]+", "-", self.name)
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"


class Prepared(msgspec.Struct, frozen=True):
    """A cell that can be run."""

    cell: Cell
    config: Config
    """With its models in their roles."""
    adapter: Path | None
    """Beside the model of `roles.execution`; None for that model itself."""

    @property
    def version(self) -> str | None:
        """Under which name the adapter is loaded."""
        return None if self.adapter is None else adapter_name(self.adapter)

    @property
    def roles(self) -> dict[RoleName, RoleConfig]:
        """Who works in it, in the order of their work."""
        roles, topology = self.config.roles.by_name, self.cell.topology
        if topology == "factorized":
            return roles
        own = role_configs(self.config)[topology]
        return {"delegation": own} if ROLE_OF[topology] == "delegation" else roles | {"execution": own}

    @property
    def engines(self) -> frozenset[str]:
        """What it needs of the config's."""
        return frozenset(role.engine for role in self.roles.values() if role.engine)


def base_config(plan: Plan) -> Config:
    """What the cells vary. Raises `BadConfig`."""
    return load_config(Path(plan.config) if plan.config else preset(plan.preset or ""))


def prepared(plan: Plan) -> list[Prepared]:
    """All cells, each once, in the order of the plan. Raises `BadConfig`."""
    config = base_config(plan)
    return [_prepared(plan, config, cell) for cell in _cells(plan, config.search)]


def _cells(plan: Plan, search: SearchConfig) -> list[Cell]:
    found: dict[str, Cell] = {}
    for pairs in plan.pairs:
        for turns in plan.max_turns or (search.max_turns,):
            searches = search.max_searches if turns == search.max_turns else turns - 1
            for backbone, executor in product(pairs.backbone, pairs.executor or (None,)):
                cell = Cell(
                    _name(pairs.topology, backbone, executor, turns if turns != search.max_turns else None),
                    pairs.topology,
                    backbone,
                    executor,
                    turns,
                    searches,
                )
                found.setdefault(cell.name, cell)
    return list(found.values())


def _name(topology: TopologyName, backbone: str, executor: str | None, turns: int | None) -> str:
    models = f"{backbone} + {executor}" if executor else backbone
    return (models if topology == "factorized" else f"{topology}: {models}") + (f", K={turns}" if turns else "")


def _prepared(plan: Plan, config: Config, cell: Cell) -> Prepared:
    """Raises `BadConfig` where a model cannot stand in its role."""
    adapter = plan.models[cell.executor].adapter if cell.executor else None
    roles, topologies = config.roles, config.topologies
    roles = msgspec.structs.replace(
        roles, delegation=_in_role(roles.delegation, plan.models[cell.backbone], "delegation", cell.backbone)
    )
    if cell.executor and cell.topology == "searcher":
        searcher = topologies.searcher or msgspec.structs.replace(roles.execution, prompt=located(Path(), _SEARCHER))
        searcher = _in_role(searcher, plan.models[cell.executor], "execution", cell.executor)
        topologies = msgspec.structs.replace(topologies, searcher=searcher)
    elif cell.executor and adapter is None:
        execution = _in_role(roles.execution, plan.models[cell.executor], "execution", cell.executor)
        roles = msgspec.structs.replace(roles, execution=execution)
    search = msgspec.structs.replace(config.search, max_turns=cell.max_turns, max_searches=cell.max_searches)
    versions = msgspec.structs.replace(config.versions, start=None)  # adapters are the plan's to name
    there = msgspec.structs.replace(config, roles=roles, search=search, topologies=topologies, versions=versions)
    for problem in problems(there):
        raise BadConfig(f"{cell.name}: {problem}")
    return Prepared(cell, there, Path(adapter) if adapter else None)


def _in_role(role: RoleConfig, model: StudyModel, stands_in: str, name: str) -> RoleConfig:
    """The role with this model."""
    own: dict[str, Any] = model.delegation if stands_in == "delegation" else model.execution
    settings = model.settings | own
    described = msgspec.to_builtins(role)
    if settings.get("model", role.model) != role.model:
        described = {key: value for key, value in described.items() if key not in _PLACE}
    try:
        return msgspec.convert(described | settings, RoleConfig)
    except msgspec.ValidationError as error:
        raise BadConfig(f"models.{name}.{stands_in}: {error}") from None
