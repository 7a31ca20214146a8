"""Data of a tenant reaches no other tenant by a page or a stream, and stays text."""

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from html.parser import HTMLParser
from typing import Any

import aiohttp
import msgspec
import pytest

from router.edge.pages import Site
from router.protocol import Passage
from router.trace import Run
from router.trace.run import Feedback
from tests.router.deployment import STOP, Deployment, HeldModel, block, report
from tests.router.edge.pages.demo import runs
from tests.router.edge.pages.shown import read, shown
from tests.router.edge.pages.test_run_page import begun, posted
from tests.router.edge.pages.world import browsing
from tests.router.retriever import FixedRetriever
from tests.router.store.stored import run
from tests.scripted_model import ScriptedModel

MARK = "Rumpelstiltskin"


def marked(value: Any, mark: str) -> Any:
    """Return the value with `mark` appended to each of its texts that came from outside."""
    if isinstance(value, Run):
        fields = {name: marked(getattr(value, name), mark) for name in ("result", "events")}
        return msgspec.structs.replace(value, request=value.request + mark, **fields)
    if isinstance(value, tuple):
        return tuple(marked(item, mark) for item in value)
    if isinstance(value, msgspec.Struct):
        texts = (
            "text",
            "reasoning",
            "content",
            "answer",
            "evidence",
            "query",
            "sub_query",
            "title",
            "document",
            "name",
        )
        changed = {
            name: text + mark if isinstance(text, str) and name in texts else marked(text, mark)
            for name in value.__struct_fields__
            if not isinstance(text := getattr(value, name), str) or name in texts
        }
        if "evidence" in changed:
            changed["evidence"] = tuple(point + mark for point in changed["evidence"])
        return msgspec.structs.replace(value, **changed)
    return value


def paths(site: Site, run_id: str, method: str) -> Iterator[str]:
    """Yield a path for each route of a run."""
    values = {
        "run": run_id,
        "agent": "execution-0",
        "row": "0",
        "column": "0",
        "format": "csv",
    }
    for route in site.routes:
        if route.method == method and "{run}" in route.path:
            yield re.sub(r"\{(\w+)\}", lambda match: values[match[1]], route.path)


async def test_another_tenant_s_run_is_not_found_on_any_page() -> None:
    """Holds for pages, streams and forms, also for a tenant with runs."""
    owners_runs = [
        marked(msgspec.structs.replace(demo_run, tenant="acme"), MARK) for demo_run in runs()
    ]
    async with (
        shown(
            runs=[*owners_runs, run("run-mine", tenant="other")], tenants=["acme", "other"]
        ) as pages,
        browsing(pages, pages.keys["other"]) as session,
        browsing(pages, pages.keys["acme"]) as owner,
    ):
        for name in ("run-right", "run-table"):
            gets = list(paths(pages.site, name, "GET"))
            posts = list(paths(pages.site, name, "POST"))
            assert len(gets) >= 5
            assert len(posts) >= 2
            for path in gets:
                assert MARK not in await read(session, path, 404)
            for path in posts:
                assert await posted(session, path, verdict="right") == (
                    404,
                    "",
                )
        await read(session, "/runs/run-mine")
        for path in ("/runs", "/ask"):
            assert MARK not in await read(session, path)
        assert MARK in await read(owner, "/runs/run-right")
        assert pages.store.given == []
        assert pages.tables.requests == []


async def test_without_a_key_pages_lead_to_the_sign_in() -> None:
    """Forms are refused."""
    async with shown(runs=runs(), tenants=["acme"]) as pages, browsing(pages) as session:
        for path in paths(pages.site, "run-right", "GET"):
            async with session.get(path, allow_redirects=False) as response:
                assert (response.status, response.headers["Location"][:8]) == (303, "/sign-in")
        for path in paths(pages.site, "run-right", "POST"):
            async with session.post(path, data={}, allow_redirects=False) as response:
                assert response.status == 403


