"""Model calls of a role (such as delegator or executor): attempts, replicas, limits, timeouts,
readiness.
"""

from router.calls.health import Need, Readiness
from router.calls.replicas import Replica, Upstreams
from router.calls.role import Role
from router.calls.timeouts import Timeouts

__all__ = ["Need", "Readiness", "Replica", "Role", "Timeouts", "Upstreams"]
