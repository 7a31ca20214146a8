"""Cells of a sweep: configurations with their models and limits."""

import hashlib
import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.baselines.single_agent import PROMPTS, role_alone
from benchmarks.study.plan import Pairs, Plan, StudyModel
from executor_sft.runtime import adapter_name
from executor_sft.step import config_settings, digest_of
from router.errors import BadConfig
from serving.config.check import problems
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config
from serving.topologies import manager_configs

_ENDPOINT = ("engine", "base_url", "api_key_env", "replicas", "fallbacks", "extra_body")
"""Keys that belong to a model's endpoint and not to its role."""


class SweepCell(msgspec.Struct, frozen=True):
    """Configuration of a sweep."""

    name: str
    pairs: Pairs
    """Pairs that it is one of."""
    backbone: str
    """Name of a model of the plan, like `executor`."""
    executor: str | None
    config: Config
    """Config with the cell's models."""
    adapter: Path | None
    """Adapter on the model of `roles.execution`; None for that model without one."""

    @property
    def topology(self) -> str:
        """Return the way to answer."""
        return self.pairs.topology

    @property
    def folder(self) -> str:
        """Return a unique folder name."""
        plain = re.sub(r"[^\w.+-]+", "-", self.name)
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def version(self) -> str | None:
        """Return the name under which the adapter is loaded."""
        return None if self.adapter is None else adapter_name(self.adapter)

    @property
    def roles(self) -> dict[str, RoleConfig]:
        """Return the roles that work in the cell, in the order of their work; managers come last,
        as `managers.NAME`.
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
        """Return everything that its calls depend on, as JSON."""
        in_cell = {f"{name}, here": role for name, role in self.roles.items()}
        judge = self.config.distillation.judge
        return {
            "topology": self.topology,
            "adapter": self.adapter and digest_of(self.adapter / "adapter_model.safetensors"),
            "engines": {name: self.config.engines[name].path for name in sorted(self.engines)},
            **config_settings(self.config, {"judge": judge, **in_cell}),
        }


def cells_of(plan: Plan) -> list[SweepCell]:
    """Return all cells, each once, in the order of the plan. Raises `BadConfig` if a model does not
    fit its role.
    """
    config = load_config(Path(plan.config))
    # The plan names the adapters
    versions = msgspec.structs.replace(config.versions, start=None)
    config = msgspec.structs.replace(config, versions=versions)

    cells: dict[str, SweepCell] = {}
    for pairs in plan.pairs:
        if pairs.topology == "host" and not config.managers:
            raise BadConfig(
                "pairs: topology host: the config has no managers; add [managers.NAME]."
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
    """Return the config with the models of a cell."""
    models = {"delegation": backbone} | ({"execution": executor} if executor else {})
    roles = {
        role: _in_role(getattr(config.roles, role), plan.models[name], name)
        for role, name in models.items()
    }
    config = msgspec.structs.replace(config, roles=msgspec.structs.replace(config.roles, **roles))
    for problem in problems(config):
        raise BadConfig(f"{cell}: {problem}")
    return config


def _in_role(
    role: RoleConfig,
    model: StudyModel,
    name: str,
) -> RoleConfig:
    """Return the role with this model."""
    described: dict[str, Any] = msgspec.to_builtins(role)
    if model.settings.get("model", role.model) != role.model:
        described = {key: value for key, value in described.items() if key not in _ENDPOINT}
    try:
        return msgspec.convert(described | model.settings, RoleConfig)
    except msgspec.ValidationError as error:
        raise BadConfig(f"models.{name}.settings: {error}") from None


def engine_groups(cells: Sequence[SweepCell], at_once: int) -> list[list[SweepCell]]:
    """Group cells that share engines, because engines start slowly. Each cell joins the first group
    that then needs at most `at_once` engines, or else starts a new group.
    """
    groups: list[list[SweepCell]] = []
    for cell in cells:
        for group in groups:
            if len(cell.engines.union(*(other.engines for other in group))) <= at_once:
                group.append(cell)
                break
        else:
            groups.append([cell])
    return groups
