"""The page with the versions of the executor: their states, trials and decisions, and forms with
which an operator changes the active version.
"""

from aiohttp import web

from router.administration import Auditor
from router.edge.pages.site import Site, field, redirect
from router.versions import VersionDecision, Versions

_DECISIONS = 50


def add_versions(site: Site, versions: Versions, auditor: Auditor) -> None:
    """Add the page and its forms to `site`. Only operators may use them."""

    async def shown(request: web.Request) -> web.Response:
        decisions = list[VersionDecision]()
        while more := await versions.decisions(after=decisions[-1].number if decisions else 0):
            decisions += more
        return await site.render(
            request,
            "versions.html",
            versions=await versions.list(),
            decisions=decisions[: -_DECISIONS - 1 : -1],
        )

    async def promote(request: web.Request) -> web.Response:
        version = field(request, "version")
        await auditor.act("promote_version", version, versions.promote(version))
        return redirect("/versions")

    async def roll_back(request: web.Request) -> web.Response:
        version = field(request, "version")
        await auditor.act("roll_back_version", version, versions.roll_back(version))
        return redirect("/versions")

    site.get("/versions", shown, scope="operate")
    site.post("/versions/promote", promote, scope="operate")
    site.post("/versions/roll-back", roll_back, scope="operate")
