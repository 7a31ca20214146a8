"""Who searches and who answers, which a request may choose."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from router.call import RoleName
from router.context import RunContext
from router.role import Role
from router.run import RoleSetting
from router.trajectory import Trajectory


class Answers(Protocol):
    """A way to the answer of a question."""

    async def run(self, question: str, context: RunContext) -> Trajectory:
        """Answer `question`. Raises `UpstreamError`, `OutOfTime` and `BudgetExhausted`."""


@dataclass(frozen=True, slots=True)
class Topology:
    """A way to answer, with everybody who works on it."""

    loop: Answers
    roles: Mapping[RoleName, Role]
    """Without the versions of the executor."""

    @property
    def settings(self) -> dict[RoleName, RoleSetting]:
        """What its roles are, for the trace."""
        return settings_of(self.roles)


def settings_of(roles: Mapping[RoleName, Role]) -> dict[RoleName, RoleSetting]:
    """What roles are, for the trace."""
    return {
        name: RoleSetting(role.model.name, hashlib.sha256(role.system.encode()).hexdigest())
        for name, role in roles.items()
    }
