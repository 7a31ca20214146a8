"""Create the roles that a config describes. A role, such as `execution`, is a model with a prompt
and settings.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from router.calls import Replica, Role, Timeouts, Upstreams
from router.calls.limits import RoleHealth
from router.models import Model, Sampling
from router.models.connection_pool import ConnectionPool
from router.models.litellm_client import LiteLLMModel
from router.models.openai_client import OpenAIHTTP
from router.search.condenser import Condenser
from router.trace import Price, RoleName
from serving.config.config import Config, RoleConfig
from serving.config.prices import prices_of
from serving.config.secrets import api_key
from serving.topologies import condenser_config, manager_configs

_INTERVAL = 8
"""Tokens per event of a stream, if no client watches the stream and the gateway started the engine.
Fewer events take less CPU time.
"""


async def all_roles(
    config: Config, new: Callable[..., Role]
) -> tuple[dict[RoleName, Role], dict[str, Role]]:
    """Return the three roles (delegation, execution, answer) by name, and the managers' roles by
    the name of the manager. A manager's role is also named `delegation`, but has its own limit of
    concurrent calls. `new`: `new_role` with the arguments `pool`, `engines` and `upstreams` already
    given.
    """
    usual = config.roles.by_name
    managing = manager_configs(config)
    prices = await prices_of(usual, config.prices)
    managers_prices = await prices_of(managing, config.prices)
    roles = {name: new(name, role, price=prices[name]) for name, role in usual.items()}
    managers = {
        name: replace(
            new("delegation", role, price=managers_prices[name]),
            health=RoleHealth(role.max_in_flight),
        )
        for name, role in managing.items()
    }
    return _with_fallbacks(config, roles), managers


async def new_condenser(
    config: Config, new: Callable[..., Role], roles: Mapping[RoleName, Role]
) -> Condenser:
    """Return the condenser, which rewrites a question of a conversation so that it can be
    understood without the conversation. `new`: `new_role` with the arguments `pool`, `engines` and
    `upstreams` already given. `roles`: the roles delegation, execution and answer, by name.
    """
    if config.condenser is None:
        system = Path(condenser_config(config).prompt).read_text("utf-8").strip()
        return Condenser(roles["delegation"].with_system(lambda _system: system))
    prices = await prices_of({"condenser": config.condenser}, config.prices)
    return Condenser(new("delegation", config.condenser, price=prices["condenser"]))


def new_role(
    name: RoleName,
    config: RoleConfig,
    pool: ConnectionPool,
    engines: Mapping[str, str],
    *,
    price: Price | None = None,
    upstreams: Upstreams | None = None,
) -> Role:
    """Return the role that a config describes, without its fallbacks.

    `pool`: connections for calls of OpenAI-compatible endpoints. `engines`: base URLs by engine
    name. `price`: price of the model; None if it is unknown. `upstreams`: load and circuit breakers
    of endpoints, which roles with the same endpoint share; None for new ones.
    """
    upstreams = upstreams or Upstreams()
    base_url = engines[config.engine] if config.engine else config.base_url
    models = _models(config, pool, [base_url, *config.replicas] if base_url else [])
    deployed = [model.endpoint for model in models]
    if config.engine:
        deployed[0] = f"engines.{config.engine}"
    first, *others = [
        Replica(model, deployment, upstreams.endpoint(deployment))
        for model, deployment in zip(models, deployed, strict=True)
    ]
    return Role(
        name,
        first.model,
        Path(config.prompt).read_text("utf-8").strip(),
        Sampling(config.max_tokens, config.temperature, config.top_p, config.seed),
        config.attempts,
        system_role=config.system_role,
        context_tokens=config.context_tokens,
        deployment=first.deployment,
        executor_version=config.model if name == "execution" else None,
        price=price,
        streams=base_url is not None,
        endpoint=first.endpoint,
        others=tuple(others),
        timeouts=Timeouts(config.first_token_timeout_s, config.call_timeout_s),
        health=upstreams.role(name, config.max_in_flight),
        structured=config.structured and name == "execution",
        tool_calls=config.tool_calls,
    )


def _models(config: RoleConfig, pool: ConnectionPool, base_urls: Sequence[str]) -> list[Model]:
    """Return a client of the role's model for each of `base_urls`. If there are none, return one
    client, which calls the model through LiteLLM.
    """
    key = api_key(config.api_key_env)
    if not base_urls:
        return [
            LiteLLMModel(config.model, api_key=key, extra_body=config.extra_body, omit=config.omit)
        ]
    return [
        OpenAIHTTP(
            pool,
            url,
            model=config.model,
            api_key=key,
            thinking=config.thinking,
            omit=config.omit,
            extra_body=config.extra_body,
            interval=_INTERVAL if config.engine else None,
        )
        for url in base_urls
    ]


def _with_fallbacks(config: Config, roles: Mapping[RoleName, Role]) -> dict[RoleName, Role]:
    """Return the roles with their fallbacks. A fallback calls the model of another role, but has
    the prompt and the sampling of the role that it stands in for. Its `max_tokens` is the larger
    value of these two roles.
    """

    def stand_in(role: Role, other: Role) -> Role:
        most = max(role.sampling.max_tokens, other.sampling.max_tokens)
        sampling = msgspec.structs.replace(role.sampling, max_tokens=most)
        return replace(
            other,
            name=role.name,
            system=role.system,
            sampling=sampling,
            executor_version=other.executor_version if role.name == "execution" else None,
            structured=role.structured,
        )

    with_fallbacks = {}
    for name, described in config.roles.by_name.items():
        role = roles[name]
        fallbacks = tuple(stand_in(role, roles[other]) for other in described.fallbacks)
        with_fallbacks[name] = replace(role, fallbacks=fallbacks)
    return with_fallbacks
