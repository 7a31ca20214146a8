"""Where runs are kept: a finished run with its trace and its calls goes in as one transaction."""

import secrets
import time
from typing import Any, Protocol

import msgspec
import structlog
from sqlalchemy import (
    Boolean,
    Column,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Select,
    String,
    Table,
    event,
    func,
    select,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from router.errors import BadConfig, NotFound, StoreFailed
from router.feedback import Feedback
from router.ledger import Call, RoleTotal
from router.run import Run
from router.usage_report import UsageReport

_log = structlog.get_logger("store")

_METADATA = MetaData()
RUNS = Table(
    "runs",
    _METADATA,
    Column("run_id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("request", String, nullable=False),
    Column("status", String, nullable=False),
    Column("started_at", Float, nullable=False, index=True),
    Column("duration_s", Float, nullable=False),
    Column("trace", LargeBinary, nullable=False),
)
CALLS = Table(
    "calls",
    _METADATA,
    Column("run_id", String, ForeignKey("runs.run_id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("role", String, nullable=False),
    Column("model", String, nullable=False),
    Column("endpoint", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("sub_query", Integer),
    Column("outcome", String, nullable=False),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("completion_tokens", Integer),
    Column("reasoning_tokens", Integer),
    Column("lower_bound", Integer, nullable=False),
    Column("started_at", Float, nullable=False),
    Column("duration_s", Float, nullable=False),
)
FEEDBACK = Table(
    "feedback",
    _METADATA,
    Column("feedback_id", String, primary_key=True),
    Column("run_id", String, ForeignKey("runs.run_id"), nullable=False, index=True),
    Column("given_at", Float, nullable=False),
    Column("accepted", Boolean),
    Column("score", Float),
    Column("gold_answer", String, nullable=False),
    Column("comment", String, nullable=False),
)


class RunStore(Protocol):
    """Keeps runs, and what is thought of them."""

    async def save(self, run: Run) -> None:
        """Keep `run` durably. Raises `StoreFailed`; then nothing of it was kept."""

    async def add_feedback(self, feedback: Feedback) -> str:
        """Keep `feedback`; its identifier. Raises `NotFound` where its run is not stored, and `StoreFailed`."""

    async def usage(self, start: float, end: float) -> UsageReport:
        """What the runs spent that started from `start` on and before `end`, in Unix time. Raises `StoreFailed`."""


class SQLStore:
    """Runs in a database that SQLAlchemy reaches asynchronously; SQLite by default."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @classmethod
    async def open(cls, url: str) -> "SQLStore":
        """Connect and create what is missing. Raises `BadConfig` where that fails."""
        try:
            sqlite = make_url(url).get_backend_name() == "sqlite"
            # One writer at a time is all that SQLite takes; a queue in front of it is fairer than its busy timeout.
            engine = create_async_engine(url, pool_size=1, max_overflow=0) if sqlite else create_async_engine(url)
        except (SQLAlchemyError, ImportError) as error:
            raise _cannot_open(url, error) from error
        try:
            if sqlite:
                _make_durable(engine.sync_engine)
            async with engine.begin() as connection:
                await connection.run_sync(_METADATA.create_all)
        except (SQLAlchemyError, OSError) as error:
            await engine.dispose()
            raise _cannot_open(url, error) from error
        return cls(engine)

    async def close(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    async def save(self, run: Run) -> None:
        """One transaction: the run, its trace, its calls."""
        calls = [_call_row(run.id, number, call) for number, call in enumerate(run.calls)]
        try:
            async with self._engine.begin() as connection:
                await connection.execute(RUNS.insert().values(_run_row(run)))
                if calls:
                    await connection.execute(CALLS.insert(), calls)
        except SQLAlchemyError as error:
            _log.error("store.failed", run_id=run.id, error=str(getattr(error, "orig", error)))
            # Not the error's text: SQLAlchemy puts the row into it, and the row holds the answer.
            raise StoreFailed(f"Run {run.id} could not be stored, so its answer is withheld.") from error

    async def add_feedback(self, feedback: Feedback) -> str:
        """One row of its own."""
        feedback_id = f"feedback-{secrets.token_hex(8)}"
        row = {**msgspec.structs.asdict(feedback), "feedback_id": feedback_id, "given_at": time.time()}
        try:
            async with self._engine.begin() as connection:
                await connection.execute(FEEDBACK.insert().values(row))
        except IntegrityError as error:  # the foreign key
            raise NotFound(f"run_id {feedback.run_id!r}: no such run is stored here.") from error
        except SQLAlchemyError as error:
            _log.error("store.failed", run_id=feedback.run_id, error=str(getattr(error, "orig", error)))
            raise StoreFailed(f"The feedback on run {feedback.run_id} could not be stored; try again.") from error
        return feedback_id

    async def usage(self, start: float, end: float) -> UsageReport:
        """Summed by the database."""
        within = (RUNS.c.started_at >= start, RUNS.c.started_at < end)
        counted = select(func.count()).select_from(RUNS).where(*within)
        summed = _summed_calls().join(RUNS).where(*within).order_by(func.min(CALLS.c.started_at))
        try:
            async with self._engine.connect() as connection:
                runs = await connection.scalar(counted)
                rows = (await connection.execute(summed)).mappings().all()
        except SQLAlchemyError as error:
            _log.error("store.failed", error=str(getattr(error, "orig", error)))
            raise StoreFailed("What was spent could not be read; try again.") from error
        return UsageReport(runs or 0, tuple(msgspec.convert(rows, list[RoleTotal])))

    async def load(self, run_id: str) -> Run | None:
        """The run as it was saved, None where there is none."""
        async with self._engine.connect() as connection:
            trace = await connection.scalar(select(RUNS.c.trace).where(RUNS.c.run_id == run_id))
        return None if trace is None else msgspec.msgpack.decode(trace, type=Run)

    async def calls(self) -> list[dict[str, object]]:
        """Every row of the ledger, oldest run first."""
        joined = select(CALLS).join(RUNS).order_by(RUNS.c.started_at, CALLS.c.run_id, CALLS.c.number)
        async with self._engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(joined)).mappings()]


def _summed_calls() -> Select[Any]:
    """A row for each role and model, with the fields of `RoleTotal`."""
    counts = CALLS.c
    return select(
        counts.role,
        counts.model,
        func.count().label("attempts"),
        (func.count() - func.count(counts.prompt_tokens)).label("attempts_without_usage"),
        func.coalesce(func.sum(counts.prompt_tokens), 0).label("prompt_tokens"),
        func.coalesce(func.sum(counts.completion_tokens), 0).label("completion_tokens"),
        func.sum(counts.cached_tokens).label("cached_tokens"),
        func.sum(counts.reasoning_tokens).label("reasoning_tokens"),
    ).group_by(counts.role, counts.model)


def _cannot_open(url: str, error: Exception) -> BadConfig:
    shown = make_url(url).render_as_string(hide_password=True) if "://" in url else url
    advice = "install its driver" if isinstance(error, ImportError) else "is the folder there and writable?"
    return BadConfig(f"server.store: cannot open {shown}: {error}; {advice}")


def _make_durable(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def set_pragmas(connection, _record) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        cursor = connection.cursor()
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=10000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def _run_row(run: Run) -> dict[str, object]:
    return {
        "run_id": run.id,
        "kind": run.kind,
        "request": run.request,
        "status": run.status,
        "started_at": run.started_at,
        "duration_s": run.duration_s,
        "trace": msgspec.msgpack.encode(run),
    }


def _call_row(run_id: str, number: int, call: Call) -> dict[str, object]:
    usage = call.usage
    return {
        "run_id": run_id,
        "number": number,
        "role": call.role,
        "model": call.model,
        "endpoint": call.endpoint,
        "purpose": call.purpose,
        "attempt": call.attempt,
        "sub_query": call.sub_query,
        "outcome": call.outcome,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "completion_tokens": usage.completion_tokens if usage else None,
        "reasoning_tokens": usage.reasoning_tokens if usage else None,
        "lower_bound": int(call.lower_bound),
        "started_at": call.started_at,
        "duration_s": call.duration_s,
    }
