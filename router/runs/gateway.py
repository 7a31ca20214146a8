"""The gateway: what may be asked of it, and who works on it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

import msgspec

from router.calls.role import Role
from router.errors import (
    BadConfig,
    BadRequest,
    MalformedOutput,
    UpstreamError,
    UpstreamGarbled,
    UpstreamUnavailable,
)
from router.models.model import Delta, Message, gather
from router.protocol.scope import Scope
from router.runs.lifecycle import Asked, Conductor, Terms, Then, ignore_run
from router.search.context import RunContext
from router.search.executor import Executes
from router.search.loop import Search, Topology
from router.trace.call import RoleName
from router.trace.identity import SHADOW
from router.trace.run import Run
from router.trace.values import NOT_FOUND, Conversation, Emit, Execution, TopologyName, Trajectory

_PROBE_TOKENS, _PROBE_S = 16, 10.0
"""Models that think refuse to write less."""
_REPORTING_SHARE = 0.05
"""How much of an execution's time is kept, so that one that takes too long can say so."""
OUT_OF_SCOPE = (
    "not in the demo world: the demo's models know a small fictional world only, and nothing of {words}. "
    'To ask about other things, name real models in a config (README, "Real models") and give it to --config.'
)


class CompletionRequest(msgspec.Struct, frozen=True):
    """A conversation to be continued by the model of a role."""

    role: RoleName
    messages: tuple[Message, ...]
    stop: tuple[str, ...]
    max_tokens: int
    """0 takes the role's own limit."""


Send = Callable[[Delta], None]
_GRAVITY: dict[type[UpstreamError], int] = {UpstreamUnavailable: 1, UpstreamGarbled: 1, MalformedOutput: 2}
"""Of several failures the first in this order is told: a refusal, which lasts, before all of these."""


