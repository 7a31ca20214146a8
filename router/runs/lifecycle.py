"""Lifecycle of runs. A run is recorded in the log before it spends anything, and stored before its
result is returned.
"""

import asyncio
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace
from structlog.contextvars import bound_contextvars

from router.background import loop_time
from router.errors import (
    BadRequest,
    NotFound,
    OutOfTime,
    RequestIdTaken,
    RunCancelled,
    RunInterrupted,
    StoreFailed,
)
from router.frozen import Frozen
from router.ledger import Budget, Journal, Ledger, RunStart
from router.ledger.budget import UNLIMITED, Allowance
from router.ledger.journal import Admitted
from router.runs.admission import Admission
from router.runs.archive import Archive
from router.runs.live import LiveRun, LiveRuns
from router.runs.observers import Observer, Observers
from router.search import RunContext
from router.search.context import ANSWERING_SHARE
from router.trace import Event, Run, Trajectory
from router.trace.identity import LOCAL, Identity
from router.trace.run import RoleSetting, RunKind, RunStatus
from router.trace.scope import DEFAULT_SCOPE, NO_FILTER, DocumentFilter, Scope
from router.trace.values import AnswerWritten, OnEvent, RunStarted

_log = structlog.get_logger("gateway")
_RESUMABLE = ("answer", "table")
"""Kinds of runs that can be resumed after an interruption."""
POLL_S = 0.2
"""Seconds between two checks of the status of a run in another process."""
_STORING_SHARE = 0.05
_LONGEST_STORING_S = 0.5
"""Time that is reserved at the end of a request for storing the run and sending the answer:
`_STORING_SHARE` of the whole time, but at most `_LONGEST_STORING_S` seconds.
"""
_COUNTING_S = 0.25
"""Max seconds for counting the tokens of streams that were interrupted."""
Request = TypeVar("Request")


class RequestOptions(Frozen):
    """Options that all kinds of requests have: caller, deadline, idempotency key and budget."""

    identity: Identity = LOCAL
    time_s: float | None = None
    """The client's deadline, in seconds from now; None for the gateway's limit."""
    request_id: str = ""
    """The idempotency key that the client chose. A later request with the same key gets the run of
    the first request. Empty if the client sent no key.
    """
    budget: Budget = UNLIMITED
    no_cache: bool = False
    """True if executors must work on every sub-query again: the run reuses no report of another
    run, and no other run reuses a report of this one.
    """
    resume: str = ""
    """Identifier of an interrupted run to resume; empty for none. If it is set, the question and
    the budget come from the interrupted run, not from this request.
    """
    index: tuple[str, ...] = ()
    """Names of the indexes to search; empty for all indexes that the caller's tenant may search."""
    filter: DocumentFilter = NO_FILTER
    """Conditions that the documents to search must meet."""


class RunRequest(Frozen):
    """A request for which a run is to be opened."""

    kind: RunKind
    text: str
    """The question, sub-query or last message, for lists and logs."""
    content: object
    """The complete request. If two requests have the same `request_id`, but a different kind or
    content, the second is refused.
    """
    settings: dict[str, RoleSetting] | None = None
    """Models and prompts of the roles that work on the request; None for `RunLifecycle.settings`.
    """
    answering_share: float = ANSWERING_SHARE
    """Share of the run's time that is reserved for writing the answer after the searches."""
    topology: str = ""
    timeout_s: float | None = None
    """Max duration of the run, in seconds; None for the gateway's limit."""

    def fingerprint(self, scope: Scope) -> str:
        """Return the SHA-256 of kind, content and scope; equal requests have equal fingerprints."""
        whole = msgspec.json.encode((self.kind, self.content, scope))
        return hashlib.sha256(whole).hexdigest()


