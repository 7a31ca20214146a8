"""Cells of a sweep: configurations with their models, limits and budgets."""

import hashlib
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.study.plan import Plan, StudyModel
from executor_sft.runtime import adapter_name
from executor_sft.step import config_settings, digest_of
from router.errors import BadConfig
from router.trace.values import TopologyName
from serving.config.check import problems
from serving.config.config import Config, RoleConfig
from serving.config.file import load_config, preset
from serving.files import sha256_of
from serving.topologies import ROLE_OF, manager_configs, role_configs

_ENDPOINT = ("engine", "base_url", "api_key_env", "replicas", "fallbacks", "extra_body")
"""Keys that belong to a model's endpoint and not to its role."""


class SweepCell(msgspec.Struct, frozen=True):
    """Configuration of a sweep."""

    name: str
    topology: TopologyName
    backbone: str
    """Name of a model of the plan, like `executor`."""
    executor: str | None
    config: Config
    """Config with the cell's models and limits."""
    adapter: Path | None
    """Adapter on the model of `roles.execution`; None for that model without one."""

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
        roles = dict[str, RoleConfig](self.config.roles.by_name.items())
        topology = self.topology
        if topology == "factorized":
            return roles
        if topology == "host":
            return roles | {
                f"managers.{name}": role for name, role in manager_configs(self.config).items()
            }
        own = role_configs(self.config)[topology]
        if ROLE_OF[topology] == "delegation":
            return {"delegation": own}
        return roles | {"execution": own}

    @property
    def roles_and_judge(self) -> dict[str, RoleConfig]:
        """Return the roles, and the judge if the config has one."""
        judge = self.config.distillation.judge
        return self.roles | ({"judge": judge} if judge else {})

    @property
    def engines(self) -> frozenset[str]:
        """Return the names of the engines that the cell needs."""
        return frozenset(role.engine for role in self.roles.values() if role.engine)

    def settings(self, weights: Callable[[str], str]) -> dict[str, object]:
        """Return everything that its calls depend on, as JSON. `weights`: `weights_of`, cached."""
        roles = self.roles_and_judge
        config = self.config
        engines = {
            name: config.engines[role.engine].path for name, role in roles.items() if role.engine
        }
        in_cell = {f"{name}, here": role for name, role in self.roles.items()}
        return {
            "topology": self.topology,
            "adapter": self.adapter and digest_of(self.adapter / "adapter_model.safetensors"),
            "weights": {name: weights(path) for name, path in engines.items()},
            **config_settings(config, {"judge": roles.get("judge"), **in_cell}),
        }


def cells_of(plan: Plan) -> list[SweepCell]:
    """Return all cells, each once, in the order of the plan. Raises `BadConfig` if a model does not
    fit its role.
    """
    config = load_config(Path(plan.config) if plan.config else preset(plan.preset or ""))
    # The plan names the adapters
    versions = msgspec.structs.replace(config.versions, start=None)
    config = msgspec.structs.replace(config, versions=versions)

    cells: dict[str, SweepCell] = {}
    for pairs in plan.pairs:
        if pairs.topology == "host" and not config.managers:
            raise BadConfig(
                "pairs: topology host: the config has no managers; add [managers.NAME]."
            )
        choices = product(
            plan.max_turns or (config.search.max_turns,), pairs.backbone, pairs.executor or (None,)
        )
        for turns, backbone, executor in choices:
            name = f"{backbone} + {executor}" if executor else backbone
            if pairs.topology != "factorized":
                name = f"{pairs.topology}: {name}"
            if turns != config.search.max_turns:
                name += f", K={turns}"
            if name not in cells:
                adapter = plan.models[executor].adapter if executor else None
                own = _with_models(
                    _with_turns(config, turns), plan, name, backbone, None if adapter else executor
                )
                folder = Path(adapter) if adapter else None
                cells[name] = SweepCell(
                    name,
                    pairs.topology,
                    backbone,
                    executor,
                    own,
                    folder,
                )
    return list(cells.values())


def _with_turns(config: Config, turns: int) -> Config:
    """Return the config with a limit of executor turns."""
    search = config.search
    if turns != search.max_turns:
        search = msgspec.structs.replace(search, max_turns=turns, max_searches=turns - 1)
    return msgspec.structs.replace(config, search=search)


def _with_models(
    config: Config,
    plan: Plan,
    cell: str,
    backbone: str,
    executor: str | None,
) -> Config:
    """Return the config with the models of a cell."""
    roles = {
        "delegation": _in_role(
            config.roles.delegation, plan.models[backbone], "delegation", backbone
        )
    }
    if executor:
        roles["execution"] = _in_role(
            config.roles.execution, plan.models[executor], "execution", executor
        )
    config = msgspec.structs.replace(config, roles=msgspec.structs.replace(config.roles, **roles))
    for problem in problems(config):
        raise BadConfig(f"{cell}: {problem}")
    return config


def _in_role(
    role: RoleConfig,
    model: StudyModel,
    role_name: str,
    name: str,
) -> RoleConfig:
    """Return the role with this model."""
    settings: dict[str, Any] = model.settings | (
        model.delegation if role_name == "delegation" else model.execution
    )
    described = msgspec.to_builtins(role)
    if settings.get("model", role.model) != role.model:
        described = {key: value for key, value in described.items() if key not in _ENDPOINT}
    try:
        return msgspec.convert(described | settings, RoleConfig)
    except msgspec.ValidationError as error:
        raise BadConfig(f"models.{name}.{role_name}: {error}") from None


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


def weights_of(path: str) -> str:
    """Return the SHA-256 over config and weights in a model's folder, or `path` itself if it is not
    a folder. Takes seconds per GB. Raises `OSError`.
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    files = sorted(file for name in ("config.json", "*.safetensors") for file in folder.glob(name))
    lines = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
