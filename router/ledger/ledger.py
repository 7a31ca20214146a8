"""The ledger of a run: it has exactly one row for each attempt of each model call."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from msgspec.structs import asdict, replace

from router.amount import NOTHING, Amount
from router.background import at_most
from router.errors import (
    BudgetExhausted,
    ContentRefused,
    RolegateError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.frozen import Frozen
from router.ledger.budget import Allowance
from router.ledger.journal import Journal, NoJournal, Resumed
from router.models import Completion, Delta, Message, Usage
from router.models.model import largest
from router.trace import Call, Price, RoleName
from router.trace.call import COMPLETE_OUTCOMES, OpenedCall, Outcome, Purpose
from router.trace.identity import DEFAULT_TENANT
from router.trace.table import Ask
from router.trace.turns import DELEGATOR, AgentId, Asked, Decided, Searched, agent_of
from router.trace.values import SearchRecord

_log = structlog.get_logger("ledger")
_FIRST_WAIT_S = 10.0
_LATER_WAIT_S = 1.0
"""Max seconds that a call waits until other calls release their reservations. The first call of a
run may wait longer. Later calls only wait briefly, because other runs may be waiting for
reservations that this run holds.
"""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
Granted = TypeVar("Granted")


class Caller(Frozen):
    """The role and the model of a call, and the limits of the call."""

    role: RoleName
    model: str
    deployment: str
    sub_query_index: int | None = None
    max_tokens: int = 0
    executor_version: str | None = None
    price: Price | None = None
    prompt_bound: int = 0
    """Upper bound of the number of prompt tokens. It holds for every tokenizer."""


@dataclass(slots=True)
class _Books:
    """Rows and state of a run, shared by the ledger of the run and the ledgers of its managers. A
    manager is an agent that splits a sub-query among its own workers.
    """

    calls: list[Call] = field(default_factory=list)
    by_agent: dict[AgentId, list[Call]] = field(default_factory=dict)
    cut: "list[Attempt]" = field(default_factory=list)
    """Interrupted attempts, whose tokens are counted when the ledger is closed."""
    early: "list[Attempt]" = field(default_factory=list)
    """Completed attempts that are booked only after the delegator has decided whether to use their
    output.
    """
    early_from: int | None = None
    """Calls for sub-queries with this number or a higher one are booked only after the delegator
    has decided whether to use their output. None if no call waits for that.
    """
    opened: int = 0
    """Number of calls that were opened, that is recorded before they are made."""
    refusal: BudgetExhausted | None = None


class Attempt:
    """An attempt of a model call that is under way. The caller passes the model's output to `take`,
    piece by piece. When the attempt has ended, the ledger books it as a `Call`.
    """

    def __init__(self, opened: OpenedCall, price: Price | None) -> None:
        self.opened = opened
        self.request_id = opened.request_id
        self.price = price
        self.usage: Usage | None = None
        """Usage as the endpoint reported it; None if it has reported none."""
        self.count: Callable[[str], Awaitable[Usage | None]] | None = None
        """Function that takes the output so far, and returns the usage as counted by the model's
        tokenizer. None if the endpoint has no tokenizer.
        """
        self.spoke: Callable[[], None] = lambda: None
        """Called when the first token arrives."""
        self.first_token_s: float | None = None
        self.outcome: Outcome = "cancelled"
        self._begun = time.monotonic()
        self._ended_s: float | None = None
        self._texts = list[str]()
        self._wrote = False

    def take(self, delta: Delta) -> None:
        """Add a piece of a streamed output."""
        if self.first_token_s is None and (delta.text or delta.reasoning):
            self.first_token_s = self.duration_s
            self._wrote = True
            self.spoke()
        self._texts += delta.reasoning, delta.text
        self.usage = largest(self.usage, delta.usage)

    def take_completion(self, completion: Completion) -> None:
        """Set the output of a call that was not streamed."""
        self._wrote = bool(completion.text or completion.reasoning)
        self.usage = completion.usage

    def end(self, outcome: Outcome) -> None:
        """Set the outcome of the attempt, and stop its clock."""
        self.outcome = outcome
        self._ended_s = time.monotonic() - self._begun

    @property
    def believed(self) -> Usage | None:
        """The reported usage; None if there is none, or if it cannot be true, such as more tokens
        than the call allows.
        """
        if self.usage is None or not self.opened.allows(self.usage):
            return None
        return None if self._wrote and not self.usage.completion_tokens else self.usage

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the attempt until now, or until its end."""
        return time.monotonic() - self._begun if self._ended_s is None else self._ended_s

    async def counted(self) -> Usage | None:
        """Return the usage of an interrupted attempt, counted with the model's tokenizer; None if
        that is not possible.
        """
        usage = await self.count("".join(self._texts)) if self.count else None
        if usage is None:
            return None
        # Tokenizing the text again may give a few more tokens than the engine wrote.
        written = min(usage.completion_tokens, self.opened.max_tokens)
        usage = replace(usage, completion_tokens=written, estimated=True)
        return usage if self.opened.allows(usage) else None


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, UpstreamUnavailable):
        return "connect_error" if error.unspent else "unavailable"
    if isinstance(error, ContentRefused):
        return "content_refused"
    if isinstance(error, UpstreamRefused):
        return "refused"
    return "protocol_error" if isinstance(error, UpstreamProtocolError) else "failed"


