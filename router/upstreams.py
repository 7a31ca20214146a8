"""How all endpoints and roles of a gateway are doing: what its roles share, and what can be watched."""

from router.call import RoleName
from router.endpoint import Endpoint
from router.role_traffic import RoleTraffic
from router.upstream_session import Bodies


class Upstreams:
    """One endpoint for each deployment, and one traffic for each role, whichever of its versions calls."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        """By deployment, as the ledger names it."""
        self.bodies = Bodies()
        self.roles: dict[RoleName, RoleTraffic] = {}

    def endpoint(self, deployment: str) -> Endpoint:
        """That of a deployment."""
        return self.endpoints.setdefault(deployment, Endpoint())

    def role(self, name: RoleName, max_in_flight: int | None, hedge_percentile: float | None) -> RoleTraffic:
        """That of a role; its limits are those that were given first."""
        return self.roles.setdefault(name, RoleTraffic(max_in_flight, hedge_percentile))
