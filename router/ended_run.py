"""A run that somebody else works on, awaited."""

import asyncio

from router.archive import Archive
from router.live_runs import LiveRuns
from router.run import Run

_POLL_S = 0.2
"""How often a run of another process is looked at."""


async def ended_run(run_id: str, archive: Archive, live: LiveRuns, tenant: str | None = None) -> Run | None:
    """The run once it has ended; None where it could not be stored. Raises `NotFound`."""
    if here := live.find(run_id):
        return await asyncio.shield(here.ended)
    while (run := await archive.load(run_id, tenant)).status == "running":  # noqa: ASYNC110 - nobody here hears of it
        await asyncio.sleep(_POLL_S)
    return run
