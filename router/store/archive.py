"""Access to the runs in a database: read, list and export them, add feedback, request their
cancellation, and delete old runs.
"""

import base64
import math
import secrets
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count

import msgspec
import structlog
from msgspec.structs import asdict, replace
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    String,
    and_,
    bindparam,
    case,
    exists,
    false,
    func,
    select,
    text,
    true,
    tuple_,
)

from router.errors import BadRequest, NotFound
from router.frozen import Frozen
from router.runs import RunFilter
from router.runs.archive import (
    MAX_LISTED_CHARS,
    ExportedRun,
    Progress,
    RunFigures,
    RunPage,
    RunSummary,
    shortened,
)
from router.store.database import Database, storable
from router.store.projection import put
from router.store.schema import (
    CALLS,
    FEEDBACK,
    PROGRESS,
    RUNS,
    TENANTS,
    VERSION_TRIALS,
    run_of,
    struct_of,
)
from router.trace import Call, Event, Run
from router.trace.run import MAX_A_RUN, Feedback

_log = structlog.get_logger("store")
_PIECE = 32
"""Number of runs that an export reads in one query."""
_DELETED = 100
"""Number of runs that are deleted in one transaction. It is small, so that other writers do not
wait long.
"""
_EVENT = msgspec.msgpack.Decoder(Event)
_CALL = msgspec.msgpack.Decoder(Call)
_SUMMARY = (
    "run_id tenant kind request_id status outcome topology unsupported answer nano_usd "
    "started_at duration_s key_id"
)
_LISTED = (
    *(RUNS.c[name] for name in _SUMMARY.split()),
    func.substr(RUNS.c.request, 1, MAX_LISTED_CHARS + 1).label("request"),
)
_POSITION = tuple_(RUNS.c.started_at, RUNS.c.run_id)
"""Sort key of runs: the start time, and the identifier for runs with equal times."""
# Selects the latest verdict on each run; `good` is True if it says that the answer is right. This
# is one query with a window function. For a subquery per run, PostgreSQL would estimate such a high
# cost that it would spend seconds on JIT compilation.
_VERDICTS = text("""
SELECT DISTINCT run_id, first_value(coalesce(accepted, score >= 0.5))
    OVER (PARTITION BY run_id ORDER BY given_at DESC) AS good
FROM feedback WHERE given_at >= :start AND (accepted IS NOT NULL OR score IS NOT NULL)
""")
_VERDICT = _VERDICTS.columns(FEEDBACK.c.run_id).subquery()
_RANKED = text("""
*, cume_dist() OVER (PARTITION BY span, status = 'finished' ORDER BY duration_s) AS share
""")
_FIGURES = text("""
span, count(*) AS runs,
count(*) FILTER (WHERE good) AS "right", count(*) FILTER (WHERE NOT good) AS wrong,
count(*) FILTER (WHERE status = 'failed') AS failed,
count(*) FILTER (WHERE unsupported) AS unsupported,
CAST(sum(nano_usd) AS BIGINT) AS nano_usd,
min(duration_s) FILTER (WHERE status = 'finished' AND share >= 0.5) AS p50_s,
min(duration_s) FILTER (WHERE status = 'finished' AND share >= 0.95) AS p95_s
""")
"""SQL that computes the columns of `RunFigures` for each time span."""


