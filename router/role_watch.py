"""Roles of which no endpoint takes calls for now."""

import asyncio
from collections.abc import Mapping

from router.call import RoleName
from router.readiness import Need, Readiness
from router.role import Role

_EVERY_S = 0.5
NEEDS: dict[RoleName, Need] = {"delegation": "delegation", "execution": "execution", "answer": "answer"}
"""What is missing where a role of a gateway is."""


async def watch_roles(roles: Mapping[RoleName, Role], readiness: Readiness) -> None:
    """Say of each role when all breakers of its replicas and of its fallbacks are open, and when one lets calls
    through again, if only to see what comes of them; for ever.
    """
    while True:
        for name, role in roles.items():
            readiness.say(f"roles.{name}", [NEEDS[name]], None if _takes_calls(role) else "all its endpoints fail")
        await asyncio.sleep(_EVERY_S)


def _takes_calls(role: Role) -> bool:
    breakers = [replica.endpoint.breaker for each in (role, *role.fallbacks) for replica in each.replicas]
    return any(breaker.state != "open" or not breaker.wait_s for breaker in breakers)