@dataclass(slots=True)
class OpenRun:
    """A run under way. `RunLifecycle.open` yields it to the code that does the work."""

    context: RunContext
    start: RunStart
    """The run's identifier, tenant, request and other values that are known when it begins."""
    live: LiveRun
    private: bool
    """True if the run is stored without its texts."""
    training: bool
    """True if executors may be trained on the run."""
    settings: dict[str, RoleSetting]
    """Models and prompts of the roles that work in the run."""
    begun: float = field(default_factory=time.monotonic)
    status: RunStatus = "finished"
    failure: BaseException | None = None
    ended: Run | None = None

    @property
    def stored(self) -> Run:
        """The stored run. May be used only after the context of `RunLifecycle.open` is left."""
        assert self.ended is not None, "the run has not ended"
        return self.ended

    @property
    def last_events(self) -> tuple[Event, ...]:
        """The events that are sent only after the run is stored: the event with the answer, or
        none.
        """
        result = self.context.draft.result
        if self.status == "finished" and isinstance(result, Trajectory):
            return (AnswerWritten(result.answer),)
        return ()

    @property
    def error(self) -> str:
        """The class and the message of the exception that ended the run, if the run failed or was
        cancelled on request; otherwise empty. For the operator only, because the message may
        contain addresses.
        """
        shown = self.status == "failed" or isinstance(self.failure, RunCancelled)
        return f"{type(self.failure).__name__}: {self.failure}" if shown else ""


