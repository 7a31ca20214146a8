"""The ledger of one run: exactly one row for every attempt of every upstream call."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec
import structlog

from router.amount import NOTHING, Amount
from router.errors import (
    BudgetExhausted,
    ContentRefused,
    RolegateError,
    UpstreamProtocolError,
    UpstreamRefused,
    UpstreamUnavailable,
)
from router.ledger.budget import Allowance
from router.ledger.journal import Journal, NoJournal, Resumed
from router.models import Completion, Delta, Message, Usage
from router.models.model import largest
from router.trace import Call, Price, RoleName
from router.trace.call import WHOLE, OpenedCall, Outcome, Purpose
from router.trace.identity import DEFAULT_TENANT
from router.trace.table import Ask
from router.trace.turns import DELEGATOR, Agent, Asked, Decided, Searched
from router.trace.values import SearchRecord

_log = structlog.get_logger("ledger")
_FIRST_WAIT_S = 10.0
_LATER_WAIT_S = 1.0
"""How long a run waits for others' reservations: before its first call, when it may well wait, and
later, when it holds something that others may be waiting for.
"""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
Granted = TypeVar("Granted")


@dataclass(frozen=True, slots=True)
class Caller:
    """The run, role and purpose that calls are made for."""

    role: RoleName
    model: str
    deployment: str
    sub_query: int | None = None
    max_tokens: int = 0
    executor_version: str | None = None
    price: Price | None = None
    prompt_bound: int = 0
    """The prompt has no more tokens than this."""
    manager: str = ""
    worker: int | None = None


@dataclass(slots=True)
class _Books:
    """The books of a run, common to all ledgers of its layers."""

    calls: list[Call] = field(default_factory=list)
    by_agent: dict[Agent, list[Call]] = field(default_factory=dict)
    cut: "list[Attempt]" = field(default_factory=list)
    early: "list[Attempt]" = field(default_factory=list)
    early_from: int | None = None
    opened: int = 0
    refusal: BudgetExhausted | None = None


class Attempt:
    """An attempt, while it is under way and until it is booked; whoever makes the call notes
    here what comes of it.
    """

    def __init__(self, opened: OpenedCall, price: Price | None = None) -> None:
        self.opened = opened
        self.request_id = opened.request_id
        self.price = price
        self.usage: Usage | None = None
        """As the engine tells it."""
        self.count: Callable[[str], Awaitable[Usage | None]] | None = None
        """Counts the call's tokens by the model's tokenizer, given what was written; None where
        that is not known.
        """
        self.spoke: Callable[[], None] = lambda: None
        """Called at its first token."""
        self.first_token_s: float | None = None
        self.outcome: Outcome = "cancelled"
        self._begun = time.monotonic()
        self._ended_s: float | None = None
        self._texts: list[str] = []
        self._wrote = False

    def take(self, delta: Delta) -> None:
        """Note a piece of the output."""
        if self.first_token_s is None and (delta.text or delta.reasoning):
            self.first_token_s = self.duration_s
            self._wrote = True
            self.spoke()
        self._texts += delta.reasoning, delta.text
        self.usage = largest(self.usage, delta.usage)

    def take_whole(self, completion: Completion) -> None:
        """Note an output that came at once."""
        self._wrote = bool(completion.text or completion.reasoning)
        self.usage = completion.usage

    def end(self, outcome: Outcome) -> None:
        """Note that it is over."""
        self.outcome, self._ended_s = outcome, time.monotonic() - self._begun

    @property
    def believed(self) -> Usage | None:
        """The usage, as far as it can be; None where it is unknown."""
        if self.usage is None or not self.opened.allows(self.usage):
            return None
        return None if self._wrote and not self.usage.completion_tokens else self.usage

    @property
    def duration_s(self) -> float:
        """Seconds that it has been going on, or took."""
        return time.monotonic() - self._begun if self._ended_s is None else self._ended_s

    async def counted(self) -> Usage | None:
        """Return what was written by the time of a cut, counted by the model's tokenizer."""
        usage = await self.count("".join(self._texts)) if self.count else None
        if usage is None:
            return None
        # A text that is cut into tokens anew may come to a few more than the engine wrote.
        written = min(usage.completion_tokens, self.opened.max_tokens)
        usage = msgspec.structs.replace(usage, completion_tokens=written, estimated=True)
        return usage if self.opened.allows(usage) else None


def _agent_of(call: OpenedCall) -> Agent:
    return Agent(call.role, call.sub_query, call.manager, call.worker)


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, UpstreamUnavailable):
        return "connect_error" if error.unspent else "unavailable"
    if isinstance(error, ContentRefused):
        return "content_refused"
    if isinstance(error, UpstreamRefused):
        return "refused"
    return "protocol_error" if isinstance(error, UpstreamProtocolError) else "failed"


