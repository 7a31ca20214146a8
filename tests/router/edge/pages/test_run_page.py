"""The page of a run: its answer, its agents and its feedback; live while the run continues."""

import html
import re
from collections.abc import Mapping
from html import unescape
from html.parser import HTMLParser
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec.structs import replace

from router.protocol import Passage
from router.trace import Run
from router.trace.redaction import redacted
from router.trace.run import Feedback
from router.trace.scope import DEFAULT_INDEX, DocumentFilter, Scope, uploads_of
from router.trace.values import SubQueryDispatched, Trajectory
from tests.router.deployment import STOP, Deployment, HeldModel, block
from tests.router.edge.pages.demo import BRENN, runs
from tests.router.edge.pages.shown import keep, read, shown
from tests.router.edge.pages.test_timeline import managed
from tests.router.edge.pages.world import browsing, token
from tests.router.retriever import FixedRetriever
from tests.router.store.stored import call, run
from tests.scripted_model import ScriptedModel

DEMO = {demo_run.id: demo_run for demo_run in runs()}
HEAT = "Who directed Heat?"
CLOCK = r'<span id="clock"[^>]* hx-swap-oob="true">\d+ seconds?</span>'


def waiting() -> HeldModel:
    """Return a delegator that decides once, and then waits before it stops."""
    return HeldModel(ScriptedModel([block(HEAT), STOP], "backbone"), free=1)


def live() -> tuple[Deployment, HeldModel]:
    """Return a deployment whose runs wait after their first round."""
    held = waiting()
    return Deployment(held), held


async def begun(session: aiohttp.ClientSession, question: str = HEAT, columns: str = "") -> str:
    """Ask in the form and return the identifier of the run."""
    form = {"csrf": await token(session, "/ask"), "question": question, "columns": columns}
    async with session.post("/ask", data=form) as response:
        assert response.status == 200, await response.text()
        return response.url.path.rpartition("/")[2]


async def posted(session: aiohttp.ClientSession, path: str, **form: str) -> tuple[int, str]:
    """Post a form, and return the status and the redirect."""
    form["csrf"] = await token(session, "/ask")
    async with session.post(path, data=form, allow_redirects=False) as response:
        return response.status, response.headers.get("Location", "")