@dataclass(frozen=True)
class RunLifecycle:
    """Opens runs, enforces their deadlines, and stores them at the end, even if they fail."""

    journal: Journal
    """Records the beginning and the end of runs."""
    archive: Archive
    """Loads runs of other processes."""
    live: LiveRuns
    """Registers the runs of this process."""
    settings: dict[Any, RoleSetting]
    """Models and prompts of the gateway's roles."""
    timeout_s: float
    """Max duration of a request, in seconds."""
    admission: Admission = field(default_factory=Admission)
    observer: Observer = field(default_factory=Observers)
    conditions: Callable[[Scope], dict[str, str]] = lambda _scope: {}
    """Function that takes a scope and returns named values, such as the identifier of the index.
    The results of a run in this scope depend on these values, so an interrupted run can be resumed
    only if the values are unchanged. Raises `NotFound` for an index that does not exist.
    """

    @asynccontextmanager
    async def open(
        self,
        request: RunRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> AsyncIterator[OpenRun | Run]:
        """Record the beginning of a run, yield the run, and store it when the context is left.

        The code inside the context puts its result into `context.draft` of the yielded `OpenRun`.
        If an earlier request with the same `request_id` has finished, its stored `Run` is yielded
        instead, and its events are passed to `on_event`.

        Raises `Overloaded` if there is no place for the run, `OutOfTime` after the deadline,
        `RunCancelled` if the run is cancelled, `RunInterrupted` if the gateway stops,
        `RequestIdTaken` if `request_id` belongs to another request, `BudgetExhausted` if the budget
        or quota is too small, and `StoreFailed` if the run cannot be stored. An exception that the
        code inside raises is passed on.
        """
        shadow = request.kind == "shadow"
        if shadow:  # A trial waits until clients leave a place free, but does not take it.
            await self.admission.spare()
        now = loop_time()
        longest = request.timeout_s or self.timeout_s
        time_s = longest if options.time_s is None else min(options.time_s, longest)
        advice = (
            "raise server.timeout_s (of a table: table.timeout_s)"
            if time_s == longest
            else "pass a longer timeout (--timeout; in Python, timeout_s)"
        )
        ends_at = now + time_s
        deadline = ends_at - min(_LONGEST_STORING_S, time_s * _STORING_SHARE)
        tenant = options.identity.books_on
        async with nullcontext() if shadow else self._place(tenant, deadline):
            start = self._start(request, options)
            async with _in_time(deadline):
                began = await self._begin(start)
            if isinstance(began, Run):
                for event in began.events:
                    on_event(event)
                yield began
                return
            log_fields = {"run_id": start.id, "tenant": tenant, "request_id": start.request_id}
            with (
                bound_contextvars(**{name: value for name, value in log_fields.items() if value}),
                self.live.running(start.id, start.tenant, on_event) as live,
            ):
                self.observer.run_began()
                live.on_event(RunStarted(start.id))
                run = self._running(
                    request,
                    start,
                    began,
                    live,
                    deadline,
                )
                async with self._stored_at_the_end(run, ends_at, advice):
                    yield run
            for event in run.last_events:
                on_event(event)

    async def resumed(
        self,
        kind: RunKind,
        request: Request,
        options: RequestOptions,
    ) -> tuple[Request, RequestOptions]:
        """Return the request and the options of the interrupted run that `options.resume` names. If
        `options.resume` is empty, return `request` and `options` unchanged.

        Raises `NotFound` if there is no such run, and `BadRequest` if the run is of another kind or
        cannot be resumed.
        """
        if not options.resume:
            return request, options
        start = self.journal.unfinished(options.resume)
        if start is None or start.kind != kind or not options.identity.sees(start.tenant):
            run = await self.archive.load(options.resume, options.identity.tenant)
            raise BadRequest(
                f"run_id {run.id!r}: this {run.status} run of kind {run.kind} cannot be resumed. "
                "Only an interrupted answer or table can be resumed, once, at the gateway where it "
                f"began within the last hour. `rolegate runs show {run.id}` shows the run; to get "
                "an answer, ask again."
            )
        recorded = replace(
            options,
            budget=start.budget,
            no_cache=start.no_cache,
            request_id=options.request_id or start.request_id,
            index=start.scope.indexes,
            filter=start.scope.filter,
        )
        return msgspec.json.decode(start.content, type=type(request)), recorded

    def _start(self, request: RunRequest, options: RequestOptions) -> RunStart:
        # No search is made for a completion, so it needs no index.
        scope = DEFAULT_SCOPE
        if request.kind != "complete":
            scope = options.identity.scope(options.index, options.filter)
        further = self.conditions(scope)
        content = ""
        conditions = dict[str, str]()
        if request.kind in _RESUMABLE:
            content = msgspec.json.encode(request.content).decode()
            for name, role in (request.settings or self.settings).items():
                conditions[f"model or prompt of {name}"] = f"{role.model} {role.prompt_sha256}"
            conditions |= further
        return RunStart(
            id=f"run-{secrets.token_hex(8)}",
            kind=request.kind,
            tenant=options.identity.books_on,
            key_id=options.identity.key_id,
            request_id=options.request_id,
            request=request.text,
            fingerprint=request.fingerprint(scope) if options.request_id else "",
            started_at=time.time(),
            topology=request.topology,
            budget=options.budget,
            no_cache=options.no_cache,
            conditions=conditions,
            resumes=options.resume,
            scope=scope,
            content=content,
        )

    def _running(
        self,
        request: RunRequest,
        start: RunStart,
        began: Admitted,
        live: LiveRun,
        deadline: float,
    ) -> OpenRun:
        """Return the open run, with a new ledger, and with deadlines for its searches and for its
        answer.
        """
        if began.resumed:  # `start.resumes` is empty if a repeated `request_id` resumes the run
            start = replace(start, resumes=began.resumed.start.id)
        ledger = Ledger(
            start.id,
            start.tenant,
            self.journal,
            Allowance(start.budget),
            limited=began.limited,
            shadow=start.kind == "shadow",
            resumed=began.resumed,
            key_id=start.key_id,
        )
        context = RunContext.lasting(
            deadline - loop_time(),
            live.on_event,
            ledger,
            answering_share=request.answering_share,
            sharing=not (start.no_cache or began.redact or start.kind == "shadow"),
            scope=start.scope,
        )
        settings = request.settings or self.settings
        return OpenRun(
            context,
            start,
            live,
            began.redact,
            began.training,
            settings,
        )

    @asynccontextmanager
    async def _place(self, tenant: str, deadline: float) -> AsyncIterator[None]:
        async with _in_time(deadline):
            await self.admission.enter(tenant)
        try:
            yield
        finally:
            self.admission.leave(tenant)

    async def _begin(self, start: RunStart) -> Admitted | Run:
        """Record the beginning of the run. If an earlier run has the same `request_id`, wait until
        it ends, and return it if it finished. Raises `RunCancelled` if the earlier run is cancelled
        on request.
        """
        while True:
            try:
                began = await self.journal.begin(start)
            except asyncio.CancelledError:
                self.journal.forget(start.id)
                raise
            if isinstance(began, Admitted):
                return began
            if not began.same:
                raise RequestIdTaken(
                    f"request_id {start.request_id!r}: already belongs to another request, run "
                    f"{began.run_id}; choose a new request_id."
                )
            run = None
            with suppress(NotFound):
                run = await ended_run(began.run_id, self.archive, self.live)
            if run and run.status == "cancelled" and run.error:  # on request
                raise RunCancelled(
                    f"The earlier run {run.id} with this request_id was cancelled; ask again."
                )
            if run is None or run.status != "finished":
                continue
            if run.redacted:
                raise RequestIdTaken(
                    f"request_id {start.request_id!r}: belongs to run {run.id}, whose answer is "
                    "not stored (tenant setting redact); choose a new request_id."
                )
            return run

    @asynccontextmanager
    async def _stored_at_the_end(
        self, run: OpenRun, ends_at: float, advice: str
    ) -> AsyncIterator[None]:
        """Store the run when the context is left, whether its work succeeded or failed. Waits for
        the store until `ends_at`, a time of the event loop. After that, raises the error of the
        work, or `OutOfTime` if the work succeeded. `advice`: advice in the message of `OutOfTime`,
        such as to pass a longer timeout.
        """
        try:
            async with asyncio.timeout_at(run.context.deadline):
                yield
        except (TimeoutError, OutOfTime):
            run.status = "failed"
            run.failure = OutOfTime(
                f"The deadline passed before run {run.start.id} had an answer; {advice}, or use a "
                "faster model."
            )
        except asyncio.CancelledError as cancelled:
            run.failure = run.live.reason(cancelled)
            run.status = "interrupted" if isinstance(run.failure, RunInterrupted) else "cancelled"
        except Exception as error:
            run.status = "failed"
            run.failure = error
        try:
            run.ended = await run.live.until_ended(self._store(run), ends_at)
        except TimeoutError:
            late = OutOfTime(
                f"The deadline passed while run {run.start.id} was stored; get its result later "
                f"with `rolegate runs show {run.start.id}`."
            )
            raise run.failure or late from None
        except StoreFailed:
            if isinstance(run.failure, asyncio.CancelledError):  # the client has disconnected
                raise run.failure from None
            raise
        if run.failure is not None:
            raise run.failure

    async def _store(self, run: OpenRun) -> Run:
        await run.context.ledger.close(_COUNTING_S)
        stored = run.start.ended(
            status=run.status,
            error=run.error,
            result=run.context.draft.whole,
            settings=run.settings,
            calls=run.context.ledger.calls,
            duration_s=time.monotonic() - run.begun,
            events=(*run.live.events, *run.last_events),
        )
        try:
            await self.journal.finish(stored)
        finally:
            self.observer.run_ended(stored, private=run.private)
        run.live.end(stored)
        calls = len(stored.calls)
        duration_s = round(stored.duration_s, 3)
        _log.info(
            "run.stored",
            kind=stored.kind,
            status=stored.status,
            calls=calls,
            duration_s=duration_s,
        )
        return stored


async def ended_run(
    run_id: str,
    archive: Archive,
    live: LiveRuns,
    tenant: str | None = None,
) -> Run | None:
    """Wait until a run has ended, and return it; None if it could not be stored. Raises `NotFound`
    if there is no such run, or if it belongs to another tenant than `tenant`.
    """
    if here := live.find(run_id):
        return await asyncio.shield(here.ended)
    # The run may belong to another process, which does not notify this one of its end.
    while (run := await archive.load(run_id, tenant)).status == "running":  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return run


@asynccontextmanager
async def _in_time(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise OutOfTime(
            "The deadline passed before the run could begin; pass a longer timeout (--timeout; in "
            "Python, timeout_s), or raise server.timeout_s."
        ) from None
