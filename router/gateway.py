"""The gateway: every request becomes a run, and a run is stored before it is acknowledged."""

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress

import msgspec
import structlog

from router.context import ANSWERING_SHARE, Result, RunContext
from router.errors import BadRequest, OutOfTime, StoreFailed
from router.events import AnswerWritten, Emit
from router.execution import Conversation, Execution
from router.executor import Executor
from router.feedback import Feedback
from router.ledger import RoleName
from router.model import Completion, Delta, Message
from router.role import Role
from router.run import RoleSetting, Run, RunKind, RunStatus
from router.scope import Scope
from router.search import Search
from router.store import RunStore
from router.trajectory import Trajectory
from router.usage_report import UsageReport

_log = structlog.get_logger("gateway")

_STORING_SHARE, _LONGEST_STORING_S = 0.05, 0.5
"""How much of a request's time is kept for storing the run and sending the answer."""
OUT_OF_SCOPE = (
    "not in the demo world: the demo's models know a small fictional world only, and nothing of {words}. "
    'To ask about other things, name real models in a config (README, "Real models") and give it to --config.'
)


class GatewayLimits(msgspec.Struct, frozen=True):
    """What a request may be."""

    max_question_chars: int = 4000
    timeout_s: float = 120.0
    """The longest a request may take, whatever its deadline."""


class CompletionRequest(msgspec.Struct, frozen=True):
    """A conversation to be continued by the model of a role."""

    role: RoleName
    messages: tuple[Message, ...]
    stop: tuple[str, ...]
    max_tokens: int
    """0 takes the role's own limit."""


Send = Callable[[Delta], None]