async def test_each_source_of_an_answer_opens_its_passage() -> None:
    """The cited sentence is marked."""
    async with shown(runs=[run("run-1")]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-1")
    assert "<b>Heat, p. 3</b>" in text
    assert "<mark>Heat is a film by Michael Mann.</mark>" in text
    assert "films.pdf" in text


async def test_a_source_names_its_document() -> None:
    """The name of the file is shown, also while the source is folded; its path is the title."""
    written = msgspec.json.encode(run("run-1")).replace(b"films.pdf", b"documents/films.pdf")
    kept = msgspec.json.decode(written, type=Run)
    name = '<span class="quiet file" title="documents/films.pdf">films.pdf</span></summary>'
    async with shown(runs=[kept]) as pages, browsing(pages) as session:
        for path in ("/runs/run-1", "/ask/run-1"):
            assert name in await read(session, path)


async def test_uploads_have_their_name_in_requests() -> None:
    """The page of a run shows the name of the index in scopes as a title."""
    kept = run("run-1", scope=Scope((DEFAULT_INDEX, uploads_of("default"))))
    async with shown(runs=[kept]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-1")
    assert '<span title="uploads/default">uploads</span>' in text


async def test_the_legend_explains_the_kinds_of_calls() -> None:
    async with shown(runs=[DEMO["run-right"]]) as pages, browsing(pages) as session:
        legend = (await read(session, "/runs/run-right")).partition('class="legend"')[2]
    assert '<li title="A call that completed, but whose output was discarded">' in legend


async def test_earlier_answers_of_a_thread_have_their_sources() -> None:
    """They are folded."""
    demo = [DEMO["run-right"], DEMO["run-reading"]]
    async with shown(runs=demo) as pages, browsing(pages) as session:
        text = await read(session, "/ask/run-right?before=run-reading")
    earlier = text.partition('aria-label="Earlier question"')[2].partition("</section>")[0]
    assert "Kestrel" in earlier
    assert "<details><summary>2 sources</summary>" in earlier
    assert "<b>Mount Orrin, p. 12</b>" in earlier


async def test_earlier_answers_are_shown_whatever_part_of_the_run_is_asked_for() -> None:
    demo = [DEMO["run-right"], *(run(f"run-{number}") for number in range(8))]
    before = ",".join(f"run-{number}" for number in range(8))
    async with shown(runs=demo) as pages, browsing(pages) as session:
        text = await read(session, f"/ask/run-right?before={before}&lane=99&row=99")
    assert text.count('aria-label="Earlier question"') == 8
    assert text.count("<details><summary>1 source</summary>") == 8


async def test_an_unsupported_answer_has_a_badge_and_a_filter() -> None:
    """The badge is on its page and in the list; the filter shows such runs alone."""
    good = run("run-good")
    assert isinstance(good.result, Trajectory)
    doubtful = run("run-doubtful", result=replace(good.result, unsupported=True))
    async with shown(runs=[good, doubtful]) as pages, browsing(pages) as session:
        assert 'class="state unsupported"' in await read(session, "/runs/run-doubtful")
        assert 'class="state unsupported"' not in await read(session, "/runs/run-good")
        all_runs = await read(session, "/runs")
        filtered = await read(session, "/runs?unsupported=unsupported")
    assert (all_runs.count('class="state unsupported"'), "run-good" in all_runs) == (1, True)
    assert ("run-doubtful" in filtered, "run-good" in filtered) == (True, False)


async def test_a_run_shows_its_key_and_the_list_can_be_filtered_by_it() -> None:
    runs = [run("run-mine", key_id="5f0c2a9e"), run("run-other")]
    async with shown(runs=runs) as pages, browsing(pages) as session:
        assert "/runs?key_id=5f0c2a9e" in await read(session, "/runs/run-mine")
        assert "key_id=" not in await read(session, "/runs/run-other")
        filtered = await read(session, "/runs?key_id=5f0c2a9e")
    assert ("run-mine" in filtered, "run-other" in filtered) == (True, False)


async def test_each_sub_query_has_its_calls_and_its_report() -> None:
    """Calls are bars by kind, with their cost."""
    async with shown(runs=[DEMO["run-right"]]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-right")
        agent = unescape(await read(session, "/runs/run-right/agents/execution-2"))
    assert re.findall('id="lane-([^"]+)"', text) == [
        "delegation",
        "execution-0",
        "execution-1",
        "execution-2",
        "answer",
    ]
    assert "Where was Ada Brenn born? <b>→ Tarn</b>" in text
    assert "3 calls (1 retried)" in text
    assert "(500 wasted)" in text
    assert {
        name: len(re.findall(f'<rect class="{name}" x="[0-9.]+"', text))
        for name in ("wasted", "failed")
    } == {
        "wasted": 2,
        "failed": 2,
    }
    assert agent.count('<p class="figures"') == 3
    assert "<search>Where was Ada Brenn born?</search>" in agent
    assert "460 in (128 cached), 40 out (9 reasoning)" in agent
    assert "first token 125 ms" in agent
    assert f"<mark>{BRENN.text.split('. ')[1]}.</mark>" in agent


async def test_a_shared_report_names_the_run_that_paid_for_it() -> None:
    """It has no calls, so no tokens are shown, known or unknown."""
    paid = DEMO["run-right"]
    assert isinstance(paid.result, Trajectory)
    first_execution, *other_executions = paid.result.executions
    executions = (replace(first_execution, shared_from=("run-earlier",)), *other_executions)
    calls = tuple(call for call in paid.calls if call.sub_query_index != 0)
    run = replace(paid, result=replace(paid.result, executions=executions), calls=calls)
    async with shown(runs=[run]) as pages, browsing(pages) as session:
        page = await read(session, "/runs/run-right")
        agent = await read(session, "/runs/run-right/agents/execution-0")
    lane = page.partition('id="lane-execution-0"')[2].partition("</details>")[0]
    for text in (lane, agent):
        assert re.search('report from run <a[^>]* href="/runs/run-earlier">run-earlier</a>', text)
    assert "0 calls ·" not in page


async def test_the_head_of_a_run_has_its_models_prompts_and_indexes() -> None:
    """A version of the executor is shown next to its model. Texts of a filter are not shown for a
    run that is stored without texts.
    """
    only = DocumentFilter(title="Orrin", tags=("hills", "towns"))
    scoped = replace(DEMO["run-right"], scope=Scope(("default", "maps"), only))
    async with shown(runs=[scoped]) as pages, browsing(pages) as session:
        page = await read(session, "/runs/run-right")
    async with shown(runs=[redacted(scoped)]) as pages, browsing(pages) as session:
        redacted_page = await read(session, "/runs/run-right")
    for text, filtered in ((page, ["title", "tags"]), (redacted_page, [])):
        head = text.partition('<dl class="facts models">')[2].partition("</dl>")[0]
        tagged = re.findall("<dt>([^<]*)</dt><dd[^>]*>(.*?)</dd>", head)
        facts = {
            name: re.sub("<[^>]*>", "", fact).partition(" prompt ")[0] for name, fact in tagged
        }
        assert [facts[name] for name in ("Delegator", "Executor", "Answerer", "Index")] == [
            "backbone-32b",
            "small-1b, executor-000007",
            "answerer-8b",
            "default, maps",
        ]
        assert [name for name in facts if "documents" in name] == [
            f"Only documents: {name}" for name in filtered
        ]
        assert len(re.findall('of the prompt: ([0-9a-f]{12})[0-9a-f]{52}">\\1<', head)) == 3


async def test_the_newest_agents_are_shown_first() -> None:
    """Earlier agents have their own pages, since all of them would be too much for a page that
    reloads each second.
    """
    dispatched = tuple(SubQueryDispatched(number, 1, f"query {number}") for number in range(250))
    large_run = run("run-1", result=None, status="running", events=dispatched)
    async with shown(runs=[large_run]) as pages, browsing(pages) as session:
        texts = [
            await read(session, f"/runs/run-1{query}") for query in ("", "?lane=50", "?lane=0")
        ]
        await read(session, "/runs/run-1?lane=x", 400)
    lanes = [re.findall('id="lane-execution-([^"]+)"', text) for text in texts]
    assert [(lane[0], lane[-1]) for lane in lanes] == [("150", "249"), ("50", "149"), ("0", "99")]
    assert [("Previous agents" in text, "Next agents" in text) for text in texts] == [
        (True, False),
        (True, True),
        (False, True),
    ]
    assert 'hx-get="/runs/run-1?lane=50&amp;seen=250"' in texts[1]


class Folds(HTMLParser):
    """The names of agents and folds on a page, each below the folds that it is in."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._open: list[str] = []
        self._named = False
        self.feed(page.partition('id="way"')[2].partition("</section>")[0])

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        if tag == "details":
            self._open.append("")
        self._named = tag == "b" and bool(self._open) and not self._open[-1]

    def handle_endtag(self, tag: str) -> None:
        if tag == "details" and self._open:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._named:
            self._open[-1] = data
            self.found.append(" / ".join(self._open))
            self._named = False


async def test_workers_are_folded_under_their_manager() -> None:
    """Workers whose manager is on the page before have a fold too."""
    async with shown(runs=[managed()]) as pages, browsing(pages) as session:
        folds = Folds(await read(session, "/runs/run-1")).found
        assert folds == [
            "Delegator",
            "Manager 1, files",
            "Manager 1, web",
            "Workers of web",
            "Workers of web / Worker 1.1, web",
            "Workers of web / Worker 1.2, web",
            "Executor 2",
            "Answerer",
        ]
        many = run_of_workers(150)
        keep(pages.store, many)
        assert Folds(await read(session, "/runs/run-many?lane=0")).found[:4] == [
            "Manager 1, web",
            "Workers of web",
            "Workers of web / Worker 1.1, web",
            "Workers of web / Worker 1.2, web",
        ]
        assert Folds(await read(session, "/runs/run-many")).found[:2] == [
            "Workers of web",
            "Workers of web / Worker 1.51, web",
        ]


def run_of_workers(number: int) -> Run:
    """Return a run with a manager and this many workers."""
    lead = {"manager": "web", "sub_query_index": 0}
    calls = [
        call("run-many", 0, role="delegation", **lead),
        *(call("run-many", 1 + worker, worker=worker, **lead) for worker in range(number)),
    ]
    return run("run-many", calls=calls, result=None, events=(), status="failed")


async def test_agents_of_a_table_are_folded_under_their_row() -> None:
    """The first sub-query of a row decides its place. The fold sums what its agents spent."""
    async with shown(runs=[DEMO["run-table"]]) as pages, browsing(pages) as session:
        page = await read(session, "/runs/run-table")
    assert Folds(page).found == [
        "Discoveries",
        *(f"Discoveries / Executor {number}" for number in (1, 2, 7)),
        "Row krurou",
        *(f"Row krurou / Executor {number}" for number in (3, 5)),
        "Row bel",
        *(f"Row bel / Executor {number}" for number in (4, 6)),
        "Row sel",
        *(f"Row sel / Executor {number}" for number in (8, 9)),
    ]
    assert page.count("2 agents · 2 calls · 24 tokens · $0.00018</span>") == 3


@pytest.mark.parametrize(
    ("run_id", "lost_by"),
    [
        ("run-reading", "the executor"),
        ("run-answering", "the answerer"),
        ("run-delegation", "delegation"),
        ("run-executor", "an executor, or delegation"),
    ],
)
async def test_a_wrong_answer_names_the_role_that_lost_it(run_id: str, lost_by: str) -> None:
    """The right answer must be known. If no passage of the run has it, the documents are
    searched.
    """
    async with (
        shown(runs=runs(), retriever=FixedRetriever({"Tarn": [BRENN]})) as pages,
        browsing(pages) as session,
    ):
        assert "Why is this wrong?" not in await read(session, f"/runs/{run_id}")
        assert await posted(session, f"/runs/{run_id}/feedback", verdict="wrong") == (
            303,
            f"/runs/{run_id}#feedback",
        )
        wanted = '<p class="wanted" role="status">Enter the right answer below'
        assert wanted in await read(session, f"/runs/{run_id}")
        await posted(
            session, f"/runs/{run_id}/feedback", right_answer=" Tarn ", comment="She moved later."
        )
        text = await read(session, f"/runs/{run_id}")
    assert f"The right answer was lost by <b>{lost_by}</b>" in text
    assert "She moved later." in text
    assert pages.store.given == [
        Feedback(run_id, False),
        Feedback(run_id, None, None, "Tarn", "She moved later."),
    ]


async def test_the_latest_right_answers_are_searched_for() -> None:
    async with shown(runs=runs()) as pages, browsing(pages) as session:
        for gold in ("Tarn", "Orrin", "Sel", "Wend"):
            await posted(session, "/runs/run-reading/feedback", right_answer=gold)
        assert '<b class="text">Orrin · Sel · Wend</b>' in await read(session, "/runs/run-reading")


@pytest.mark.parametrize(
    ("not_read", "message"),
    [
        (
            {".xlsx": 4, ".pptx": 3, "": 2},
            "9 files not read: .xlsx 4, .pptx 3, without a suffix 2.",
        ),
        ({".eml": 1}, "1 file not read: .eml 1."),
        ({}, "All files were read."),
        (None, "The number of unread files is unknown"),
    ],
)
@pytest.mark.parametrize("run_id", ["run-executor", "run-delegation"])
async def test_an_answer_in_no_document_is_lost_by_the_documents(
    run_id: str, not_read: Mapping[str, int] | None, message: str
) -> None:
    """No role could have found it. An unread file may contain it."""
    retriever = FixedRetriever({"Tarn": [Passage("p9", "Sel", "Sel is a town on the coast.")]})
    async with (
        shown(runs=runs(), retriever=retriever, files_not_read=not_read) as pages,
        browsing(pages) as session,
    ):
        await posted(session, f"/runs/{run_id}/feedback", right_answer="Tarn")
        text = await read(session, f"/runs/{run_id}")
    assert "The right answer was lost by <b>the documents</b>" in text
    assert message in text


async def test_a_failing_retriever_leaves_the_cause_open() -> None:
    async with (
        shown(runs=runs(), retriever=FixedRetriever({})) as pages,
        browsing(pages) as session,
    ):
        await posted(session, "/runs/run-delegation/feedback", right_answer="Tarn")
        assert "The right answer was lost by <b>the documents</b>" in await read(
            session, "/runs/run-delegation"
        )
    async with shown(runs=runs()) as pages, browsing(pages) as session:
        await posted(session, "/runs/run-delegation/feedback", right_answer="Tarn")
        assert "The right answer was lost by <b>delegation or retrieval</b>" in await read(
            session, "/runs/run-delegation"
        )


@pytest.mark.parametrize(
    ("form", "status"),
    [({}, 400), ({"verdict": "perhaps"}, 400), ({"right_answer": "x" * 5001}, 400)],
)
async def test_invalid_feedback_is_refused(form: Mapping[str, str], status: int) -> None:
    async with shown(runs=[run("run-1")]) as pages, browsing(pages) as session:
        assert (await posted(session, "/runs/run-1/feedback", **form))[0] == status
        assert pages.store.given == []


async def test_the_page_of_an_answer_follows_its_run() -> None:
    """It shows the answer once the run has ended."""
    deployment, held = live()
    async with shown(deployment) as pages, browsing(pages) as session:
        run_id = await begun(session, f"  {HEAT} ")
        running_page = await read(session, f"/ask/{run_id}")
        assert f'hx-get="/ask/{run_id}?seen=' in running_page
        assert "Sources" not in running_page
        held.let.set()
        assert (await pages.store.next()).id == run_id
        finished_page = await read(session, f"/ask/{run_id}")
        assert "hx-get" not in finished_page
        assert '<p class="text full-answer">Michael Mann</p>' in finished_page


@pytest.mark.parametrize(("question", "status"), [("", 400), ("x" * 4001, 400)])
async def test_an_invalid_question_is_refused(question: str, status: int) -> None:
    async with shown() as pages, browsing(pages) as session:
        assert await posted(session, "/ask", question=question) == (status, "")


@pytest.mark.parametrize(
    ("wrong", "place", "status"),
    [
        ({"columns": "city*, price:intger"}, "columns", 400),
        ({"question": " "}, "question", 400),
        ({"before": "run-none"}, "", 404),
        ({"csrf": "none", "columns": "city*"}, "", 403),
    ],
)
async def test_a_refused_question_stays_in_the_form(
    wrong: dict[str, str], place: str, status: int
) -> None:
    """The message is after its field; above the form if no field is wrong."""
    async with shown() as pages, browsing(pages) as session:
        form = {"csrf": await token(session, "/ask"), "question": "What costs <5?"} | wrong
        async with session.post("/ask", data=form) as response:
            assert response.status == status
            page = await response.text()
    assert f">{html.escape(form['question'])}</textarea>" in page
    assert f'value="{form.get("columns", "")}"' in page
    assert ('name="before" value="run-none"' in page) == ("before" in wrong)
    marked = re.findall(
        r'<\w+ id="(\w+)"[^>]* aria-invalid="true" aria-describedby="problem"', page
    )
    assert marked == ([place] if place else [])
    assert page.count('role="alert"') == 1
    after = f'id="{place}"' if place else "<h1>"
    before = '<form class="card ask"'
    assert page.index(after) < page.index('role="alert"')
    assert (page.index('role="alert"') < page.index(before)) == (not place)


async def test_columns_in_the_form_ask_for_a_table() -> None:
    async with shown() as pages, browsing(pages) as session:
        await begun(session, "The cities of Vorland", "city*, founder, founded")
        (request,) = pages.tables.requests
        assert [column.name for column in request.columns] == ["city", "founder", "founded"]


async def test_the_page_of_a_live_run_reloads_itself() -> None:
    """It shows events newest first and asks again each second. The response is only the clock until
    something has happened, and reloads the page once the run has ended.
    """
    deployment, held = live()
    part = {"HX-Request": "true"}
    async with shown(deployment) as pages, browsing(pages) as session:
        run_id = await begun(session)
        await held.called.wait()
        page = await read(session, f"/runs/{run_id}")
        assert re.findall('<li class="text">([^<]*)</li>', page) == [
            "round 2",
            "  ← 1. the answer to Who directed Heat?",
            "    searched “Who directed Heat?”: Heat",
            "  → 1. Who directed Heat?",
            "round 1",
        ]
        assert "→ the answer to Who directed Heat?" in page
        assert ">Stop<" in page
        assert "Feedback" not in page
        reload_path = page.partition('id="body" hx-get="')[2].partition('"')[0]
        async with session.get(reload_path, headers=part) as response:
            clock = await response.text()
            assert re.fullmatch(CLOCK, clock.strip())
            assert response.headers["HX-Reswap"] == "none"
        async with session.get(f"/runs/{run_id}?seen=1", headers=part) as response:
            text = await response.text()
            assert "<html" not in text
            assert f'hx-get="{reload_path}"' in text
            assert len(re.findall(CLOCK, text)) == 1
        held.let.set()
        await pages.store.next()
        async with session.get(reload_path, headers=part) as response:
            assert (response.status, response.headers["HX-Refresh"]) == (204, "true")


@pytest.mark.parametrize("path", ["/runs/{}", "/ask/{}", "/ask/{}?before=run-1"])
async def test_a_run_can_be_stopped_on_its_pages(path: str) -> None:
    """The user stays on the page, in the same conversation."""
    deployment, _ = live()
    async with shown(deployment, [run("run-1")]) as pages, browsing(pages) as session:
        run_id = await begun(session)
        page = unescape(await read(session, path.format(run_id)))
        action = page.partition('<form class="actions stop" method="post" action="')[2].partition(
            '"'
        )[0]
        assert action == path.format(f"{run_id}/cancel")
        assert await posted(session, action) == (303, path.format(run_id))
        assert (await pages.store.next()).status == "cancelled"
        stopped = await read(session, path.format(run_id))
        assert "cancelled" in stopped
        assert "/cancel" not in stopped
        async with session.post(
            "/ask/run-none/cancel", data={"csrf": await token(session, "/ask")}
        ) as response:
            assert response.status == 404


async def test_a_redacted_run_shows_its_figures() -> None:
    redacted_run = redacted(DEMO["run-right"])
    async with shown(runs=[redacted_run]) as pages, browsing(pages) as session:
        text = await read(session, "/runs/run-right")
        assert "are not stored" in text
        assert "5,540 in" in text
        assert "Brenn" not in text
        await read(session, "/runs/run-right/agents/execution-0")


@pytest.mark.parametrize(
    "fields",
    [{"status": "failed", "error": "UpstreamRefused: http://10.0.0.1 says no", "result": None}],
)
async def test_a_failed_run_shows_addresses_to_the_operator_alone(
    fields: Mapping[str, Any],
) -> None:
    async with shown(runs=[run("run-1", tenant="acme", **fields)], tenants=["", "acme"]) as pages:
        async with browsing(pages, pages.keys[""]) as session:
            assert "10.0.0.1" in await read(session, "/runs/run-1")
        async with browsing(pages, pages.keys["acme"]) as session:
            text = await read(session, "/runs/run-1")
            assert "10.0.0.1" not in text
            assert "upstream refused" in text


@pytest.mark.parametrize(
    "path",
    [
        "/runs/none",
        "/runs/run-1/agents/execution-9",
        "/runs/run-1/table.md",
    ],
)
async def test_an_unknown_page_is_not_found(path: str) -> None:
    async with shown(runs=[run("run-1")]) as pages, browsing(pages) as session:
        await read(session, path, 404)


async def test_a_follow_up_question_continues_the_thread() -> None:
    """The page keeps each answer of the conversation, with a link to its steps."""
    deployment = Deployment(
        ScriptedModel(
            lambda prompt: block(HEAT) if len(prompt.messages) == 2 else STOP, "backbone"
        ),
        answerer=ScriptedModel(lambda _prompt: "<answer>Michael Mann</answer>"),
        condenser=ScriptedModel(
            [f"<question>{HEAT}</question>", "<clarify>Which film?</clarify>"], "backbone"
        ),
    )
    async with shown(deployment) as pages, browsing(pages) as session:
        first = await begun(session)
        await pages.store.next()
        text = await read(session, f"/ask/{first}")
        assert f'name="before" value="{first}"' in text
        form = {"csrf": await token(session, "/ask"), "question": "Who else?", "before": first}
        async with session.post("/ask", data=form) as response:
            assert response.url.query["before"] == first
            second = response.url.path.rpartition("/")[2]
        stored = await pages.store.next()
        assert isinstance(stored.result, Trajectory)
        assert stored.result.condensing is not None
        assert [message.content for message in stored.result.condensing.history] == [
            HEAT, "Michael Mann",
        ]  # fmt: skip
        text = await read(session, f"/ask/{second}?before={first}")
        assert f'href="/runs/{first}"' in text
        assert f'name="before" value="{first},{second}"' in text
        steps = await read(session, f"/runs/{second}")
        assert "Condenser" in steps
        assert "retried" not in steps
        assert re.search(r"Searched as:</span>\s*Who directed Heat\?", steps)

        form |= {"before": f"{first},{second}", "question": "And it?"}
        async with session.post("/ask", data=form) as response:
            third = response.url.path.rpartition("/")[2]
        await pages.store.next()
        text = await read(session, f"/ask/{third}?before={first},{second}")
        assert "Which film?" in text
        assert "No retrieved passage" not in text


async def test_a_thread_names_only_runs_of_the_user() -> None:
    async with shown() as pages, browsing(pages) as session:
        form = {"csrf": await token(session, "/ask"), "question": HEAT, "before": "run-none"}
        async with session.post("/ask", data=form) as response:
            assert response.status == 404
