"""Create the searches that a config describes, for answers and for tables. In the topology
`factorized`, a delegator dispatches sub-queries to executors. In `host`, the delegator dispatches
sub-queries to managers, and these dispatch further sub-queries to executors.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from router.calls import Role
from router.protocol import parse_turn
from router.protocol.turns import ExecutionTurn
from router.search import Answerer, Delegator, Executor, FactorizedSearch, Indexes, Topology
from router.search.agent import Agent, ExecutorLimits
from router.search.delegator import HOST_STOP
from router.search.executor import Executes
from router.search.managers import Manager, Managers
from router.search.retrieval import IndexRetriever
from router.search.tools import Tools
from router.table import WideSearch
from router.table.filling import EXECUTOR_OF_TABLES, TABLE_FORM
from router.table.table_delegation import STOP
from router.table.table_text import parse_table_turn
from router.trace import RoleName
from router.trace.values import TopologyName
from serving.config.config import Config, RoleConfig, SearchConfig, TableRoleConfig

_TABLE_CHARS = 100_000
"""Max characters of an executor's report on rows of a table. The limit is high, because the model's
max tokens already limit the rows of a report.
"""
PROMPTS = Path(__file__).parent / "prompts" / "full"
"""Folder of the shipped prompts for general-purpose models."""


def condenser_config(config: Config) -> RoleConfig:
    """Return the role config of the condenser: `[condenser]`, or if that table is missing,
    `[roles.delegation]` with the shipped prompt for condensers.
    """
    return config.condenser or replace(
        config.roles.delegation, prompt=str(PROMPTS / "condense.txt")
    )


def manager_configs(config: Config) -> dict[str, RoleConfig]:
    """Return the role config of each manager, by the manager's name: `[managers.NAME.role]`, or if
    that table is missing, `[roles.delegation]` with the shipped prompt for managers. If the key
    `managers.NAME.prompt` is set, it replaces the prompt.
    """
    other = replace(config.roles.delegation, prompt=str(PROMPTS / "manager.txt"), fallbacks=())
    configs = {}
    for name, manager in config.managers.items():
        role = manager.role or other
        configs[name] = replace(role, prompt=manager.prompt or role.prompt)
    return configs


def new_managers(
    config: Config,
    roles: Mapping[str, Role],
    workers: Executes,
    report: Callable[[str, bool], ExecutionTurn] = parse_turn,
    with_tools: Mapping[str, Executes] = {},
) -> Managers:
    """Return the managers of a config.

    `roles`: the managers' roles by name, created from `manager_configs`. `workers`: the executor
    of managers without tools. `report`: parses a manager's report. `with_tools`: the executors of
    managers with tools, by the manager's name.
    """
    return Managers(
        [
            Manager(
                name,
                Delegator(roles[name], config.search.max_sub_queries, report=report),
                with_tools.get(name, workers),
                manager.max_rounds,
                manager.max_workers,
            )
            for name, manager in config.managers.items()
        ]
    )


def new_host(
    config: Config,
    roles: Mapping[RoleName, Role],
    own: Mapping[str, Role],
    workers: Executes,
    with_tools: Mapping[str, Executes] = {},
) -> Topology:
    """Return the topology `host`, which has three layers: delegator, managers, and executors (the
    managers' workers). `roles`: the three roles by name. `own`: the managers' roles by name.
    `workers`: the executor of managers without tools. `with_tools`: the executors of managers with
    tools, by the manager's name.
    """
    hosted = {**roles, "delegation": _with_managers(config, roles["delegation"])}
    own = _with_others(config, own)
    search = new_search(
        config.search, hosted, new_managers(config, own, workers, with_tools=with_tools), "host"
    )
    return Topology(search, hosted | _named(own))


def _named(managers: Mapping[str, Role]) -> dict[str, Role]:
    """Return the managers' roles under the names `managers.NAME`, which no other roles have."""
    return {f"managers.{name}": role for name, role in managers.items()}


def _with_managers(config: Config, role: Role) -> Role:
    """Return the delegator's role with a list of the managers in its instructions."""
    return _with_instructions(role, _about_managers(config, "host.txt"))


def _with_others(config: Config, managers: Mapping[str, Role]) -> dict[str, Role]:
    """Return managers' roles, each with a list of the other managers in its instructions."""
    return {
        name: _with_instructions(role, _about_managers(config, "escalate.txt", but=name))
        for name, role in managers.items()
    }


def _about_managers(config: Config, file: str, but: str = "") -> str:
    """Return the instructions in a file of `PROMPTS`, with a list of all managers except the
    manager `but`. Empty if there are no managers to list.
    """
    listed = "\n".join(
        f"- {name}: {manager.about}" for name, manager in config.managers.items() if name != but
    )
    return listed and (PROMPTS / file).read_text("utf-8").strip().replace("{managers}", listed)


def _with_instructions(role: Role, text: str) -> Role:
    """Return the role with `text` appended to its system prompt; unchanged if `text` is empty."""
    return role.with_system(lambda system: f"{system}\n\n{text}") if text else role


def new_worker(
    config: Config,
    role: Role,
    retriever: IndexRetriever | Indexes | None,
    tools: Tools | None = None,
    limits: ExecutorLimits | None = None,
    *,
    manager: str = "",
) -> Executor:
    """Return an executor for questions and tables, which searches with `retriever`, calls `tools`,
    or both.

    `limits`: limits of searches and turns; None for the limits in the config. `manager`: name of
    the manager for which the executor works; empty for none. If it is not empty, the executor's
    instructions list the other managers.
    """
    others = _about_managers(config, "escalate.txt", but=manager) if manager else ""
    in_tables = _with_instructions(_in_tables(role, config.roles.table_execution), others)
    role = _with_instructions(role, others)
    limits = limits or executor_limits(config.search)
    limits = limits if retriever else replace(limits, access_k=0)
    long = replace(limits, report_chars=_TABLE_CHARS)
    agent = Agent(in_tables, retriever, long, EXECUTOR_OF_TABLES, tools)
    return Executor(role, retriever, limits, forms={TABLE_FORM: agent}, tools=tools)


def new_tables(
    config: Config,
    roles: Mapping[RoleName, Role],
    executor: Executes,
    searched: IndexRetriever | Indexes,
    managing: Mapping[str, Role] = {},
    *,
    with_tools: Mapping[str, Executes] = {},
) -> tuple[WideSearch, dict[str, Role]]:
    """Return the search that fills tables, and its roles by name.

    `searched`: the indexes, or a single index. To find rows that no executor has reported, values
    in the table's conditions are searched there. `managing`: the managers' roles by name; empty to
    fill tables without managers. `with_tools`: the executors of managers with tools, by the
    manager's name.
    """
    in_tables = (PROMPTS / "table_manager.txt").read_text("utf-8").strip()
    managing = {
        name: _with_instructions(role, in_tables)
        for name, role in _with_others(config, managing).items()
    }
    managers = None
    lead = _in_tables(roles["delegation"], config.roles.table_delegation)
    if managing:
        managers = new_managers(config, managing, executor, parse_table_turn, with_tools)
        lead = _with_managers(config, lead)
    search = WideSearch(
        Delegator(lead, config.table.discoveries, STOP, managed=managers is not None),
        managers or executor,
        config.table,
        early_dispatch=config.search.early_dispatch,
        managers=managers.names if managers else (),
        indexes=Indexes.of(searched),
    )
    return search, {
        "delegation": lead,
        "execution": _in_tables(roles["execution"], config.roles.table_execution),
        **_named(managing),
    }


def _in_tables(role: Role, config: TableRoleConfig) -> Role:
    """Return `role` with the prompt and `max_tokens` for tables. The role's fallbacks are changed
    in the same way.
    """
    path = Path(config.prompt or PROMPTS / f"table_{role.name}.txt")
    max_tokens = config.max_tokens or role.sampling.max_tokens
    return dataclasses.replace(
        role,
        system=path.read_text("utf-8").strip(),
        sampling=replace(role.sampling, max_tokens=max_tokens),
        fallbacks=tuple(_in_tables(other, config) for other in role.fallbacks),
    )


def executor_limits(search: SearchConfig) -> ExecutorLimits:
    """Return the executor's limits from the config's table `[search]`."""
    return ExecutorLimits(
        search.max_turns,
        search.max_searches,
        search.top_k,
        access_k=search.access_k if search.access else 0,
        access_chars=search.access_chars,
    )


def new_search(
    search: SearchConfig,
    roles: Mapping[RoleName, Role],
    executor: Executes,
    topology: TopologyName = "factorized",
) -> FactorizedSearch:
    """Return the search that answers questions with the three `roles`. `executor`: works on the
    delegator's sub-queries.
    """
    lead = Delegator(roles["delegation"], search.max_sub_queries)
    if topology == "host":
        lead = replace(lead, stop=HOST_STOP, managed=True)
    return FactorizedSearch(
        lead,
        executor,
        Answerer(roles["answer"]),
        max_rounds=search.max_rounds,
        require_evidence=search.require_evidence,
        early_dispatch=search.early_dispatch,
        topology=topology,
    )
