"""The gateway: what may be asked of it, and who works on it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from router.background import in_worker
from router.calls import Role
from router.errors import (
    BadConfig,
    BadRequest,
    MalformedOutput,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from router.models import Delta, Message
from router.protocol import Vocabulary
from router.runs.lifecycle import RequestOptions, RunLifecycle, RunRequest
from router.runs.support import is_supported
from router.search import RunContext, Topology
from router.search.executor import Executes
from router.search.loop import settings_of
from router.table import TableLimits, TableRequest, TableTopology
from router.trace import Conversation, RoleName, Run, Trajectory
from router.trace.identity import SHADOW
from router.trace.table import Schema, TableTopologyName
from router.trace.values import NOT_FOUND, OnEvent, TableRun, TopologyName

_PROBE_TOKENS = 16
_PROBE_S = 10.0
"""Models that think refuse to write less."""
_REPORTING_SHARE = 0.05
"""How much of an execution's time is kept, so that one that takes too long can say so."""
_FOLDING_SHARE = 0.1
"""How much of a table's time is kept, to make it of the reports that there are."""
_SHORT = 4_000
"""Characters of passages that are read in less time than a thread takes to start."""
OUT_OF_SCOPE = (
    "not in the demo world: the demo's models know a small fictional world only, and "
    "nothing of {words}. "
    "To ask about other things, name real models in a config (docs/documents.md says "
    "how) and give it to --config."
)


class CompletionRequest(msgspec.Struct, frozen=True):
    """A conversation to be continued by the model of a role."""

    role: RoleName
    messages: tuple[Message, ...]
    stop: tuple[str, ...]
    max_tokens: int
    """0 takes the role's own limit."""


_GRAVITY: dict[type[UpstreamError], int] = {
    UpstreamUnavailable: 1,
    UpstreamProtocolError: 1,
    MalformedOutput: 2,
}
"""Of several failures the first in this order is told: a refusal, which lasts, before all of
these.
"""