class SQLArchive(Frozen):
    """Implements `Archive` with the database that `LogJournal` writes to."""

    database: Database
    calls: Callable[[str], tuple[Call, ...] | None] = lambda _run_id: None
    """Function that takes a run's identifier and returns the run's ended calls. It returns None if
    this gateway is not running the run.
    """
    searched: int = 5_000
    """Max number of runs that the database reads for one page of a list, if the filter has a
    condition that no database index supports. Such a page may contain few runs although there is a
    next page.
    """

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        """Return a run. If this gateway is running it, the result contains the calls that have
        ended so far. If another gateway is running it, the result contains no calls. `tenant`: the
        tenant that must own the run; None for any. Raises `NotFound`, also for a run of another
        tenant.
        """
        # Read immediately, even if the database is behind the log: the row of a running run does
        # not change.
        if self.calls(run_id) is not None:
            with suppress(NotFound):  # the run may not be in the database yet
                run = await self.database.read(_load, run_id, tenant, behind=True)
                if run.status == "running" and (calls := self.calls(run_id)) is not None:
                    return replace(run, calls=calls)

        run = await self.database.read(_load, run_id, tenant)
        if run.status != "running":
            return run
        return replace(run, calls=self.calls(run_id) or ())

    async def list(self, wanted: RunFilter, size: int, page: str = "") -> RunPage:
        """Return at most `size` runs that match `wanted`, newest first. `page`: the token that the
        previous page returned; empty for the first page. Raises `BadRequest` if the token is
        invalid.
        """
        before = _place(page) if page else (math.inf, "")
        return await self.database.read(_list, wanted, size, before, self.searched)

    async def figures(self, wanted: RunFilter, starts: Sequence[float]) -> Sequence[RunFigures]:
        """See `Archive.figures`. One query computes the figures of all time spans."""
        return await self.database.read(_figures, wanted, starts)

    async def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        """Yield all ended runs that match `wanted`, with their feedback, oldest first. Redacted
        runs are included, without their texts.
        """
        after = -math.inf, ""
        while piece := await self.database.read(_piece, wanted, after):
            for exported in piece:
                yield exported
            last = piece[-1].run
            after = last.started_at, last.id

    async def add_feedback(self, feedback: Feedback) -> str:
        """Store feedback on a run, and return the feedback's identifier. If the run's tenant has
        the setting `redact`, the texts of the feedback are not stored.

        Raises `NotFound` if there is no such run, and `BadRequest` if the run already has
        `MAX_A_RUN` entries of feedback.
        """
        feedback_id = f"feedback-{secrets.token_hex(8)}"
        await self.database.write(_add_feedback, feedback, feedback_id)
        return feedback_id

    async def feedback(self, run_id: str) -> tuple[Feedback, ...]:
        """Return the feedback on a run, oldest first; empty for an unknown run."""
        run_id = storable(run_id)
        feedback = await self.database.read(_feedback, [run_id], behind=True)
        return feedback.get(run_id, ())

    async def request_cancel(self, run_id: str) -> None:
        """Request the cancellation of a run. The run's gateway regularly checks for such requests,
        and then cancels the run. No effect on a run that has ended.
        """
        running = RUNS.update().where(RUNS.c.run_id == storable(run_id), RUNS.c.status == "running")
        await self.database.write(
            lambda connection: connection.execute(running.values(cancel_requested=True))
        )

    async def progress(self, run_id: str, after: int = 0) -> Progress | None:
        """See `Archive.progress`. Also returns None for a SQLite database, which gateways cannot
        share.
        """
        if not self.database.shared:
            return None
        run_id = storable(run_id)
        if not after:
            await self.database.write(_put_progress, run_id, [(0, None)], on_disk=False)
        return await self.database.read(_progress, run_id, after)


def _load(connection: Connection, run_id: str, tenant: str | None) -> Run:
    row = connection.execute(select(RUNS).where(*_visible(run_id, tenant))).one_or_none()
    if row is None:
        raise _not_found(run_id)
    return run_of(row)


def _list(
    connection: Connection,
    wanted: RunFilter,
    size: int,
    before: tuple[float, str],
    searched: int,
) -> RunPage:
    newest_first = RUNS.c.started_at.desc(), RUNS.c.run_id.desc()
    conditions = [*_conditions(wanted), before > _POSITION]

    last = None
    if _search(wanted):
        window = select(RUNS.c.started_at, RUNS.c.run_id).where(
            *_indexed(wanted), before > _POSITION
        )
        window = window.order_by(*newest_first).offset(searched - 1).limit(1)
        last = connection.execute(window).one_or_none()
        conditions += [tuple(last) <= _POSITION] if last else []

    query = select(*_LISTED).where(*conditions).order_by(*newest_first).limit(size + 1)
    rows = connection.execute(query).all()
    feedback = _feedback(connection, [row.run_id for row in rows]) if rows else {}
    runs = tuple(_summary(row, feedback.get(row.run_id, ())) for row in rows[:size])
    if len(rows) > size:
        last = rows[size - 1]
    return RunPage(runs, _token(last.started_at, last.run_id) if last else "")


def _figures(
    connection: Connection, wanted: RunFilter, starts: Sequence[float]
) -> list[RunFigures]:
    span = case(*((RUNS.c.started_at >= start, start) for start in reversed(starts))).label("span")
    runs = RUNS.outerjoin(_VERDICT, _VERDICT.c.run_id == RUNS.c.run_id)
    columns = text("status, unsupported, nano_usd, duration_s, good")
    chosen = select(span, columns).select_from(runs).where(*_conditions(wanted))
    ranked = select(_RANKED).select_from(chosen.subquery())
    query = select(_FIGURES).select_from(ranked.subquery()).group_by(text("span"))
    rows = connection.execute(query, {"start": starts[0]})
    figures = {row.span: struct_of(RunFigures, row._mapping) for row in rows}
    return [figures.get(start, RunFigures()) for start in starts]


def _piece(
    connection: Connection, wanted: RunFilter, after: tuple[float, str]
) -> list[ExportedRun]:
    query = select(RUNS).where(RUNS.c.status != "running", *_conditions(wanted), after < _POSITION)
    rows = connection.execute(query.order_by(RUNS.c.started_at, RUNS.c.run_id).limit(_PIECE)).all()
    feedback = _feedback(connection, [row.run_id for row in rows])
    return [ExportedRun(run_of(row), feedback.get(row.run_id, ())) for row in rows]


