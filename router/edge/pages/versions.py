"""The page of executor versions: the active one, trials, decisions, and the operator's forms."""

from typing import Any

from aiohttp import web

from router.edge.pages.charts import Chart, lines
from router.edge.pages.site import Site, field, redirect
from router.versions import ExecutorVersion, VersionDecision, Versions

_DECISIONS = 50


def add_versions(site: Site, versions: Versions) -> None:
    """Add the page and its forms, for operators."""

    async def shown(request: web.Request) -> web.Response:
        listed = await versions.list()
        decisions = list[VersionDecision]()
        while more := await versions.decisions(after=decisions[-1].number if decisions else 0):
            decisions += more
        charts = {version.version: await _charts(versions, version) for version, _ in listed}
        return await site.render(
            request,
            "versions.html",
            versions=listed,
            charts=charts,
            decisions=decisions[: -_DECISIONS - 1 : -1],
        )

    async def promote(request: web.Request) -> web.Response:
        await versions.promote(field(request, "version"))
        return redirect("/versions")

    async def roll_back(request: web.Request) -> web.Response:
        await versions.roll_back(field(request, "version"))
        return redirect("/versions")

    site.get("/versions", shown, scope="operate", section="Versions")
    site.post("/versions/promote", promote, scope="operate")
    site.post("/versions/roll-back", roll_back, scope="operate")


async def _charts(versions: Versions, version: ExecutorVersion) -> dict[str, Chart]:
    """Return charts of the evidence for and against a version, over its trials."""
    curve: Any = await versions.curve(version)
    if not curve or versions.gate is None:
        return {}

    def drawn(side: str, bound: float) -> Chart:
        measures = [evidence.measure for evidence in curve[-1][1]]
        points = {
            name: [(at, getattr(evidence[place], side)) for at, evidence in curve]
            for place, name in enumerate(measures)
        }
        return lines(points, bound)

    return {
        "Evidence for promotion: all three must reach the line": drawn(
            "in_favour", versions.gate.enough
        ),
        "Evidence against it: none may reach the line": drawn("against", versions.gate.too_much),
    }
