"""The page of a run: its answer, its agents, what is done about it, live."""

import re

from tests.router.edge.pages.shown import read, shown
from tests.router.edge.pages.world import browsing
from tests.router.store.stored import call, run

ONE = run("run-1", calls=(call("run-1", 0, role="delegation", sub_query=None), call("run-1", 1, started_at=1000.6)))


async def test_an_answer_with_its_sources() -> None:
    """Each source opens its passage, the sentence marked."""
    async with shown(runs=[ONE]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-1")
    assert "Michael Mann" in text
    assert "<b>Heat, p. 3</b>" in text
    assert "<mark>Heat is a film by Michael Mann.</mark>" in text
    assert "films.pdf" in text
    assert re.search(r"lane-delegation.*lane-execution-0.*lane-execution-1", text, re.DOTALL)