class Gateway:
    """Answers, completes and executes. All of it is booked, traced and stored."""

    def __init__(
        self,
        *,
        search: Search,
        executor: Executes,
        roles: Mapping[RoleName, Role],
        conductor: Conductor,
        max_question_chars: int = 4000,
        scope: Scope | None = None,
        then: Then = ignore_run,
        topologies: Mapping[TopologyName, Topology] = {},
    ) -> None:
        """`scope`: what questions may be about; None for models that know the language. `then` hears of every question
        that was answered, unless its texts must not be kept. `topologies`: further ways to answer than `search`.
        """
        self._search, self._executor, self._roles = search, executor, roles
        self._conductor, self._max_question_chars = conductor, max_question_chars
        self._scope, self._then, self._topologies = scope, then, topologies

    async def answer(self, question: str, terms: Terms, emit: Emit, topology: TopologyName = "factorized") -> Run:
        """Answer a question. The run's result is a `Trajectory`. Raises `BadConfig` for a topology that is not set
        up, `UpstreamError` where nothing was found because something failed, and what `Conductor.conduct` raises.
        """
        question = self._readable("question", question)
        chosen = None if topology == "factorized" else self._topology(topology)
        self._check_prices(terms, chosen)

        async def work(context: RunContext) -> Trajectory:
            if self._scope and (outside := self._scope.outside(question)):
                return Trajectory(_out_of_scope(outside), "out_of_scope", topology=topology)
            found = await (chosen.loop if chosen else self._search).run(question, context)
            if error := _in_the_way(found, context):
                context.draft.result = msgspec.structs.replace(found, answer="")
                raise error
            return found

        asked = Asked("answer", question, question)
        if chosen:
            asked = Asked("answer", question, (question, topology), settings=chosen.settings)
        return await self._conductor.conduct(asked, terms, emit, work, self._then)

    async def execute(self, sub_query: str, terms: Terms) -> Run:
        """Work on one sub-query. The run's result is an `Execution`. Raises `UpstreamError` where something failed, and
        what `Conductor.conduct` raises.
        """
        sub_query = self._readable("sub_query", sub_query)
        self._check_prices(terms)
        if self._scope and (outside := self._scope.outside(sub_query)):
            raise BadRequest(_out_of_scope(outside))

        async def work(context: RunContext) -> Execution:
            execution = await self._executor.run(sub_query, 0, context)
            if execution.outcome == "budget_exhausted" and context.ledger.refusal is not None:
                raise context.ledger.refusal
            if execution.failed and (error := context.failures.get(0)):
                context.draft.result = execution
                raise error
            return execution

        asked = Asked("execute", sub_query, sub_query, answering_share=_REPORTING_SHARE)
        return await self._conductor.conduct(asked, terms, _ignore, work)

    async def complete(self, request: CompletionRequest, terms: Terms, send: Send | None = None) -> Run:
        """Continue a conversation with a role's model, passing each piece to `send`, if given, as it is written.
        The run's result is a `Conversation`.
        """
        messages = request.messages
        if not messages or messages[-1].role == "assistant":
            raise BadRequest("messages must end with a message of role `user` or `system`.")
        self._check_prices(terms)

        async def work(context: RunContext) -> Conversation:
            role = self._executor.role(context) if request.role == "execution" else self._roles[request.role]
            role, until = role.limited(request.max_tokens), context.deadline
            if send is None:
                return Conversation(messages, (await role.ask(messages, request.stop, context.ledger, until=until),))
            async with aclosing(role.stream(messages, request.stop, context.ledger, until=until)) as deltas:
                return Conversation(messages, (await gather(deltas, send),))

        return await self._conductor.conduct(Asked("complete", messages[-1].content, request), terms, _ignore, work)

    async def probe(self, role: RoleName) -> None:
        """See by a call of a few tokens whether a role's model works, booked as any other. Raises as `complete`."""
        request = CompletionRequest(role, (Message("user", "Hello."),), (), _PROBE_TOKENS)
        await self.complete(request, Terms(SHADOW, _PROBE_S))

    async def settled(self) -> None:
        """Wait until every run that has begun has ended and is stored."""
        await self._conductor.settled()

    def _topology(self, name: TopologyName) -> Topology:
        if name not in self._topologies:
            raise BadConfig(f"topology {name}: is not set up here; add [topologies.{name}] to the gateway's config.")
        return self._topologies[name]

    def _check_prices(self, terms: Terms, topology: Topology | None = None) -> None:
        """A limit in money needs prices. Raises `BadRequest`."""
        roles = topology.roles if topology else self._roles
        unpriced = [role.model.name for role in roles.values() if role.price is None]
        if terms.budget.max_nano_usd is not None and unpriced:
            raise BadRequest(
                f'budget.max_cost_nano_usd: what {unpriced[0]} costs is not known; set [prices."{unpriced[0]}"] in the '
                "config, or limit tokens instead."
            )

    def _readable(self, field: str, text: str) -> str:
        text = text.strip()
        if not text:
            raise BadRequest(f"{field} is empty; put a question in plain words into it.")
        if len(text) > self._max_question_chars:
            allowed = self._max_question_chars
            raise BadRequest(
                f"{field} has {len(text)} characters; at most {allowed} are allowed (server.max_question_chars)."
            )
        return text


def _in_the_way(found: Trajectory, context: RunContext) -> UpstreamError | None:
    """The failure for which nothing was found; None where there is an answer, or where there just is none."""
    if found.answer != NOT_FOUND or found.outcome not in ("not_found", "no_search"):
        return None
    executions = enumerate(found.executions)
    failed = [context.failures[index] for index, one in executions if one.failed and index in context.failures]
    if any(one.searches or not one.failed for one in found.executions):  # a model that follows the protocol may slip
        failed = [error for error in failed if not isinstance(error, MalformedOutput)]
    if None in context.failures:
        failed.append(context.failures[None])
    return min(failed, key=lambda error: _GRAVITY.get(type(error), 0), default=None)


def _out_of_scope(outside: Sequence[str]) -> str:
    return OUT_OF_SCOPE.format(words=", ".join(f'"{word}"' for word in outside[:5]))


def _ignore(_event: object) -> None:
    """Listen to nothing."""