def _add_feedback(connection: Connection, feedback: Feedback, feedback_id: str) -> None:
    # Lock the run's row: transactions of other gateways that add feedback to the run must wait, and
    # then count the entry that is added here.
    visible = _visible(feedback.run_id, feedback.tenant)
    owner = connection.scalar(select(RUNS.c.tenant).where(*visible).with_for_update())
    if owner is None:
        raise _not_found(feedback.run_id)
    given = select(func.count()).where(FEEDBACK.c.run_id == feedback.run_id)
    if connection.execute(given).scalar_one() >= MAX_A_RUN:
        raise BadRequest(
            f"run_id {feedback.run_id!r}: has {MAX_A_RUN} entries of feedback, which is the "
            "maximum; no more can be added."
        )

    texts = {"right_answer": storable(feedback.right_answer), "comment": storable(feedback.comment)}
    if connection.scalar(select(TENANTS.c.redact).where(TENANTS.c.name == owner)):
        texts = dict.fromkeys(texts, "")
    row = {
        **asdict(feedback),
        **texts,
        "feedback_id": feedback_id,
        "given_at": time.time(),
    }
    connection.execute(FEEDBACK.insert().values(row))


def _feedback(connection: Connection, run_ids: Sequence[str]) -> dict[str, tuple[Feedback, ...]]:
    """Return the feedback on each of the runs, oldest first. Runs without feedback are left out."""
    by_run = defaultdict[str, list[Feedback]](list)
    wanted = select(FEEDBACK).where(FEEDBACK.c.run_id.in_(run_ids)).order_by(FEEDBACK.c.given_at)
    for row in connection.execute(wanted):
        by_run[row.run_id].append(msgspec.convert(row, Feedback, from_attributes=True))
    return {run_id: tuple(feedback) for run_id, feedback in by_run.items()}


def _visible(run_id: str, tenant: str | None) -> list[ColumnElement[bool]]:
    conditions = [RUNS.c.run_id == storable(run_id)]
    if tenant is not None:
        conditions.append(RUNS.c.tenant == tenant)
    return conditions


def _not_found(run_id: str) -> NotFound:
    return NotFound(f"run_id {run_id!r}: no such run is stored here; check the identifier.")


# Conditions are cached: clients repeat the same few filters, and building the conditions takes
# longer than reading the runs.
@lru_cache(maxsize=256)
def _conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    columns = RUNS.c
    untrained = select(TENANTS.c.name).where(TENANTS.c.training == false())
    conditions = (
        (wanted.kind is None or wanted.training, columns.kind != "shadow"),
        (wanted.training, columns.tenant.not_in(untrained)),
    )
    return [
        *_indexed(wanted),
        *_search(wanted),
        *(condition for holds, condition in conditions if holds),
    ]