class Ledger:
    """Books the calls of one run, and reserves what they may cost before they are made."""

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
    ) -> None:
        """`limited`: whether the tenant has quotas. `shadow`: whether nobody asked for what is
        done. Without a journal, nothing is written down. `resumed`: the run that is gone on with,
        which has spent a part of the budget.
        """
        self.run_id = run_id
        self.tenant = tenant
        self._journal: Journal = journal or NoJournal()
        self._allowance = allowance or Allowance()
        self._tenant_limited = limited
        self._shadow = shadow
        self._books = _Books()
        self._resumed = resumed.turns if resumed else ()
        self._lead = DELEGATOR
        """The agent whose ledger it is: the delegator, or a manager."""
        self._run: Ledger | None = None
        for call in resumed.calls if resumed else ():
            self._allowance.take(call.role, call.charged)

    def within(self, sub_query: int, manager: str) -> "Ledger":
        """The ledger of a manager at work on a sub-query: numbers of sub-queries are those of its
        workers. It decides nothing early, and keeps nothing back for an answer, which is the run's.
        """
        ledger = copy(self)
        ledger._lead = Agent("delegation", sub_query, manager)
        ledger._run = self
        return ledger

    @property
    def of_run(self) -> "Ledger":
        """That of the whole run."""
        return self._run or self

    @property
    def refusal(self) -> BudgetExhausted | None:
        """The last reservation that was refused; None where none was."""
        return self._books.refusal

    @property
    def calls(self) -> tuple[Call, ...]:
        """The rows so far, in the order in which the attempts were settled: those that `close`
        counts at the end.
        """
        return tuple(self._books.calls)

    @property
    def budgeted(self) -> bool:
        """Whether the request itself limits what it may spend."""
        return self._allowance.limited

    @property
    def limited(self) -> bool:
        """Whether anything limits what the run may spend, so that worst cases must be known."""
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
        """Book what happens inside as one row, however it ends. `worst`: what it may cost at most.
        `waits`: wait a little for what calls that are under way may give back.

        Raises `BudgetExhausted` or `StoreFailed` before anything happens inside; then there is no
        row.
        """
        agent = Agent(caller.role, caller.sub_query).within(self._lead)
        caller = replace(
            caller, sub_query=agent.sub_query, manager=agent.manager, worker=agent.worker
        )
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
            first = self._books.early_from
            sub_query = caller.sub_query
            early = first is not None and sub_query is not None and sub_query >= first
            # By the model's tokenizer
            countable = attempt.count is not None and attempt.first_token_s is not None
            if outcome == "completed" and early:
                self._books.early.append(attempt)
            elif outcome != "completed" and attempt.believed is None and countable:
                self._books.cut.append(attempt)
            else:
                self._settle(attempt, attempt.believed)

    async def reserve_for_answer(self, amount: Amount) -> None:
        """Keep `amount` for the answerer, instead of what was kept before.

        Raises `BudgetExhausted` or `StoreFailed`; then what was kept before still is.
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

    def turn(self, agent: Agent, messages: tuple[Message, ...], output: Completion) -> None:
        """Put a completed turn on record. `messages`: all that the agent was shown."""
        self._journal.turn(self.run_id, agent.within(self._lead), messages, output)

    def turn_before(self, agent: Agent, messages: tuple[Message, ...]) -> Completion | None:
        """The turn that an agent has completed in the run that is gone on with, where it was
        shown just this.
        """
        of_run = agent.within(self._lead)
        # They all go on to the next
        outputs = [turns.next_turn(of_run, messages) for turns in self._resumed]
        output = next((one for one in outputs if one is not None), None)
        if output is not None:
            self.turn(agent, messages, output)
        return output

    def search_before(self, agent: Agent, query: str) -> SearchRecord | None:
        """The search that an agent has done next in the run that is gone on with, if it was
        this one.
        """
        searches = [turns.next_search(agent.within(self._lead), query) for turns in self._resumed]
        return next((one for one in searches if one is not None), None)

    def searched(self, agent: Agent, search: SearchRecord) -> None:
        """Put a search that returned on record."""
        self._journal.note(self.run_id, Searched(agent.within(self._lead), search))

    def asks_before(self) -> dict[Ask, int]:
        """The numbers of sub-queries in the run that is gone on with, by what they ask for."""
        return {
            ask: number for turns in reversed(self._resumed) for ask, number in turns.asks.items()
        }

    def asked(self, number: int, ask: Ask) -> None:
        """Put on record what a sub-query asks for, so that it has its number again where the
        run is gone on with.
        """
        self._journal.note(self.run_id, Asked(number, ask))

    def await_decision(self, first: int) -> None:
        """From now on, completed calls for sub-queries from number `first` on are booked once it is
        known whether anybody wants what they wrote.
        """
        self._books.early_from = first

    def decide(self, below: int) -> None:
        """Sub-queries with numbers below this one are wanted; what others have spent was wasted."""
        if self._run:
            return
        if self._books.early_from is not None:
            self._journal.note(self.run_id, Decided(below))
        self._books.early_from = None
        self._book(self._books.early, below)
        self._books.early = []

    def worked_on(self, sub_query: int) -> set[str]:
        """The executor versions that have completed calls for a sub-query, those that await their
        decision included; empty where a model was none.
        """
        booked = [call for call in self._calls_for(sub_query) if call.outcome == "completed"]
        early = [
            cut.opened
            for cut in self._books.early
            if _agent_of(cut.opened) == self._executor(sub_query)
        ]
        return {call.executor_version or "" for call in (*booked, *early)}

    def last_outcome(self, sub_query: int) -> Outcome | None:
        """The outcome of the last call for a sub-query; None where there was none."""
        return next((call.outcome for call in reversed(self._calls_for(sub_query))), None)

    def waste(self, sub_query: int) -> None:
        """Book what was spent so far on this sub-query, which awaits its decision, as wasted."""
        self._book([cut for cut in self._books.early if cut.opened.sub_query == sub_query], 0)
        self._books.early = [cut for cut in self._books.early if cut.opened.sub_query != sub_query]

    async def close(self, within_s: float) -> None:
        """Count what cut streams spent, as far as the models' tokenizers tell within `within_s`
        seconds.
        """
        cuts = self._books.cut
        self._books.cut = []
        usages: list[Usage | None] = [None] * len(cuts)

        async def count(index: int, cut: Attempt) -> None:
            usages[index] = await cut.counted()

        try:
            with suppress(TimeoutError):  # what was not counted by then stays unknown
                async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                    for index, cut in enumerate(cuts):
                        group.create_task(count(index, cut))
        finally:
            for cut, usage in zip(cuts, usages, strict=True):
                self._settle(cut, usage)

    async def _open(
        self, caller: Caller, purpose: Purpose, attempt: int, worst: Amount
    ) -> OpenedCall:
        opened = OpenedCall(
            run_id=self.run_id,
            tenant=self.tenant,
            number=self._books.opened,
            role=caller.role,
            model=caller.model,
            deployment=caller.deployment,
            executor_version=caller.executor_version,
            purpose="shadow" if self._shadow else purpose,
            attempt=attempt,
            sub_query=caller.sub_query,
            max_tokens=caller.max_tokens,
            reserved=worst,
            started_at=time.time(),
            prompt_bound=caller.prompt_bound,
            manager=caller.manager,
            worker=caller.worker,
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
        """What `ask` returns, asked again while only what is under way stands in its way."""
        wait_s = (_LATER_WAIT_S if self._books.opened else _FIRST_WAIT_S) if waits else 0.0
        until = time.monotonic() + wait_s
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

    def _executor(self, sub_query: int) -> Agent:
        """The executor that works on a sub-query, by its number here."""
        return Agent("execution", sub_query).within(self._lead)

    def _calls_for(self, sub_query: int) -> Sequence[Call]:
        return self._books.by_agent.get(self._executor(sub_query), ())

    def _book(self, early: list[Attempt], below: int) -> None:
        for attempt in early:
            if attempt.opened.sub_query is None or attempt.opened.sub_query >= below:
                attempt.outcome = "wasted"
            self._settle(attempt, attempt.believed)

    def _settle(self, attempt: Attempt, usage: Usage | None) -> None:
        opened = attempt.opened
        price = attempt.price
        if (
            usage is not None
            and attempt.outcome not in (*WHOLE, "content_refused")
            and not usage.estimated
        ):
            usage = msgspec.structs.replace(usage, lower_bound=True)
        impossible = attempt.usage is not None and attempt.believed is None
        if impossible:
            _log.warning(
                "call.impossible_usage",
                call=opened.request_id,
                model=opened.model,
                told=repr(attempt.usage),
            )
        call = Call(
            **msgspec.structs.asdict(opened),
            outcome=attempt.outcome,
            usage=usage,
            nano_usd=price.cost(usage) if price and usage else None,
            first_token_s=attempt.first_token_s,
            duration_s=attempt.duration_s,
            impossible_usage=impossible and usage is None,
        )
        self._books.calls.append(call)
        self._books.by_agent.setdefault(_agent_of(call), []).append(call)
        self._allowance.settle(call.role, call.reserved, call.charged)
        self._journal.settle(call)
