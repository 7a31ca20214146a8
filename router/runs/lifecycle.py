"""Every request becomes a run: on record before anything is spent, stored before anyone hears of its result."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
import structlog

from router.errors import NotFound, OutOfTime, RequestIdTaken, StoreFailed
from router.ledger.budget import UNLIMITED, Allowance, Budget
from router.ledger.journal import Began, Journal, RunStart
from router.ledger.ledger import Ledger
from router.runs.admission import Admission
from router.runs.archive import Archive
from router.runs.live import LiveRun, LiveRuns
from router.runs.observers import Observer, Observers
from router.search.context import ANSWERING_SHARE, RunContext, Sharing
from router.trace.call import RoleName
from router.trace.identity import LOCAL, Identity
from router.trace.run import RoleSetting, Run, RunKind, RunStatus
from router.trace.values import AnswerWritten, Emit, Event, Result, RunStarted, Trajectory

_POLL_S = 0.2
"""How often a run of another process is looked at."""


async def ended_run(run_id: str, archive: Archive, live: LiveRuns, tenant: str | None = None) -> Run | None:
    """The run once it has ended; None where it could not be stored. Raises `NotFound`."""
    if here := live.find(run_id):
        return await asyncio.shield(here.ended)
    while (run := await archive.load(run_id, tenant)).status == "running":  # noqa: ASYNC110 - nobody here hears of it
        await asyncio.sleep(_POLL_S)
    return run


class Terms(msgspec.Struct, frozen=True):
    """Who asks, for how long, for how much, and whether it was asked before."""

    identity: Identity = LOCAL
    time_s: float | None = None
    """The client's deadline, in seconds from now; None leaves it to the gateway."""
    request_id: str = ""
    """The client's name for the request, which makes a second one return the first one's answer; empty for none."""
    budget: Budget = UNLIMITED
    fresh: bool = False
    """Whether every sub-query is to be worked on anew: no report of another run is used, nor any of this one by others.
    """


_log = structlog.get_logger("gateway")

_STORING_SHARE, _LONGEST_STORING_S = 0.05, 0.5
"""How much of a request's time is kept for storing the run and sending the answer."""
_COUNTING_S = 0.25
"""How long counting what cut streams have spent may take."""
Work = Callable[[RunContext], Awaitable[Result]]
Then = Callable[[Run], None]


def ignore_run(_run: Run) -> None:
    """Do nothing more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is for."""

    kind: RunKind
    request: str
    """For people to read."""
    content: object
    """All that makes a request what it is; two that are equal ask the same."""
    settings: dict[RoleName, RoleSetting] | None = None
    """What the roles are that work on it; None for the usual ones."""
    answering_share: float = ANSWERING_SHARE

    @property
    def fingerprint(self) -> str:
        """SHA-256 of kind and content."""
        return hashlib.sha256(msgspec.json.encode((self.kind, self.content))).hexdigest()