class Ledger:
    """Books the calls of a run. Before each call, it reserves the call's worst case, that is the
    max amount that the call can cost.
    """

    def __init__(
        self,
        run_id: str = "run",
        tenant: str = DEFAULT_TENANT,
        journal: Journal | None = None,
        allowance: Allowance | None = None,
        *,
        limited: bool = False,
        shadow: bool = False,
        resumed: Resumed | None = None,
        key_id: str = "",
    ) -> None:
        """`journal`: where calls, turns and searches are recorded; None to store nothing.
        `allowance`: the run's budget; None for no limit. `limited`: True if the tenant has quotas.
        `shadow`: True to book all calls with the purpose `shadow`. `resumed`: the interrupted run
        that this run resumes; what it has spent counts against the budget. `key_id`: see
        `OpenedCall.key_id`.
        """
        self.run_id = run_id
        self.tenant = tenant
        self._key_id = key_id
        self._journal: Journal = journal or NoJournal()
        self._allowance = allowance or Allowance()
        self._tenant_limited = limited
        self._shadow = shadow
        self._books = _Books()
        self._resumed = resumed.turns if resumed else ()
        self._lead = DELEGATOR
        """The agent whose sub-queries this ledger books: the delegator, or a manager."""
        self._run: Ledger | None = None
        for call in resumed.calls if resumed else ():
            self._allowance.take(call.role, call.charged)

    def within(self, sub_query_index: int, manager: str) -> "Ledger":
        """Return a ledger for a manager that works on a sub-query. The rows of the returned ledger
        are added to the rows of the run. Sub-query numbers that are passed to the returned ledger
        are numbers of the manager's own sub-queries. The methods `reserve_for_answer` and `decide`
        of the returned ledger do nothing, because only the delegator may reserve and decide.
        """
        ledger = copy(self)
        ledger._lead = AgentId("delegation", sub_query_index, manager)
        ledger._run = self
        return ledger

    @property
    def of_run(self) -> "Ledger":
        """The ledger of the whole run. For a manager's ledger, it is the ledger on which `within`
        was called.
        """
        return self._run or self

    @property
    def refusal(self) -> BudgetExhausted | None:
        """The error of the last refused reservation; None if no reservation was refused."""
        return self._books.refusal

    @property
    def calls(self) -> tuple[Call, ...]:
        """The rows so far, in the order in which their attempts were booked."""
        return tuple(self._books.calls)

    @property
    def budgeted(self) -> bool:
        """True if the request has a budget."""
        return self._allowance.limited

    @property
    def limited(self) -> bool:
        """True if a budget or a quota limits the run, so that the worst case of each call must be
        reserved.
        """
        return self._tenant_limited or self._allowance.limited

    @asynccontextmanager
    async def attempt(
        self,
        caller: Caller,
        purpose: Purpose,
        number: int,
        worst: Amount = NOTHING,
        *,
        waits: bool = True,
    ) -> AsyncIterator[Attempt]:
        """Book one attempt as one row of the ledger. The body of the `async with` statement makes
        the attempt. A failed attempt is booked too.

        `number`: number of the attempt within its call. `worst`: the max amount that the attempt
        can cost. `waits`: whether to wait some seconds if the budget is too small only because of
        reservations for calls in flight. Raises `BudgetExhausted` or `StoreFailed` before the body
        runs; then there is no row.
        """
        opened = await self._granted(
            lambda: self._open(caller, purpose, number, worst), waits=waits
        )
        attempt = Attempt(opened, caller.price)
        outcome: Outcome = "cancelled"

        try:
            yield attempt
            outcome = "completed"
        except Exception as error:
            outcome = _outcome_of(error)
            raise
        finally:
            attempt.end(outcome)
            self._book_or_defer(attempt)

    def _book_or_defer(self, attempt: Attempt) -> None:
        """Book an attempt that has ended. If the delegator must first decide whether its output is
        used, or if its tokens must be counted, book it later.
        """
        first = self._books.early_from
        sub_query_index = attempt.opened.sub_query_index
        early = first is not None and sub_query_index is not None and sub_query_index >= first
        countable = attempt.count is not None and attempt.first_token_s is not None
        if attempt.outcome == "completed" and early:
            self._books.early.append(attempt)
        elif attempt.outcome != "completed" and attempt.believed is None and countable:
            self._books.cut.append(attempt)
        else:
            self._settle(attempt, attempt.believed)

    async def reserve_for_answer(self, amount: Amount) -> None:
        """Reserve `amount` for the answerer, in place of the amount reserved for it before.

        Raises `BudgetExhausted` or `StoreFailed`; then the earlier reservation stays.
        """
        if self._run:
            return

        async def reserve() -> None:
            before = self._allowance.reserve_for_answer(amount)
            if self._tenant_limited:
                try:
                    await self._journal.reserve_for_answer(self.run_id, amount)
                except RolegateError:
                    self._allowance.reserve_for_answer(before)
                    raise

        await self._granted(reserve)

    def turn(self, agent: AgentId, messages: tuple[Message, ...], output: Completion) -> None:
        """Record a completed turn of an agent. `messages`: the whole prompt. `output`: the model's
        output.
        """
        self._journal.turn(self.run_id, agent.within(self._lead), messages, output)

    def turn_before(self, agent: AgentId, messages: tuple[Message, ...]) -> Completion | None:
        """Return the agent's recorded turn from the resumed run, if its prompt was exactly
        `messages`.
        """
        of_run = agent.within(self._lead)
        # Call `next_turn` for each of the resumed runs, so that each advances to its next turn.
        outputs = [turns.next_turn(of_run, messages) for turns in self._resumed]
        output = next((output for output in outputs if output is not None), None)
        if output is not None:
            self.turn(agent, messages, output)
        return output

    def search_before(self, agent: AgentId, query: str) -> SearchRecord | None:
        """Return the agent's next recorded search from the resumed run, if it was for `query`."""
        searches = [turns.next_search(agent.within(self._lead), query) for turns in self._resumed]
        return next((search for search in searches if search is not None), None)

    def searched(self, agent: AgentId, search: SearchRecord) -> None:
        """Record a search of an agent, with its result."""
        self._journal.note(self.run_id, Searched(agent.within(self._lead), search))

    def asks_before(self) -> dict[Ask, int]:
        """Return the asks of the resumed run, each with the number of its sub-query. An ask is one
        piece of work on a table, such as to find rows or to look up cells.
        """
        asks = dict[Ask, int]()
        for turns in reversed(self._resumed):
            asks |= turns.asks
        return asks

    def asked(self, number: int, ask: Ask) -> None:
        """Record that `ask` is worked on as the sub-query `number`, so that it keeps this number if
        the run is resumed.
        """
        self._journal.note(self.run_id, Asked(number, ask))

    def await_decision(self, first: int) -> None:
        """Defer the booking of completed calls for the sub-queries with the number `first` or
        higher. `decide` then books them, when it is known whether their output is used.
        """
        self._books.early_from = first

    def decide(self, below: int) -> None:
        """Book the deferred calls after the delegator's decision. Calls for sub-queries with a
        number less than `below` are booked as completed, all others as wasted.
        """
        if self._run:
            return
        if self._books.early_from is not None:
            self._journal.note(self.run_id, Decided(below))
        self._books.early_from = None
        self._book(self._books.early, below)
        self._books.early = []

    def worked_on(self, sub_query_index: int) -> set[str]:
        """Return the executor versions that have completed calls for a sub-query, including calls
        whose booking is deferred. A model that is not a registered version is returned as an empty
        string.
        """
        booked = [call for call in self._calls_for(sub_query_index) if call.outcome == "completed"]
        early = [
            cut.opened
            for cut in self._books.early
            if agent_of(cut.opened) == self._executor(sub_query_index)
        ]
        return {call.executor_version or "" for call in (*booked, *early)}

    def last_outcome(self, sub_query_index: int) -> Outcome | None:
        """Return the outcome of the last booked call for a sub-query; None if there is none."""
        return next((call.outcome for call in reversed(self._calls_for(sub_query_index))), None)

    def waste(self, sub_query_index: int) -> None:
        """Book the deferred calls for a sub-query as wasted: their output is not used."""
        deferred = self._books.early
        wasted = [
            attempt for attempt in deferred if attempt.opened.sub_query_index == sub_query_index
        ]
        self._books.early = [attempt for attempt in deferred if attempt not in wasted]
        self._book(wasted, 0)

    async def close(self, within_s: float) -> None:
        """Count the tokens of interrupted streams with the models' tokenizers, and book their
        attempts. If a stream cannot be counted within `within_s` seconds, its tokens stay unknown.
        """
        cuts = self._books.cut
        self._books.cut = []
        usages: list[Usage | None] = [None] * len(cuts)

        async def count(index: int, cut: Attempt) -> None:
            usages[index] = await cut.counted()

        try:
            async with at_most(within_s), asyncio.TaskGroup() as group:
                for index, cut in enumerate(cuts):
                    group.create_task(count(index, cut))
        finally:
            for cut, usage in zip(cuts, usages, strict=True):
                self._settle(cut, usage)

    async def _open(
        self,
        caller: Caller,
        purpose: Purpose,
        attempt: int,
        worst: Amount,
    ) -> OpenedCall:
        agent = AgentId(caller.role, caller.sub_query_index).within(self._lead)
        opened = OpenedCall(
            run_id=self.run_id,
            tenant=self.tenant,
            number=self._books.opened,
            role=caller.role,
            model=caller.model,
            deployment=caller.deployment,
            executor_version=caller.executor_version,
            purpose="shadow" if self._shadow and purpose != "rerank" else purpose,
            attempt=attempt,
            sub_query_index=agent.sub_query_index,
            max_tokens=caller.max_tokens,
            reserved=worst,
            started_at=time.time(),
            prompt_bound=caller.prompt_bound,
            manager=agent.manager,
            worker=agent.worker,
            key_id=self._key_id,
        )
        self._allowance.reserve(caller.role, worst)
        self._books.opened += 1
        try:
            await self._journal.open(opened)
        except BaseException:
            self._allowance.settle(caller.role, worst, NOTHING)
            raise
        return opened

    async def _granted(
        self, ask: Callable[[], Awaitable[Granted]], *, waits: bool = True
    ) -> Granted:
        """Return the result of `ask`, a function that makes a reservation. `waits`: whether to
        retry for some seconds if the reservation is refused only because of reservations for calls
        in flight. Raises the errors of `ask`.
        """
        until = time.monotonic()
        if waits:
            until += _LATER_WAIT_S if self._books.opened else _FIRST_WAIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await ask()
            except BudgetExhausted as error:
                self._books.refusal = error
                if not error.contended or time.monotonic() >= until:
                    raise
            await asyncio.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _executor(self, sub_query_index: int) -> AgentId:
        """Return the identity of the executor for a sub-query. The sub-query belongs to the agent
        whose calls this ledger books: the delegator, or a manager.
        """
        return AgentId("execution", sub_query_index).within(self._lead)

    def _calls_for(self, sub_query_index: int) -> Sequence[Call]:
        return self._books.by_agent.get(self._executor(sub_query_index), ())

    def _book(self, early: list[Attempt], below: int) -> None:
        for attempt in early:
            if attempt.opened.sub_query_index is None or attempt.opened.sub_query_index >= below:
                attempt.outcome = "wasted"
            self._settle(attempt, attempt.believed)

    def _settle(self, attempt: Attempt, usage: Usage | None) -> None:
        opened = attempt.opened
        price = attempt.price
        if (
            usage is not None
            and attempt.outcome not in (*COMPLETE_OUTCOMES, "content_refused")
            and not usage.estimated
        ):
            usage = replace(usage, lower_bound=True)
        impossible = attempt.usage is not None and attempt.believed is None
        if impossible:
            _log.warning(
                "call.impossible_usage",
                call=opened.request_id,
                model=opened.model,
                told=repr(attempt.usage),
            )
        call = Call(
            **asdict(opened),
            outcome=attempt.outcome,
            usage=usage,
            nano_usd=price.cost(usage) if price and usage else None,
            first_token_s=attempt.first_token_s,
            duration_s=attempt.duration_s,
            impossible_usage=impossible and usage is None,
        )
        self._books.calls.append(call)
        self._books.by_agent.setdefault(agent_of(call), []).append(call)
        self._allowance.settle(call.role, call.reserved, call.charged)
        self._journal.settle(call)
