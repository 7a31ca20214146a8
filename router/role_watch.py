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
_FIRST_S, _LONGEST_S = 1.0, 30.0
NEEDS: dict[RoleName, Need] = {"delegation": "delegation", "execution": "execution", "answer": "answer"}
"""What is missing where a role of a gateway is."""


async def watch_role(
    name: RoleName, role: Role, readiness: Readiness, probe: Callable[[RoleName], Awaitable[object]]
) -> None:
    """Say when no breaker of its replicas and of its fallbacks is closed, or its own calls keep failing, and when a
    call that worked has changed that; for ever. As nobody calls a gateway whose health is bad, `probe` does, as soon as
    a breaker lets a call through, and after pauses that double.
    """
    loop, pause_s, due = asyncio.get_running_loop(), _FIRST_S, 0.0
    while True:
        models = (role, *role.fallbacks)
        taken = [each for each in models if each.traffic.works]
        works = any(replica.endpoint.breaker.state == "closed" for each in taken for replica in each.replicas)
        readiness.say(f"roles.{name}", [NEEDS[name]], None if works else "all its calls fail")
        waits_s = [replica.endpoint.breaker.wait_s for each in models for replica in each.replicas]
        if works:
            pause_s, due = _FIRST_S, 0.0
        elif loop.time() >= due and not min(waits_s):
            pause_s, due = min(2 * pause_s, _LONGEST_S), loop.time() + pause_s
            try:
                await probe(name)
            except RolegateError as error:
                _log.info("role.probe_failed", role=name, error=str(error))
            except Exception:
                _log.exception("role.probe_failed", role=name)
        await asyncio.sleep(_EVERY_S)
