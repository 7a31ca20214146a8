"""Cells of a sweep. A cell is one configuration of the grid: a topology with models and limits."""

import hashlib
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.baselines.single_agent import PROMPTS, role_alone
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.runtime import adapter_name
from executor_sft.step import config_settings, digest_of
from router.errors import BadConfig, explained
from router.frozen import Frozen
from serving.config.check import problems
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config
from serving.topologies import manager_configs

_ENDPOINT = ("engine", "base_url", "api_key_env", "replicas", "fallbacks", "extra_body")
"""Keys of a role's config about the endpoint of the model, and about requests to it."""


class SweepCell(Frozen):
    """One configuration of a sweep."""

    name: str
    pairs: Pairs
    """Entry of the plan's `pairs` to which the cell belongs."""
    backbone: str
    """Name of the backbone's model in the plan."""
    executor: str | None
    """Name of the executor's model in the plan; None if the backbone works alone."""
    config: Config
    """The plan's config, with the cell's models in the roles."""
    adapter: Path | None
    """Folder of the executor's adapter for the model of `roles.execution`; None without an adapter.
    """

    @property
    def topology(self) -> str:
        """Return the topology: the name for the set of agents that search and answer."""
        return self.pairs.topology

    @property
    def folder(self) -> str:
        """Return the name of the cell's folder, which is unique."""
        plain = re.sub(r"[^\w.+-]+", "-", self.name)
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def version(self) -> str | None:
        """Return the name under which the engine loads the adapter; None without an adapter."""
        return None if self.adapter is None else adapter_name(self.adapter)

    @property
    def roles(self) -> dict[str, RoleConfig]:
        """Return the configs of the roles in the cell, by the role's name: delegation, execution
        and answer, then managers as `managers.NAME`. A model that works alone has the role
        delegation.
        """
        if self.executor is None:
            prompt = self.pairs.prompt or str(PROMPTS / f"{self.topology}.txt")
            return {"delegation": role_alone(self.config, prompt)}
        roles = dict[str, RoleConfig](self.config.roles.by_name.items())
        if self.topology == "host":
            managers = manager_configs(self.config)
            roles |= {f"managers.{name}": role for name, role in managers.items()}
        return roles

    @property
    def engines(self) -> frozenset[str]:
        """Return the names of the engines that the cell needs."""
        return frozenset(role.engine for role in self.roles.values() if role.engine)

    @property
    def settings(self) -> dict[str, object]:
        """Return everything that determines the cell's model calls, by name. Values can be encoded
        as JSON.
        """
        in_cell = {f"{name}, here": role for name, role in self.roles.items()}
        judge = self.config.distillation.judge
        return {
            "topology": self.topology,
            "adapter": self.adapter and digest_of(self.adapter / "adapter_model.safetensors"),
            "engines": {name: self.config.engines[name].path for name in sorted(self.engines)},
            **config_settings(self.config, {"judge": judge, **in_cell}),
        }


def cells_of(plan: Plan) -> list[SweepCell]:
    """Return all cells (combinations of models and topology) of a plan, in the plan's order,
    without duplicates. Raises `BadConfig` if a model does not fit its role.
    """
    config = load_config(Path(plan.config))
    # Adapters are named by the plan, so the config's version is not used
    versions = replace(config.versions, start=None)
    config = replace(config, versions=versions)

    cells = dict[str, SweepCell]()
    for pairs in plan.pairs:
        if pairs.topology == "host" and not config.managers:
            raise BadConfig(
                f"pairs: the topology host needs managers, and {plan.config} has none; add a "
                "table [managers.NAME] to that file."
            )
        for backbone, executor in product(pairs.backbone, pairs.executor or (None,)):
            name = f"{backbone} + {executor}" if executor else backbone
            if pairs.topology != "factorized":
                name = f"{pairs.topology}: {name}"
            adapter = plan.models[executor].adapter if executor else None
            own = _with_models(
                config,
                plan,
                name,
                backbone,
                None if adapter else executor,
            )
            cell = SweepCell(
                name,
                pairs,
                backbone,
                executor,
                own,
                Path(adapter) if adapter else None,
            )
            cells.setdefault(name, cell)
    return list(cells.values())


def _with_models(
    config: Config,
    plan: Plan,
    cell: str,
    backbone: str,
    executor: str | None,
) -> Config:
    """Return the config with the models of a cell. `executor`: None to keep the config's executor.
    Raises `BadConfig`, with the name of the cell, if the resulting config is not valid.
    """
    models = {"delegation": backbone} | ({"execution": executor} if executor else {})
    roles = {
        role: _in_role(getattr(config.roles, role), plan.models[name], name)
        for role, name in models.items()
    }
    config = replace(config, roles=replace(config.roles, **roles))
    for problem in problems(config):
        raise BadConfig(f"{cell}: {problem}")
    return config


def _in_role(
    role: RoleConfig,
    model: StudyModel,
    name: str,
) -> RoleConfig:
    """Return the role with a model of the plan and the model's settings. `name`: the model's name
    in the plan. Raises `BadConfig` for keys that roles do not have.
    """
    described: dict[str, Any] = msgspec.to_builtins(role)
    if model.settings.get("model", role.model) != role.model:
        described = {key: value for key, value in described.items() if key not in _ENDPOINT}
    try:
        return msgspec.convert(described | model.settings, RoleConfig)
    except msgspec.ValidationError as error:
        raise BadConfig(
            f"models.{name}.settings: {explained(error)}; use the keys of [roles.execution]."
        ) from None


def engine_groups(cells: Sequence[SweepCell], at_once: int) -> list[list[SweepCell]]:
    """Return the cells in groups. All engines of a group run at the same time. Engines start
    slowly, so each engine is started only once for all cells of a group.

    Each cell joins the first group that then needs at most `at_once` engines; if there is no such
    group, the cell starts a new group.
    """
    groups = list[list[SweepCell]]()
    for cell in cells:
        for group in groups:
            if len(cell.engines.union(*(other.engines for other in group))) <= at_once:
                group.append(cell)
                break
        else:
            groups.append([cell])
    return groups
