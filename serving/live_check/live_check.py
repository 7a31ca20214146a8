"""All probes of a config, side by side, with its engines started as `rolegate serve` starts them."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial

import aiohttp
import msgspec

from router.models.litellm_client import close_clients
from router.trace.call import Price, RoleName
from serving.config.config import Config, RoleConfig
from serving.config.prices import litellm_entry, price_of
from serving.config.secrets import api_key
from serving.engines.engine import Tell
from serving.live_check.cell import Cell, Cells, failed
from serving.live_check.estimate import Measured, Use, estimate
from serving.live_check.probes import RoleProbe, Served, served_models
from serving.live_check.retrieval import retrieval_probe
from serving.roles import new_role
from serving.startup import start_engines


class RoleFound(msgspec.Struct, frozen=True):
    """One role: its cells, and what it takes to answer a question."""

    model: str
    cells: Cells
    typical: Use
    at_most: Use
    price: Price | None
    dollars: tuple[float, float] | None
    """What both uses cost, where the price is known."""


class Found(msgspec.Struct, frozen=True):
    """Everything that the probes found."""

    roles: dict[RoleName, RoleFound]
    retrieval: dict[str, Cells]

    @property
    def cells(self) -> dict[str, Cells]:
        """Those of all roles, of the embedder and the index, or of the retrieval server."""
        return {**{name: role.cells for name, role in self.roles.items()}, **self.retrieval}

    @property
    def works(self) -> bool:
        """Whether nothing that is needed is bad."""
        return not any(cell.needed and not cell.good for cells in self.cells.values() for cell in cells.values())


async def live_check(config: Config, tell: Tell, limit_s: float) -> Found:
    """Probe what `config` names; one question to a model may take `limit_s` seconds. Raises `BadConfig`."""
    async with AsyncExitStack() as stack:
        engines, probe_retrieval = await start_engines(config, stack, tell, partial(retrieval_probe, config, tell))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        stack.push_async_callback(close_clients)

        async def probe(name: RoleName) -> tuple[Cells, Measured, Served]:
            role = config.roles.by_name[name]
            url = engines[role.engine] if role.engine else role.base_url
            served = await served_models(session, url, api_key(role.api_key_env)) if url else None
            make = partial(new_role, name, session=session, engines=engines)
            cells, measured = await RoleProbe(name, role, make, served, limit_s).run()
            tell(f"{name}: {role.model} is probed")
            return cells, measured, served

        roles, retrieval = await asyncio.gather(asyncio.gather(*map(probe, config.roles.by_name)), probe_retrieval())
        return Found(
            await asyncio.to_thread(_judged, config, dict(zip(config.roles.by_name, roles, strict=True))), retrieval
        )


def _judged(config: Config, probed: Mapping[RoleName, tuple[Cells, Measured, Served]]) -> dict[RoleName, RoleFound]:
    """What budgets and prices make of the probes."""
    uses = estimate(config, {name: measured for name, (_, measured, _) in probed.items()})
    found: dict[RoleName, RoleFound] = {}
    for name, (cells, _, served) in probed.items():
        role, (typical, most) = config.roles.by_name[name], uses[name]
        price = price_of(role, config.prices)
        answers = "stops" in cells
        judged = {"context": _context(role, served, typical, most), "price": _price(role, price)} if answers else {}
        dollars = (typical.cost(price), most.cost(price)) if price else None
        found[name] = RoleFound(role.model, cells | judged, typical, most, price, dollars)
    return found


def _context(role: RoleConfig, served: Served, typical: Use, most: Use) -> Cell:
    known = [role.context_tokens, (served or {}).get(role.model)]
    if role.engine is None and role.base_url is None:
        known.append(litellm_entry(role.model).get("max_input_tokens"))
    tokens = min(filter(None, known), default=None)
    if tokens is None:
        return Cell(None, "unknown", f"nobody tells its context; calls take {typical.longest} to {most.longest} tokens")
    said = f"its context is {tokens} tokens, but a call takes"
    if tokens < typical.longest:
        do = "serve it with more, or lower max_tokens, search.top_k or retrieval.chunk_tokens"
        return failed(str(tokens), f"{said} {typical.longest}; {do}")
    if tokens < most.longest:
        do = "one that does is refused, so lower max_tokens or the search's budgets"
        return Cell(False, str(tokens), f"{said} {most.longest} where a question uses up all budgets; {do}")
    return Cell(True, str(tokens))


def _price(role: RoleConfig, price: Price | None) -> Cell:
    if price is None:
        return Cell(None, "unknown", f'nobody tells its price; put it into [prices."{role.model}"]')
    return Cell(True, f"${price.prompt:g} / ${price.completion:g}")
