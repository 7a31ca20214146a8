"""Nothing of a tenant reaches another by a page or a stream, and nothing that was said becomes
more than text.
"""

import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from html.parser import HTMLParser
from typing import Any

import aiohttp
import msgspec
import pytest

from router.edge.pages import Site
from router.models import ScriptedModel
from router.protocol import Passage
from router.testing.retriever import FixedRetriever
from router.trace import Run
from router.trace.run import Feedback
from tests.router.deployment import STOP, Deployment, HeldModel, block, report
from tests.router.edge.pages.demo import runs
from tests.router.edge.pages.shown import read, shown
from tests.router.edge.pages.test_run_page import begun, posted
from tests.router.edge.pages.world import browsing
from tests.router.store.stored import run

MARK = "Rumpelstiltskin"


def marked(value: Any, mark: str) -> Any:
    """The value with `mark` behind each of its texts that came from outside."""
    if isinstance(value, Run):
        fields = {name: marked(getattr(value, name), mark) for name in ("result", "events")}
        return msgspec.structs.replace(value, request=value.request + mark, **fields)
    if isinstance(value, tuple):
        return tuple(marked(one, mark) for one in value)
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
            name: each + mark if isinstance(each, str) and name in texts else marked(each, mark)
            for name in value.__struct_fields__
            if not isinstance(each := getattr(value, name), str) or name in texts
        }
        if "evidence" in changed:
            changed["evidence"] = tuple(point + mark for point in changed["evidence"])
        return msgspec.structs.replace(value, **changed)
    return value


def paths(site: Site, run_id: str, method: str) -> Iterator[str]:
    """A path for each route that is about a run."""
    known = {
        "run": run_id,
        "agent": "execution-0",
        "row": "0",
        "column": "0",
        "format": "csv",
    }
    for route in site.routes:
        if route.method == method and "{run}" in route.path:
            yield re.sub(r"\{(\w+)\}", lambda found: known[found[1]], route.path)


async def test_of_another_tenant_there_is_nothing() -> None:
    """Whatever page, stream or form about a run, it is as if it were not there; beside one of
    one's own, too.
    """
    hers = [marked(msgspec.structs.replace(each, tenant="acme"), MARK) for each in runs()]
    async with (
        shown(runs=[*hers, run("run-mine", tenant="other")], tenants=["acme", "other"]) as pages,
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


async def test_nobody_gets_in_without_a_key() -> None:
    """Pages and streams lead to the door, forms are refused."""
    async with shown(runs=runs(), tenants=["acme"]) as pages, browsing(pages) as session:
        for path in paths(pages.site, "run-right", "GET"):
            async with session.get(path, allow_redirects=False) as response:
                assert (response.status, response.headers["Location"][:8]) == (303, "/sign-in")
        for path in paths(pages.site, "run-right", "POST"):
            async with session.post(path, data={}, allow_redirects=False) as response:
                assert response.status == 403


async def test_forms_need_their_token() -> None:
    """Also where there are no keys: a page of elsewhere must not ask here."""
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
    """The elements of a page, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.attributes: set[str] = set()
        self.loaded: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.loaded.update(
            value or "" for name, value in attrs if name in ("src", "href", "action", "hx-get")
        )


async def harmless(session: aiohttp.ClientSession, path: str, like: Elements) -> str:
    """The text of a page that has the elements of a harmless one, and no others."""
    text = await read(session, path)
    page = Elements(text)
    assert page.found <= like.found | {"li", "b", "q", "p", "em", "br", "mark"}, (
        path,
        page.found - like.found,
    )
    assert page.attributes <= like.attributes, (path, page.attributes - like.attributes)
    assert all(re.match(r"[/#?]", each) for each in page.loaded), page.loaded
    assert not _OBEYED.search(text), path
    return text


async def test_whatever_is_said_is_shown_as_text() -> None:
    """In questions, passages, titles, reports, answers, prompts, columns, cells, feedback and
    what is typed.
    """
    evil = [marked(each, ALL) for each in runs()]
    async with AsyncExitStack() as stack:
        tame = await stack.enter_async_context(shown(runs=runs(), retriever=FixedRetriever({})))
        pages = await stack.enter_async_context(shown(runs=evil, retriever=FixedRetriever({})))
        one = await stack.enter_async_context(browsing(tame))
        other = await stack.enter_async_context(browsing(pages))
        for world in (tame, pages):
            said = ALL if world is pages else ""
            for each in runs():
                await world.store.add_feedback(
                    Feedback(each.id, False, None, f"Tarn{said}", f"No{said}", None)
                )
        for run_id in ("run-right", "run-reading", "run-delegation", "run-table"):
            for path in paths(tame.site, run_id, "GET"):
                if path.endswith(".csv") or ("cells" in path) is not (run_id == "run-table"):
                    continue
                text = await harmless(other, path, Elements(await read(one, path)))
                assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text, path
                assert "\\u202egnp.exe" in text, path
        await read(other, f"/runs/{'%3Cscript%3E'}", 404)


@pytest.mark.parametrize("evil", EVIL[:8])
async def test_progress_is_text_too(evil: str) -> None:
    """One item of a list each, whatever is in it."""
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