async def test_a_form_needs_its_token() -> None:
    """Holds without keys too, since another site must not post here."""
    async with shown(runs=runs()) as pages, browsing(pages) as session:
        for path in (*paths(pages.site, "run-right", "POST"), "/ask"):
            async with session.post(
                path, data={"question": "Who?", "verdict": "right"}
            ) as response:
                assert response.status == 403
        assert pages.store.given == []


EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg/onload=alert(1)>",
    "</title></pre><iframe src=//evil.example>",
    "{{ 7 * 7 }}{% raw %}",
    '" hx-get="/sign-out" hx-trigger="load" style="x',
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "\x1b[2J\x00\x9b",
    "\n\ndata: <b>x</b>\nevent: done\n\n",
)
ALL = " ".join(EVIL)
_OBEYED = re.compile("[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Elements(HTMLParser):
    """Tags, attributes and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.loaded.update(
            value or "" for name, value in attrs if name in ("src", "href", "action", "hx-get")
        )


async def harmless(session: aiohttp.ClientSession, path: str, like: Elements) -> str:
    """Read a page and check that it has the elements of a harmless one, and no others."""
    text = await read(session, path)
    page = Elements(text)
    assert page.tags <= like.tags | {"li", "b", "q", "p", "em", "br", "mark"}, (
        path,
        page.tags - like.tags,
    )
    assert page.attributes <= like.attributes, (path, page.attributes - like.attributes)
    assert all(re.match(r"[/#?]", address) for address in page.loaded), page.loaded
    assert not _OBEYED.search(text), path
    return text


async def test_hostile_texts_are_shown_as_text() -> None:
    """Holds for questions, passages, titles, reports, answers, prompts, columns, cells and
    feedback.
    """
    hostile_runs = [marked(demo_run, ALL) for demo_run in runs()]
    async with AsyncExitStack() as stack:
        harmless_pages = await stack.enter_async_context(
            shown(runs=runs(), retriever=FixedRetriever({}))
        )
        pages = await stack.enter_async_context(
            shown(runs=hostile_runs, retriever=FixedRetriever({}))
        )
        harmless_session = await stack.enter_async_context(browsing(harmless_pages))
        session = await stack.enter_async_context(browsing(pages))
        for world in (harmless_pages, pages):
            suffix = ALL if world is pages else ""
            for demo_run in runs():
                await world.store.add_feedback(
                    Feedback(demo_run.id, False, None, f"Tarn{suffix}", f"No{suffix}", None)
                )
        for run_id in ("run-right", "run-reading", "run-delegation", "run-table"):
            for path in paths(harmless_pages.site, run_id, "GET"):
                if path.endswith(".csv") or ("cells" in path) is not (run_id == "run-table"):
                    continue
                text = await harmless(session, path, Elements(await read(harmless_session, path)))
                assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, path
                assert "\\u202egnp.exe" in text, path
        await read(session, f"/runs/{'%3Cscript%3E'}", 404)


@pytest.mark.parametrize("evil", EVIL[:8])
async def test_hostile_texts_in_progress_are_shown_as_text(evil: str) -> None:
    """Each event is one item of the list."""
    held = HeldModel(ScriptedModel([block(f"Who{evil}?"), STOP], "backbone"), free=1)
    deployment = Deployment(
        held,
        ScriptedModel(
            lambda prompt: (
                "<search>it</search>"
                if len(prompt.messages) == 2
                else report(f"an answer {evil}", "so")
            )
        ),
        retriever=FixedRetriever({"it": [Passage("p1", f"Title {evil}", f"Text {evil}")]}),
    )
    async with shown(deployment) as pages, browsing(pages) as session:
        run_id = await begun(session)
        await held.called.wait()
        text = await read(session, f"/ask/{run_id}")
        held.let.set()
        await pages.store.next()
    lines = text.partition('<ol class="events">')[2].partition("</ol>")[0]
    items = re.findall(r'<li class="text">([^<>]*)</li>', lines)
    assert len(items) == 5
    assert lines == "".join(f'<li class="text">{item}</li>' for item in items)
    assert not _OBEYED.search(lines.replace("\n", ""))