def _indexed(wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter that an index of the database supports."""
    columns = RUNS.c
    conditions = (
        (wanted.tenant is not None, columns.tenant == storable(wanted.tenant or "")),
        (wanted.status == "running", columns.status == "running"),
        (wanted.start is not None, columns.started_at >= (wanted.start or 0.0)),
        (wanted.end is not None, columns.started_at < (wanted.end or 0.0)),
    )
    return [condition for holds, condition in conditions if holds]


@lru_cache(maxsize=256)
def _search(wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter that no index supports. To check them, the database must
    read the rows.
    """
    columns = RUNS.c
    words = storable(wanted.text)
    in_request = columns.request.icontains(words, autoescape=True)
    in_answer = columns.answer.icontains(words, autoescape=True)
    worked = exists().where(
        CALLS.c.run_id == columns.run_id, CALLS.c.executor_version == wanted.executor_version
    )
    accepted = func.coalesce(FEEDBACK.c.accepted, FEEDBACK.c.score >= 0.5)  # as `Feedback.good`
    verdict: ColumnElement[bool] = true()
    if wanted.feedback != "any":
        verdict = accepted == (true() if wanted.feedback == "right" else false())
    # The concatenation keeps the database from using the index on the status. The index only helps
    # for the status `running`: all other statuses have too many runs.
    status = columns.status.concat("")
    conditions = (
        (bool(words), in_request | in_answer),
        (bool(wanted.key_id), columns.key_id == storable(wanted.key_id)),
        (wanted.kind is not None, columns.kind == wanted.kind),
        (wanted.status not in (None, "running"), status == wanted.status),
        (wanted.outcome is not None, and_(columns.outcome == wanted.outcome, status == "finished")),
        (wanted.topology is not None, columns.topology == wanted.topology),
        (wanted.executor_version is not None, worked),
        (wanted.unsupported, columns.unsupported),
        (wanted.feedback is not None, exists().where(FEEDBACK.c.run_id == columns.run_id, verdict)),
    )
    return [condition for holds, condition in conditions if holds]


def _summary(row: Row[tuple[object, ...]], feedback: Sequence[Feedback]) -> RunSummary:
    return struct_of(
        RunSummary,
        row._mapping,
        id=row.run_id,
        request=shortened(row.request, MAX_LISTED_CHARS),
        request_id=row.request_id or "",
        outcome=row.outcome or None if row.status == "finished" else None,
        good=next((entry.good for entry in reversed(feedback) if entry.good is not None), None),
    )


def _token(*position: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(position)).decode()


def _place(page: str) -> tuple[float, str]:
    """Decode the page token `page`. Return the start time (Unix time) and the identifier of the
    last run on the previous page. Raises `BadRequest` if the token is invalid.
    """
    try:
        started_at, run_id = msgspec.msgpack.decode(
            base64.urlsafe_b64decode(page), type=tuple[float, str]
        )
    except (ValueError, msgspec.DecodeError):
        started_at = math.nan
        run_id = ""
    if not math.isfinite(started_at):
        raise BadRequest(
            "page_token: is invalid; use the token that the previous page returned, or leave it "
            "empty for the first page."
        )
    return started_at, storable(run_id)


_REQUESTS = text("""
SELECT run_id, cancel_requested, min(number) AS last_call, max(number) AS last_event
FROM runs LEFT JOIN progress USING (run_id)
WHERE run_id IN :run_ids AND status = 'running' AND (cancel_requested OR number IS NOT NULL)
GROUP BY run_id, cancel_requested
""").bindparams(bindparam("run_ids", type_=String, expanding=True))
_PROGRESS = text("""
SELECT number, content
FROM runs LEFT JOIN progress ON progress.run_id = runs.run_id AND number > :after
WHERE runs.run_id = :run_id AND status = 'running' ORDER BY abs(number)
""")
_FORGET = text("""
DELETE FROM progress WHERE NOT EXISTS (
    SELECT 1 FROM runs WHERE runs.run_id = progress.run_id AND status = 'running'
)
""")
_LEAST = -(1 << 31)


def publish(
    connection: Connection, run_ids: Sequence[str], happened: Callable[[str], Progress]
) -> list[str]:
    """Write the progress of this gateway's runs to the database, but only for runs that clients
    watch at another gateway. Delete the progress of ended runs. Return the identifiers of the runs
    whose cancellation is requested.

    `run_ids`: runs that this gateway is running. `happened`: function that takes a run's identifier
    and returns all events and ended calls of the run.
    """
    requests = connection.execute(_REQUESTS, {"run_ids": run_ids}).all()
    for run_id, _, last_call, last_event in requests:
        if last_event is not None:
            events, calls = happened(run_id)
            new_calls = zip(count(last_call - 1, -1), calls[-last_call:], strict=False)
            new_events = enumerate(events[last_event:], last_event + 1)
            _put_progress(connection, run_id, [*new_calls, *new_events])
    connection.execute(_FORGET)
    return [request.run_id for request in requests if request.cancel_requested]


def _put_progress(
    connection: Connection, run_id: str, items: Iterable[tuple[int, Event | Call | None]]
) -> None:
    rows = [
        {"run_id": run_id, "number": number, "content": msgspec.msgpack.encode(item)}
        for number, item in items
    ]
    put(connection, PROGRESS, rows)


def _progress(connection: Connection, run_id: str, after: int) -> Progress | None:
    rows = connection.execute(_PROGRESS, {"run_id": run_id, "after": after or _LEAST}).all()
    if not rows:
        return None
    numbered = [row for row in rows if row.number]
    return Progress(
        tuple(_EVENT.decode(content) for number, content in numbered if number > 0),
        tuple(_CALL.decode(content) for number, content in numbered if number < 0),
    )


async def delete_old(database: Database, keep_days: float) -> None:
    """Delete ended runs that started more than `keep_days` days ago, with their calls, feedback and
    trials of executor versions.

    Raises `StoreFailed`.
    """
    ended = RUNS.c.status != "running", RUNS.c.started_at < time.time() - keep_days * 86400
    oldest = (
        select(RUNS.c.run_id)
        .where(*ended)
        .order_by(RUNS.c.started_at, RUNS.c.run_id)
        .limit(_DELETED)
    )

    def delete(connection: Connection) -> int:
        run_ids = connection.scalars(oldest).all()
        for table in (VERSION_TRIALS, FEEDBACK, CALLS, RUNS):
            connection.execute(table.delete().where(table.c.run_id.in_(run_ids)))
        return len(run_ids)

    deleted = 0
    while count := await database.write(delete):
        deleted += count
    if deleted:
        _log.info("store.runs_deleted", runs=deleted)