class Conductor:
    """Begins runs, works on them until their deadline, and stores them however they end."""

    def __init__(
        self,
        journal: Journal,
        archive: Archive,
        live: LiveRuns,
        settings: dict[RoleName, RoleSetting],
        timeout_s: float,
        *,
        admission: Admission | None = None,
        observer: Observer | None = None,
    ) -> None:
        """`timeout_s`: the longest a request may take, whatever its deadline. `admission`: None for its defaults."""
        self._journal, self._archive, self._live = journal, archive, live
        self._settings, self._timeout_s = settings, timeout_s
        self._admission, self._observer = admission or Admission(), observer or Observers()

    async def conduct(self, asked: Asked, terms: Terms, emit: Emit, work: Work, then: Then = ignore_run) -> Run:
        """The finished run, or the earlier one of the same `request_id`. `then` hears of one that has finished here,
        unless its texts must not be kept. Raises what `work` raises, `OutOfTime`, `RunCancelled`, `BudgetExhausted`,
        `RequestIdTaken`, `Overloaded` and `StoreFailed`.
        """
        tenant = terms.identity.books_on
        if asked.kind == "shadow":  # it gives way to clients, and takes no place of theirs
            await self._admission.spare()
            return await self._conduct(asked, terms, emit, work, then, times=self._times(terms))
        times = self._times(terms)
        async with _in_time(times.deadline):
            await self._admission.enter(tenant)
        try:
            return await self._conduct(asked, terms, emit, work, then, times=times)
        finally:
            self._admission.leave(tenant)

    async def settled(self) -> None:
        """Wait until every run that has begun has ended and is stored."""
        await self._live.ended()

    def _times(self, terms: Terms) -> "_Times":
        allowed = self._timeout_s if terms.time_s is None else min(terms.time_s, self._timeout_s)
        end = asyncio.get_running_loop().time() + allowed
        return _Times(end - min(_LONGEST_STORING_S, allowed * _STORING_SHARE), end)

    async def _conduct(self, asked: Asked, terms: Terms, emit: Emit, work: Work, then: Then, *, times: "_Times") -> Run:
        start = RunStart(
            id=f"run-{secrets.token_hex(8)}",
            kind=asked.kind,
            tenant=terms.identity.books_on,
            key_id=terms.identity.key_id,
            request_id=terms.request_id,
            request=asked.request,
            fingerprint=asked.fingerprint if terms.request_id else "",
            started_at=time.time(),
        )
        async with _in_time(times.deadline):
            began = await self._begin(start)
        if isinstance(began, Run):
            for event in began.events:
                emit(event)
            return began
        ledger = Ledger(
            start.id,
            start.tenant,
            self._journal,
            Allowance(terms.budget),
            limited=began.limited,
            shadow=start.kind == "shadow",
        )
        with self._live.running(start.id, start.kind, start.tenant) as live:

            def tell(event: Event) -> None:
                live.tell(event)
                emit(event)

            self._observer.run_began()
            tell(RunStarted(start.id))
            time_s = times.deadline - asyncio.get_running_loop().time()
            context = RunContext.lasting(
                time_s,
                tell,
                ledger,
                answering_share=asked.answering_share,
                sharing=_sharing(asked, terms, began),
            )
            run = await self._run(
                start, context, live, work, _Kept(began.redact, asked.settings or self._settings), until=times.end
            )
        for event in _last_events(run.result):
            emit(event)
        if not began.redact:
            then(run)
        return run

    async def _begin(self, start: RunStart) -> Began | Run:
        """Put the run on record, or find the earlier one, whose end is waited for."""
        while True:
            try:
                began = await self._journal.begin(start)
            except asyncio.CancelledError:
                self._journal.forget(start.id)
                raise
            if isinstance(began, Began):
                return began
            if not began.same:
                raise RequestIdTaken(
                    f"request_id {start.request_id!r}: names another request, run {began.run_id}; make up a new one."
                )
            run = None
            with suppress(NotFound):
                run = await ended_run(began.run_id, self._archive, self._live)
            if run is None or run.status != "finished":
                continue
            if run.redacted:
                raise RequestIdTaken(
                    f"request_id {start.request_id!r}: was answered by run {run.id}, whose texts are not kept."
                )
            return run

    async def _run(
        self, start: RunStart, context: RunContext, live: LiveRun, work: Work, kept: "_Kept", *, until: float
    ) -> Run:
        """Do the work under its deadline and store the run, however it ends; the store is waited for `until` then."""
        begun = time.monotonic()
        failure: BaseException | None = None
        result: Result | None = None
        status: RunStatus = "finished"
        try:
            async with asyncio.timeout_at(context.deadline):
                result = await work(context)
        except TimeoutError:
            status, failure = "failed", OutOfTime(f"Time ran out (run {start.id}); allow a longer deadline.")
        except asyncio.CancelledError as cancelled:
            status, failure = "cancelled", live.why(cancelled)
        except Exception as error:
            status, failure = "failed", error
        ending = self._end(start, context, live, _Ended(status, result, failure, begun, kept))
        try:
            run = await live.to_the_end(ending, until)
        except TimeoutError:
            raise failure or OutOfTime(f"Time ran out while run {start.id} was stored; look there later.") from None
        except StoreFailed:
            if isinstance(failure, asyncio.CancelledError):  # nobody is left to hear of it
                raise failure from None
            raise
        if failure is not None:
            raise failure
        return run

    async def _end(self, start: RunStart, context: RunContext, live: LiveRun, ended: "_Ended") -> Run:
        """Store the run."""
        await context.ledger.close(_COUNTING_S)
        result = context.draft.result if ended.result is None else ended.result
        run = Run(
            id=start.id,
            kind=start.kind,
            request=start.request,
            status=ended.status,
            error=ended.error,
            result=result,
            settings=ended.kept.settings,
            calls=context.ledger.calls,
            started_at=start.started_at,
            duration_s=time.monotonic() - ended.begun,
            tenant=start.tenant,
            request_id=start.request_id,
            events=(*live.events, *_last_events(ended.result)),
        )
        try:
            await self._journal.finish(run)
        finally:
            self._observer.run_ended(run, private=ended.kept.private)
        live.end(run)
        _log.info(
            "run.stored",
            run_id=run.id,
            kind=run.kind,
            status=run.status,
            calls=len(run.calls),
            duration_s=round(run.duration_s, 3),
        )
        return run


@dataclass(frozen=True, slots=True)
class _Times:
    """Of a request, in the event loop's time."""

    deadline: float
    """When the work has to be done."""
    end: float
    """When whoever asked has to hear of it."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is to be known of a run whatever comes of it."""

    private: bool
    """Whether its texts are left out."""
    settings: dict[RoleName, RoleSetting]


@dataclass(frozen=True, slots=True)
class _Ended:
    """How the work ended."""

    status: RunStatus
    result: Result | None
    failure: BaseException | None
    begun: float
    kept: "_Kept"

    @property
    def error(self) -> str:
        """For the operator."""
        return f"{type(self.failure).__name__}: {self.failure}" if self.status == "failed" else ""


@asynccontextmanager
async def _in_time(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise OutOfTime("Time ran out before anything began; allow a longer deadline.") from None


def _sharing(asked: Asked, terms: Terms, began: Began) -> Sharing:
    """What nobody may train on must not stand in other tenants' runs either."""
    if terms.fresh or began.redact or asked.kind == "shadow":
        return "nobody"
    return "everybody" if began.training else "tenant"


def _last_events(result: Result | None) -> tuple[Event, ...]:
    """What is told only once the run is stored."""
    return (AnswerWritten(result.answer),) if isinstance(result, Trajectory) else ()
