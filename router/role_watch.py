"""Roles that no endpoint works for."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import structlog

from router.call import RoleName
from router.errors import RolegateError
from router.readiness import Need, Readiness
from router.role import Role

_log = structlog.get_logger("roles")
_EVERY_S, _REFUSED_S = 0.5, 30.0
_MOST_REFUSALS = 5
"""In a row; as many failures open a breaker."""
NEEDS: dict[RoleName, Need] = {"delegation": "delegation", "execution": "execution", "answer": "answer"}
"""What is missing where a role of a gateway is."""


async def watch_role(
    name: RoleName, role: Role, readiness: Readiness, probe: Callable[[RoleName], Awaitable[object]]
) -> None:
    """Say when no breaker of its replicas and of its fallbacks is closed, or calls are refused for what they have in
    common, and when a call that worked has changed that; for ever. As nobody calls a gateway whose health is bad,
    `probe` does, whenever a breaker lets a call through, and now and then where all are refused.
    """
    refused_at = -math.inf
    while True:
        now, models = asyncio.get_running_loop().time(), (role, *role.fallbacks)
        taken = [each for each in models if each.traffic.refusals < _MOST_REFUSALS]
        breakers = [replica.endpoint.breaker for each in taken for replica in each.replicas]
        works = any(breaker.state == "closed" for breaker in breakers)
        why = "all its endpoints fail" if taken else "all its calls are refused"
        readiness.say(f"roles.{name}", [NEEDS[name]], None if works else why)
        ready = any(breaker.state == "open" and not breaker.wait_s for breaker in breakers)
        again = len(taken) < len(models) and now - refused_at >= _REFUSED_S
        if not works and (ready or again):
            refused_at = now
            try:
                await probe(name)
            except RolegateError as error:
                _log.info("role.probe_failed", role=name, error=str(error))
            except Exception:
                _log.exception("role.probe_failed", role=name)
        await asyncio.sleep(_EVERY_S)
