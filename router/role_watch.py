"""Roles that no endpoint works for."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from router.call import RoleName
from router.errors import RolegateError
from router.readiness import Need, Readiness
from router.role import Role

_log = structlog.get_logger("roles")
_EVERY_S = 0.5
NEEDS: dict[RoleName, Need] = {"delegation": "delegation", "execution": "execution", "answer": "answer"}
"""What is missing where a role of a gateway is."""


async def watch_role(
    name: RoleName, role: Role, readiness: Readiness, probe: Callable[[RoleName], Awaitable[object]]
) -> None:
    """Say when no breaker of its replicas and of its fallbacks is closed, and when a call that worked has closed one;
    for ever. As nobody calls a gateway whose health is bad, `probe` does, whenever a breaker lets a call through.
    """
    while True:
        breakers = [replica.endpoint.breaker for each in (role, *role.fallbacks) for replica in each.replicas]
        works = any(breaker.state == "closed" for breaker in breakers)
        readiness.say(f"roles.{name}", [NEEDS[name]], None if works else "all its endpoints fail")
        if not works and any(breaker.state == "open" and not breaker.wait_s for breaker in breakers):
            try:
                await probe(name)
            except RolegateError as error:
                _log.info("role.probe_failed", role=name, error=str(error))
            except Exception:
                _log.exception("role.probe_failed", role=name)
        await asyncio.sleep(_EVERY_S)