class Gateway:
    """Answers, fills tables, completes and executes. All of it is booked, traced and stored."""

    def __init__(
        self,
        *,
        topologies: Mapping[TopologyName, Topology],
        executor: Executes,
        roles: Mapping[RoleName, Role],
        lifecycle: RunLifecycle,
        tables: Mapping[TableTopologyName, TableTopology] = {},
        table_limits: TableLimits | None = None,
        max_question_chars: int = 4000,
        vocabulary: Vocabulary | None = None,
        on_answered: Callable[[Run], None] = lambda _run: None,
    ) -> None:
        """`topologies`: the ways to answer, `factorized` among them. `tables`: the ways to fill
        tables. `vocabulary`: what questions may be about; None for models that know the language.
        `on_answered` gets every question that was answered here, unless its texts must not be kept
        or nothing may be learnt from it.
        """
        self._topologies = topologies
        self._executor = executor
        self._roles = roles
        self._tables = tables
        self._table_limits = table_limits or TableLimits()
        self._lifecycle = lifecycle
        self._max_question_chars = max_question_chars
        self._vocabulary = vocabulary
        self._on_answered = on_answered

    @property
    def topologies(self) -> tuple[TopologyName, ...]:
        """The ways to answer that are set up."""
        return tuple(self._topologies)

    async def answer(
        self,
        question: str,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
        topology: TopologyName = "factorized",
    ) -> Run:
        """Answer a question. The run's result is a `Trajectory`. Raises `BadConfig` for a topology
        that is not set up, `UpstreamError` where nothing was found because something failed, and
        what `RunLifecycle.open` raises.
        """
        if options.resume:
            before, options = await self._lifecycle.going_on("answer", options)
            question = before.request
            topology = cast(TopologyName, before.topology)
        question = self.readable("question", question)
        chosen = self._topology(topology)
        self._check_prices(options, chosen.roles)
        request = RunRequest("answer", question, question, topology=topology)
        if topology != "factorized":
            settings = settings_of(chosen.roles)
            request = RunRequest(
                "answer", question, (question, topology), settings=settings, topology=topology
            )
        async with self._lifecycle.open(request, options, on_event) as run:
            if isinstance(run, Run):
                return run
            draft = run.context.draft
            if self._vocabulary and (outside := self._vocabulary.outside(question)):
                draft.result = Trajectory(_out_of_scope(outside), "out_of_scope", topology=topology)
            else:
                draft.result = found = await chosen.loop.run(question, run.context)
                if _read_chars(found) <= _SHORT:
                    supported = is_supported(question, found)
                else:
                    supported = await asyncio.to_thread(is_supported, question, found)
                draft.result = found = msgspec.structs.replace(found, unsupported=not supported)
                if error := _in_the_way(found, run.context):
                    draft.result = msgspec.structs.replace(found, answer="")
                    raise error
        if run.training and not run.private:
            self._on_answered(run.stored)
        return run.stored

    async def fill_table(
        self,
        request: TableRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> Run:
        """Fill a table. The run's result is a `TableRun`, whose table `table_of` makes. Raises
        `BadRequest` for what is no table, `UpstreamError` where there is no row because something
        failed, and what `answer` raises besides.
        """
        if options.resume:
            before, options = await self._lifecycle.going_on("table", options)
            request = msgspec.json.decode(before.content, type=TableRequest)
        question = self.readable("question", request.question)
        limits = self._table_limits
        request = msgspec.structs.replace(
            await in_worker(request.checked, limits), question=question
        )
        if request.topology not in self._tables:
            raise BadConfig(
                f"topology {request.topology}: is not set up here; use wide, or leave it out."
            )
        chosen = self._tables[request.topology]
        self._check_prices(options, chosen.roles)
        settings = settings_of(chosen.roles)
        topology = request.topology
        opened = RunRequest(
            "table", question, request, settings, _FOLDING_SHARE, topology, limits.timeout_s
        )
        async with self._lifecycle.open(opened, options, on_event) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            if self._vocabulary and self._vocabulary.outside(question):
                context.draft.result = TableRun(
                    Schema(request.columns), request.rows, outcome="out_of_scope", topology=topology
                )
            else:
                found = await chosen.filling.run(request, context)
                if error := _nothing_but(found, context):
                    raise error
        return run.stored

    async def execute(self, sub_query: str, options: RequestOptions) -> Run:
        """Work on one sub-query. The run's result is an `Execution`. Raises `UpstreamError` where
        something failed, and what `RunLifecycle.open` raises.
        """
        sub_query = self.readable("sub_query", sub_query)
        self._check_prices(options, self._roles)
        if self._vocabulary and (outside := self._vocabulary.outside(sub_query)):
            raise BadRequest(_out_of_scope(outside))
        request = RunRequest("execute", sub_query, sub_query, answering_share=_REPORTING_SHARE)
        async with self._lifecycle.open(request, options) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            execution = await self._executor.run(sub_query, 0, context)
            if execution.outcome == "budget_exhausted" and context.ledger.refusal is not None:
                raise context.ledger.refusal
            context.draft.result = execution
            if execution.failed and (error := context.failures.get(0)):
                raise error
        return run.stored

    async def complete(
        self,
        request: CompletionRequest,
        options: RequestOptions,
        on_delta: Callable[[Delta], None] | None = None,
    ) -> Run:
        """Continue a conversation with a role's model, passing each piece to `on_delta`, if given,
        as it is written. The run's result is a `Conversation`. Raises what `RunLifecycle.open`
        raises.
        """
        messages = request.messages
        if not messages or messages[-1].role == "assistant":
            raise BadRequest("messages must end with a message of role `user` or `system`.")
        self._check_prices(options, self._roles)
        async with self._lifecycle.open(
            RunRequest("complete", messages[-1].content, request), options
        ) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            role = (
                self._executor.role(context)
                if request.role == "execution"
                else self._roles[request.role]
            )
            role = role.limited(request.max_tokens)
            output = await role.ask(
                messages, request.stop, context.ledger, until=context.deadline, on_delta=on_delta
            )
            context.draft.result = Conversation(messages, (output,))
        return run.stored

    async def probe(self, role: RoleName) -> None:
        """See by a call of a few tokens whether a role's model works, booked as any other.
        Raises as `complete`.
        """
        request = CompletionRequest(role, (Message("user", "Hello."),), (), _PROBE_TOKENS)
        await self.complete(request, RequestOptions(SHADOW, _PROBE_S))

    async def settled(self) -> None:
        """Wait until every run that has begun has ended and is stored."""
        await self._lifecycle.settled()

    def _topology(self, name: TopologyName) -> Topology:
        if name not in self._topologies:
            table = "managers.NAME" if name == "host" else f"topologies.{name}"
            raise BadConfig(
                f"topology {name}: is not set up here; add [{table}] to the gateway's config."
            )
        return self._topologies[name]

    def _check_prices(self, options: RequestOptions, roles: Mapping[Any, Role]) -> None:
        """Refuse a limit in money where a price is unknown. Raises `BadRequest`."""
        unpriced = [role.model.name for role in roles.values() if role.price is None]
        if options.budget.max_nano_usd is not None and unpriced:
            raise BadRequest(
                f"budget.max_cost_nano_usd: what {unpriced[0]} costs is not known; set "
                f'[prices."{unpriced[0]}"] in the '
                "config, or limit tokens instead."
            )

    def readable(self, field: str, text: str) -> str:
        """Return a question without white space around it. Raises `BadRequest` where it is
        empty or too long.
        """
        text = text.strip()
        if not text:
            raise BadRequest(f"{field} is empty; put a question in plain words into it.")
        if len(text) > self._max_question_chars:
            allowed = self._max_question_chars
            raise BadRequest(
                f"{field} has {len(text)} characters; at most {allowed} are allowed "
                "(server.max_question_chars)."
            )
        return text


def _in_the_way(found: Trajectory, context: RunContext) -> UpstreamError | None:
    """The failure for which nothing was found; None where there is an answer, or where there
    just is none.
    """
    if found.answer != NOT_FOUND or found.outcome not in ("not_found", "no_search"):
        return None
    executions = enumerate(found.executions)
    failed = [
        context.failures[index]
        for index, one in executions
        if one.failed and index in context.failures
    ]
    # Who follows the protocol may slip
    if any(one.every_search or not one.failed for one in found.executions):
        failed = [error for error in failed if not isinstance(error, MalformedOutput)]
    if None in context.failures:
        failed.append(context.failures[None])
    return min(failed, key=lambda error: _GRAVITY.get(type(error), 0), default=None)


def _nothing_but(found: TableRun, context: RunContext) -> UpstreamError | None:
    """The failure for which there is no row; None where there is one, or where there just is
    none.
    """
    if found.given or any(not one.failed for one in found.executions):
        return None
    return min(
        context.failures.values(), key=lambda error: _GRAVITY.get(type(error), 0), default=None
    )


def _out_of_scope(outside: Sequence[str]) -> str:
    return OUT_OF_SCOPE.format(words=", ".join(f'"{word}"' for word in outside[:5]))


def _read_chars(found: Trajectory) -> int:
    """Return how many characters of passages a run's executors were shown."""
    searches = [search for execution in found.executions for search in execution.every_search]
    return sum(len(passage.text) for search in searches for passage in search.shown)
