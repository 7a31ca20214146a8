"""The pages of runs in headless Chromium, as people use them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.trace.run import Feedback
from tests.browser import CHROMIUM, Tab, axe, browsing_tab, findings
from tests.router.deployment import STOP, Deployment, HeldModel, block
from tests.router.edge.pages.demo import BRENN, runs
from tests.router.edge.pages.shown import shown
from tests.router.edge.pages.test_run_page import begun
from tests.router.edge.pages.world import browsing
from tests.router.retriever import FixedRetriever
from tests.scripted_model import ScriptedModel

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
    """A tab that must have no complaints at the end."""
    async with browsing_tab() as opened:
        yield opened
        assert opened.complaints == []


async def test_a_question_is_asked_watched_and_judged(tab: Tab) -> None:
    """Progress is shown as it happens, from the form to the feedback."""
    # The delegator decides immediately, and stops once the test allows it.
    held = HeldModel(ScriptedModel([block("Who directed Heat?"), STOP]), free=1)
    deployment = Deployment(
        held, answerer=ScriptedModel(lambda _prompt: "<answer>Michael Mann</answer>")
    )
    async with shown(deployment) as pages:
        await tab.open(f"http://{pages.address}/ask")
        await tab.evaluate("document.querySelector('#question').value = 'Who directed Heat?'")
        await tab.leave("document.querySelector('.ask button').click()")
        await tab.until("document.querySelectorAll('.events li').length == 5")
        await tab.until("parseInt(document.querySelector('#clock').innerText) >= 1")
        assert await tab.evaluate("document.querySelectorAll('.events li').length") == 5
        await tab.leave(
            "[...document.querySelectorAll('a')].find(link => link.text == 'How the answer was "
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


async def test_a_question_is_stopped_where_it_was_asked(tab: Tab) -> None:
    deployment = Deployment(HeldModel(ScriptedModel([block("Who directed Heat?"), STOP]), free=1))
    async with shown(deployment) as pages:
        await tab.open(f"http://{pages.address}/ask")
        width = await tab.evaluate("document.querySelector('main h1').offsetWidth")
        form = "document.querySelector('#question').offsetWidth"
        assert await tab.evaluate(form) > 0.95 * width
        await tab.evaluate("document.querySelector('#question').value = 'Who directed Heat?'")
        await tab.leave("document.querySelector('.ask button').click()")
        await tab.until("document.querySelectorAll('.events li').length == 5")
        await tab.leave("document.querySelector('button.danger').click()")
        await tab.until("document.querySelector('p.wrong')?.innerText.includes('cancelled')")
        assert await tab.evaluate("location.pathname.startsWith('/ask/')")
        assert (await pages.store.next()).status == "cancelled"


async def test_a_cell_is_opened_next_to_its_table(tab: Tab) -> None:
    async with shown(runs=runs()) as pages:
        await tab.open(f"http://{pages.address}/runs/run-table")
        await tab.evaluate("document.querySelector('td.conflict a').click()")
        await tab.until("document.querySelector('#cell .state.conflict')")
        await tab.evaluate("document.querySelector('#cell .sources summary').click()")
        assert await tab.evaluate(
            "document.querySelector('#cell .sources details[open] mark').innerText"
        ) == ("Bel was founded in 900.")
        sides = "(name) => document.querySelector(name).getBoundingClientRect()"
        table, panel = ".split .scroll", "#cell .panel"
        assert await tab.evaluate(f"({sides})('{table}').right < ({sides})('{panel}').left")
        await tab.evaluate("document.querySelector('#cell .panel > summary').click()")
        assert await tab.evaluate("document.querySelector('#cell').offsetWidth") == 0


async def test_an_open_cell_stays_open_while_its_table_grows(tab: Tab) -> None:
    async with shown() as pages, browsing(pages) as session:
        pages.tables.let.clear()
        run_id = await begun(session, "The cities of Vorland", "city*, founder, founded")
        await pages.tables.waiting.wait()
        await tab.open(f"http://{pages.address}/runs/{run_id}")
        await tab.evaluate("document.querySelector('td.cell a').click()")
        await tab.until("document.querySelector('#cell .panel')")
        await tab.evaluate("document.querySelector('.cells').id = 'before'")
        update = f"'/runs/{run_id}?seen=0', {{target: '#body', swap: 'outerHTML'}}"
        await tab.evaluate(f"htmx.ajax('GET', {update})")
        await tab.until("document.querySelector('.cells').id == ''")
        assert await tab.evaluate("document.querySelectorAll('#cell .panel[open]').length") == 1
        pages.tables.let.set()
        await pages.store.next()
        await tab.until("document.querySelector('#feedback')")


async def test_the_first_column_of_a_wide_table_stays(tab: Tab) -> None:
    async with shown(runs=runs()) as pages:
        await tab.look(390)
        await tab.open(f"http://{pages.address}/runs/run-table")
        left = "document.querySelector('.cells tbody td').getBoundingClientRect().left"
        before = await tab.evaluate(left)
        box = "document.querySelector('.split .scroll')"
        await tab.evaluate(f"{box}.style.maxWidth = '200px'")
        assert await tab.evaluate(f"({box}.scrollLeft = 80, {box}.scrollLeft)") == 80
        assert await tab.evaluate(left) == before


@pytest.mark.parametrize("dark", [False, True])
async def test_axe_has_no_serious_findings(tab: Tab, dark: bool) -> None:
    """Holds for wide and narrow windows. No page scrolls sideways."""
    script = await asyncio.to_thread(axe)
    if script is None:
        pytest.skip("the npm registry cannot be reached")
    async with shown(runs=runs(), retriever=FixedRetriever({"Tarn": [BRENN]})) as pages:
        for run_id in ("run-reading", "run-delegation"):
            await pages.store.add_feedback(Feedback(run_id, False, None, "Tarn", "She moved."))
        for path in PAGES:
            for width in (1280, 390):
                await tab.look(width, dark=dark)
                await tab.open(f"http://{pages.address}{path}")
                assert await tab.evaluate("document.documentElement.scrollWidth") <= width, path
                assert await findings(tab, script) == [], (path, width)
