"""The cells of a sweep: each is one configuration, from its models to its budgets."""

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

_PLACE = ("engine", "base_url", "api_key_env", "replicas", "fallbacks", "extra_body")
"""Settings that belong to a model's endpoint, and not to its role."""


class Cell(msgspec.Struct, frozen=True):
    """A configuration that can be run."""

    name: str
    topology: TopologyName
    backbone: str
    """A name of the plan's models, as the executor's is."""
    executor: str | None
    config: Config
    """With its models in their roles, and its limits."""
    adapter: Path | None
    """Beside the model of `roles.execution`; None for that model itself."""

    @property
    def folder(self) -> str:
        """Its name, as a folder may be called; no two cells have the same."""
        plain = re.sub(r"[^\w.+-]+", "-", self.name)
        return f"{plain}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def version(self) -> str | None:
        """The name under which the adapter is loaded."""
        return None if self.adapter is None else adapter_name(self.adapter)

    @property
    def roles(self) -> dict[str, RoleConfig]:
        """The roles that work in it, in the order of their work, and then managers' as
        `managers.NAME`.
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
        return (
            {"delegation": own} if ROLE_OF[topology] == "delegation" else roles | {"execution": own}
        )

    @property
    def roles_and_judge(self) -> dict[str, RoleConfig]:
        """The same, with the judge of its answers where the config has one."""
        judge = self.config.distillation.judge
        return self.roles | ({"judge": judge} if judge else {})

    @property
    def engines(self) -> frozenset[str]:
        """The engines of the config that it needs."""
        return frozenset(role.engine for role in self.roles.values() if role.engine)

    def settings(self, weights: Callable[[str], str]) -> dict[str, object]:
        """Everything that makes its calls what they are, as JSON. `weights`: `weights_of`,
        remembered.
        """
        roles = self.roles_and_judge
        config = self.config
        engines = {
            name: config.engines[role.engine].path for name, role in roles.items() if role.engine
        }
        named: dict[str, RoleConfig | None] = {
            f"{name}, here": role for name, role in self.roles.items()
        }
        return {
            "topology": self.topology,
            "adapter": self.adapter and digest_of(self.adapter / "adapter_model.safetensors"),
            "weights": {name: weights(path) for name, path in engines.items()},
            **config_settings(config, {"judge": roles.get("judge"), **named}),
        }


def cells_of(plan: Plan) -> list[Cell]:
    """All cells, each once, in the order of the plan. Raises `BadConfig` where a model cannot
    stand in a role.
    """
    config = load_config(Path(plan.config) if plan.config else preset(plan.preset or ""))
    # Adapters are the plan's to name
    versions = msgspec.structs.replace(config.versions, start=None)
    config, search = msgspec.structs.replace(config, versions=versions), config.search
    cells: dict[str, Cell] = {}
    for pairs in plan.pairs:
        if pairs.topology == "host" and not config.managers:
            raise BadConfig(
                "pairs: topology host: the config has no managers; add [managers.NAME]."
            )
        for turns in plan.max_turns or (search.max_turns,):
            limited = msgspec.structs.replace(search, max_turns=turns, max_searches=turns - 1)
            varied = msgspec.structs.replace(
                config, search=search if turns == search.max_turns else limited
            )
            for backbone, executor in product(pairs.backbone, pairs.executor or (None,)):
                models = f"{backbone} + {executor}" if executor else backbone
                name = models if pairs.topology == "factorized" else f"{pairs.topology}: {models}"
                if turns != search.max_turns:
                    name += f", K={turns}"
                if name not in cells:
                    adapter = plan.models[executor].adapter if executor else None
                    whole = _with_models(
                        varied, plan, name, backbone, None if adapter else executor
                    )
                    beside = Path(adapter) if adapter else None
                    cells[name] = Cell(name, pairs.topology, backbone, executor, whole, beside)
    return list(cells.values())


def _with_models(
    config: Config, plan: Plan, cell: str, backbone: str, executor: str | None
) -> Config:
    """The config with the models of a cell."""
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


def _in_role(role: RoleConfig, model: StudyModel, place: str, name: str) -> RoleConfig:
    """The role with this model."""
    settings: dict[str, Any] = model.settings | (
        model.delegation if place == "delegation" else model.execution
    )
    described = msgspec.to_builtins(role)
    if settings.get("model", role.model) != role.model:
        described = {key: value for key, value in described.items() if key not in _PLACE}
    try:
        return msgspec.convert(described | settings, RoleConfig)
    except msgspec.ValidationError as error:
        raise BadConfig(f"models.{name}.{place}: {error}") from None


def engine_groups(cells: Sequence[Cell], at_once: int) -> list[list[Cell]]:
    """Group cells that run with the same engines up, as starting them takes long: each is in the
    first group that then needs at most `at_once` engines; a cell that needs more stands alone.
    """
    groups: list[list[Cell]] = []
    for cell in cells:
        fits = (
            group
            for group in groups
            if len(cell.engines.union(*(one.engines for one in group))) <= at_once
        )
        if (group := next(fits, None)) is None:
            groups.append(group := [])
        group.append(cell)
    return groups


def weights_of(path: str) -> str:
    """SHA-256 over the config and the weights in a model's folder; for anything but a folder, the
    path itself. Takes seconds for every GB. Raises `OSError`.
    """
    folder = Path(path)
    if not folder.is_dir():
        return path
    files = sorted(file for name in ("config.json", "*.safetensors") for file in folder.glob(name))
    lines = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()