class Gateway:
    """Answers, completes and executes. All of it is booked, traced and stored."""

    def __init__(
        self,
        *,
        search: Search,
        executor: Executor,
        roles: Mapping[RoleName, Role],
        settings: dict[RoleName, RoleSetting],
        store: RunStore,
        limits: GatewayLimits,
        scope: Scope | None = None,
    ) -> None:
        """`scope`: what questions may be about; None for models that know the language."""
        self._search, self._executor, self._roles = search, executor, roles
        self._settings, self._store, self._limits, self._scope = settings, store, limits, scope
        self._under_way: set[asyncio.Task[object]] = set()

    async def answer(self, question: str, time_s: float | None, emit: Emit) -> Run:
        """Answer a question within `time_s` seconds. The run's result is a `Trajectory`."""
        question = self._readable("question", question)

        async def work(context: RunContext) -> Trajectory:
            if self._scope and (outside := self._scope.outside(question)):
                return Trajectory(_out_of_scope(outside), "out_of_scope")
            return await self._search.run(question, context)

        run = await self._conduct("answer", question, self._context(time_s, emit), work)
        assert isinstance(run.result, Trajectory)
        emit(AnswerWritten(run.result.answer))
        return run

    async def execute(self, sub_query: str, time_s: float | None) -> Run:
        """Work on one sub-query. The run's result is an `Execution`."""
        sub_query = self._readable("sub_query", sub_query)
        if self._scope and (outside := self._scope.outside(sub_query)):
            raise BadRequest(_out_of_scope(outside))

        async def work(context: RunContext) -> Execution:
            return await self._executor.run(sub_query, 0, context)

        context = self._context(time_s, _ignore, answering_share=_STORING_SHARE)
        return await self._conduct("execute", sub_query, context, work)

    async def complete(self, request: CompletionRequest, time_s: float | None, send: Send | None = None) -> Run:
        """Continue a conversation with a role's model, passing each piece to `send`, if given, as it is written.
        The run's result is a `Conversation`.
        """
        messages = request.messages
        if not messages or messages[-1].role == "assistant":
            raise BadRequest("messages must end with a message of role `user` or `system`.")
        role = self._roles[request.role].limited(request.max_tokens)

        async def work(context: RunContext) -> Conversation:
            if send is None:
                return Conversation(messages, (await role.ask(messages, request.stop, context.ledger),))
            async with aclosing(role.stream(messages, request.stop, context.ledger)) as deltas:
                return Conversation(messages, (await _relay(deltas, send),))

        return await self._conduct("complete", messages[-1].content, self._context(time_s, _ignore), work)

    async def feedback(self, feedback: Feedback) -> str:
        """Keep what a client thinks of a stored run; the feedback's identifier. Raises `BadRequest` and `NotFound`."""
        if feedback.empty:
            raise BadRequest("the feedback is empty; give a verdict, a score, a gold_answer or a comment.")
        if feedback.score is not None and not 0 <= feedback.score <= 1:
            raise BadRequest(f"score is {feedback.score}; it must be from 0 to 1.")
        return await self._store.add_feedback(feedback)

    async def usage(self, start: float = -math.inf, end: float = math.inf) -> UsageReport:
        """What the stored runs spent that started from `start` on and before `end`, in Unix time."""
        if start >= end:
            raise BadRequest("start_time is not before end_time; leave one of them out, or exchange them.")
        return await self._store.usage(start, end)

    async def settled(self) -> None:
        """Wait until every run that has begun has ended and is stored."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _context(self, time_s: float | None, emit: Emit, *, answering_share: float = ANSWERING_SHARE) -> RunContext:
        """A run that ends early enough for its answer, or its error, to be stored and sent within `time_s`."""
        allowed = self._limits.timeout_s if time_s is None else min(time_s, self._limits.timeout_s)
        storing = min(_LONGEST_STORING_S, allowed * _STORING_SHARE)
        return RunContext.lasting(allowed - storing, emit, answering_share=answering_share)

    async def _conduct(
        self, kind: RunKind, request: str, context: RunContext, work: Callable[[RunContext], Awaitable[Result]]
    ) -> Run:
        """Do the work under its deadline and store the run, however it ends, before anyone hears of it."""
        started_at, begun = time.time(), time.monotonic()
        run_id = f"run-{secrets.token_hex(8)}"

        def ended(status: RunStatus, result: Result | None, error: str = "") -> Run:
            duration_s = time.monotonic() - begun
            calls = context.ledger.calls
            return Run(run_id, kind, request, status, error, result, self._settings, calls, started_at, duration_s)

        with self._noted():
            try:
                async with asyncio.timeout_at(context.deadline):
                    result = await work(context)
            except TimeoutError:
                await self._keep(ended("failed", context.draft.result, "OutOfTime"))
                raise OutOfTime(f"Time ran out (run {run_id}); allow a longer deadline.") from None
            except asyncio.CancelledError:
                with suppress(StoreFailed):  # nobody is left to hear of it
                    await self._keep(ended("cancelled", context.draft.result))
                raise
            except Exception as error:
                await self._keep(ended("failed", context.draft.result, f"{type(error).__name__}: {error}"))
                raise
            run = ended("finished", result)
            await self._keep(run)
        _log.info("run.stored", run_id=run_id, kind=kind, calls=len(run.calls), duration_s=round(run.duration_s, 3))
        return run

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """While this is open, `settled` waits for the task that runs it."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            yield
        finally:
            self._under_way.discard(task)

    async def _keep(self, run: Run) -> None:
        """Store `run` to the end, however often the request is cancelled meanwhile."""
        saving = asyncio.ensure_future(self._store.save(run))
        cancelled = False
        while not saving.done():
            try:
                await asyncio.wait([saving])  # unlike awaiting the future, this never cancels it
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        saving.result()

    def _readable(self, field: str, text: str) -> str:
        text = text.strip()
        if not text:
            raise BadRequest(f"{field} is empty; put a question in plain words into it.")
        if len(text) > self._limits.max_question_chars:
            allowed = self._limits.max_question_chars
            raise BadRequest(
                f"{field} has {len(text)} characters; at most {allowed} are allowed (server.max_question_chars)."
            )
        return text


def _out_of_scope(outside: Sequence[str]) -> str:
    return OUT_OF_SCOPE.format(words=", ".join(f'"{word}"' for word in outside[:5]))


async def _relay(deltas: AsyncIterator[Delta], send: Send) -> Completion:
    """Pass deltas on; the whole output at the end."""
    texts: list[str] = []
    reasoning: list[str] = []
    last = Delta()
    usage = None
    async for last in deltas:
        texts.append(last.text)
        reasoning.append(last.reasoning)
        usage = last.usage or usage
        send(last)
    return Completion("".join(texts), last.finish_reason or "", "".join(reasoning), usage, last.overran)


def _ignore(_event: object) -> None:
    """Listen to nothing."""
