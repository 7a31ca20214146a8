"""The pages of runs in headless Chromium, as somebody uses them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.models import ScriptedModel
from router.testing.retriever import FixedRetriever
from router.trace.run import Feedback
from tests.browser import CHROMIUM, Tab, axe, browsing_tab, findings
from tests.router.deployment import STOP, Deployment, HeldModel, block
from tests.router.edge.pages.demo import BRENN, runs
from tests.router.edge.pages.shown import shown

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
]
PAGES = (
    "/runs/run-reading",
    "/runs/run-delegation",
    "/runs/run-reading/agents/execution-2",
    "/runs/run-table",
    "/runs/run-table/cells/1/2",
    "/ask",
    "/ask/run-right",
)


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A tab that must have had nothing to complain of."""
    async with browsing_tab() as opened:
        yield opened
        assert opened.complaints == []


async def test_asked_watched_and_judged(tab: Tab) -> None:
    """From the box to the feedback, with what happens in between told as it happens."""
    # The run has a delegator's decision at once, and its stop once it is let.
    held = HeldModel(ScriptedModel([block("Who directed Heat?"), STOP]), free=1)
    deployment = Deployment(
        held, answerer=ScriptedModel(lambda _prompt: "<answer>Michael Mann</answer>")
    )
    async with shown(deployment) as pages:
        await tab.open(f"http://{pages.address}/ask")
        await tab.evaluate("document.querySelector('#question').value = 'Who directed Heat?'")
        await tab.leave("document.querySelector('.ask button').click()")
        await tab.until("document.querySelectorAll('.events li').length == 5")
        await tab.leave(
            "[...document.querySelectorAll('a')].find(one => one.text == 'How it was "
            "found').click()"
        )
        await tab.until("document.querySelector('#lane-execution-0 .asked b')")
        await tab.until("document.querySelectorAll('.events li').length == 5")
        held.let.set()
        await tab.until("document.querySelector('#feedback')")
        assert (
            await tab.evaluate("document.querySelector('.full-answer').innerText") == "Michael Mann"
        )
        await tab.evaluate("document.querySelector('#lane-execution-0 summary').click()")
        await tab.until("document.querySelectorAll('#lane-execution-0 .output').length == 2")
        await tab.evaluate(
            "document.querySelector('[value=wrong]').checked = true;"
            "document.querySelector('[name=right_answer]').value = 'Mann'"
        )
        await tab.leave("document.querySelector('#feedback button').click()")
        assert "The answer is right" in await tab.evaluate("document.body.innerText")
        run_id = (await pages.store.next()).id
        assert pages.store.given == [Feedback(run_id, False, None, "Mann")]


async def test_a_cell_is_opened_beside_its_table(tab: Tab) -> None:
    async with shown(runs=runs()) as pages:
        await tab.open(f"http://{pages.address}/runs/run-table")
        await tab.evaluate("document.querySelector('td.conflict a').click()")
        await tab.until("document.querySelector('#cell .state.bad')")
        await tab.evaluate("document.querySelector('#cell details summary').click()")
        assert await tab.evaluate(
            "document.querySelector('#cell details[open] mark').innerText"
        ) == ("Bel was founded in 900.")


@pytest.mark.parametrize("dark", [False, True])
async def test_no_serious_finding_of_axe(tab: Tab, dark: bool) -> None:
    """Wide and narrow; nor does a page scroll sideways."""
    script = await asyncio.to_thread(axe)
    if script is None:
        pytest.skip("the npm registry is not to be reached")
    async with shown(runs=runs(), retriever=FixedRetriever({"Tarn": [BRENN]})) as pages:
        for run_id in ("run-reading", "run-delegation"):
            await pages.store.add_feedback(Feedback(run_id, False, None, "Tarn", "She moved."))
        for path in PAGES:
            for width in (1280, 390):
                await tab.look(width, dark=dark)
                await tab.open(f"http://{pages.address}{path}")
                assert await tab.evaluate("document.documentElement.scrollWidth") <= width, path
                assert await findings(tab, script) == [], (path, width)
