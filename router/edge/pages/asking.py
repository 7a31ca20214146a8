"""The page with a form for questions. Each question starts a detached run, and the browser is
redirected to the page of the run. The form for a follow-up question contains the identifiers of the
conversation's earlier runs.
"""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from aiohttp import web

from router.access import caller
from router.background import in_viewer
from router.edge.asked_table import Tables, asked_table
from router.edge.pages.site import Site, field, redirect
from router.edge.running import Detached
from router.edge.status import as_seen_by
from router.models import Message
from router.runs import Gateway, RequestOptions, Runs
from router.runs.gateway import AnswerRequest, latest
from router.trace import Run
from router.trace.export import output_of

_MAX_EARLIER = 20
"""Max earlier questions of a conversation on the pages."""


async def earlier_runs(runs: Runs, identifiers: str) -> list[Run]:
    """Load the runs of the earlier questions of a conversation, without texts that the user may not
    see. `identifiers`: the runs' identifiers, oldest first, separated by commas. Raises `NotFound`
    if one of the runs does not exist or the user may not see it.
    """
    if not identifiers:
        return []
    identity = caller()
    loaded = [
        await runs.get(identifier, identity)
        for identifier in identifiers.rsplit(",", _MAX_EARLIER)[-_MAX_EARLIER:]
    ]
    return [await in_viewer(as_seen_by, run, identity) for run in loaded]


def with_run(identifiers: str, run_id: str) -> str:
    """Append `run_id` to `identifiers`, the list of a conversation's runs, separated by commas.
    Return at most the last `_MAX_EARLIER` identifiers, in the same form.
    """
    earlier = identifiers.rsplit(",", _MAX_EARLIER) if identifiers else []
    return ",".join([*earlier, run_id][-_MAX_EARLIER:])


def messages_of(runs: Iterable[Run]) -> list[Message]:
    """Return the questions and answers of runs as messages. Runs without a question or an answer
    are left out.
    """
    messages = list[Message]()
    for run in runs:
        if run.request and (answer := output_of(run)):
            messages += [Message("user", run.request), Message("assistant", answer)]
    return messages


def add_asking(
    site: Site,
    gateway: Gateway,
    detached: Detached,
    tables: Tables | None = None,
    *,
    runs: Runs,
    indexes: Sequence[str] = (),
) -> None:
    """Add the page with the form to `site`. `detached`: starts the runs. `tables`: fills tables;
    None to let `gateway` fill them. `runs`: loads the runs of earlier questions. `indexes`: names
    of all indexes; the form offers only those that the user may search.
    """

    async def ask(request: web.Request) -> web.Response:
        question = field(request, "question")
        index = field(request, "index")
        options = RequestOptions(caller(), index=(index,) if index else ())
        before = field(request, "before")
        if columns := field(request, "columns").strip():
            table = asked_table(question, columns)
            run_id = await detached.start(
                lambda emit: (tables or gateway).fill_table(table, options, emit)
            )
        else:
            history = latest(messages_of(await earlier_runs(runs, before)))
            asked = AnswerRequest(question, history=history)
            run_id = await detached.start(
                lambda emit: gateway.answer(asked, options, emit, streamed=True)
            )
        return redirect(f"/ask/{run_id}" + (f"?before={quote(before)}" if before else ""))

    site.form("/ask", ask, "ask.html", indexes=indexes)
