"""The gateway: accepts questions, tables, sub-queries and completions, opens a run for each
request, and passes the request to the search loop, an executor or a role.
"""

from collections.abc import (
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any

from msgspec.structs import replace

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
from router.frozen import Frozen
from router.models import Delta, Message
from router.protocol import Vocabulary
from router.protocol.style import DEFAULT_STYLE, AnswerStyle
from router.runs.lifecycle import RequestOptions, RunLifecycle, RunRequest
from router.runs.support import is_supported, unblocked
from router.search import RunContext, Topology
from router.search.condenser import Condenser
from router.search.context import Draft
from router.search.executor import Executes
from router.search.loop import settings_of
from router.table import TableRequest, WideSearch
from router.trace import (
    Conversation,
    RoleName,
    Run,
    Trajectory,
)
from router.trace.identity import SHADOW
from router.trace.table import Schema
from router.trace.values import (
    NOT_FOUND,
    NOT_SEARCHED,
    OnEvent,
    TableRun,
    TopologyName,
)

_PROBE_TOKENS = 16
"""Max tokens that a probe of a model may write. Reasoning models refuse lower limits."""
_PROBE_S = 10.0
"""Deadline of a probe, in seconds."""
_REPORTING_SHARE = 0.05
"""Share of the time limit of `Gateway.execute`, from 0 to 1. It is reserved for returning the
result when the time for searching is over.
"""
_FOLDING_SHARE = 0.1
"""Share of a table's time limit, from 0 to 1. It is reserved for building the table from the
executors' reports.
"""
MAX_HISTORY = 40
"""Max messages before a question."""
MAX_HISTORY_CHARS = 32_000
"""Max characters of all messages before a question."""
OUT_OF_SCOPE = (
    "not in the demo world: the demo's models know a small fictional world only, and nothing of "
    "{words}. To ask about other things, name real models in a config (docs/documents.md says "
    "how) and give it to --config."
)


class AnswerRequest(Frozen):
    """A question, the topology that answers it (how agents share the work), and the conversation
    before it.
    """

    question: str
    topology: TopologyName = "factorized"
    history: tuple[Message, ...] = ()
    """Earlier messages of the roles `user` and `assistant`, oldest first."""
    style: AnswerStyle = DEFAULT_STYLE
    """Style of the answer."""

    def check(self) -> None:
        """Raise `BadRequest` if the history is too long, if it has a message whose role is neither
        `user` nor `assistant`, or if the style is invalid.
        """
        if problem := self.style.problem():
            raise BadRequest(problem)
        count = len(self.history)
        chars = sum(len(message.content) for message in self.history)
        for number, limit, unit in (
            (count, MAX_HISTORY, "messages"),
            (chars, MAX_HISTORY_CHARS, "characters"),
        ):
            if number > limit:
                raise BadRequest(
                    f"history has {number} {unit}; the limit is {limit}. Omit the oldest messages."
                )
        for number, message in enumerate(self.history):
            if message.role == "system":
                raise BadRequest(
                    f"history[{number}].role is 'system'; it must be user or assistant."
                )


def latest(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the last messages of a conversation: as many as the history of a request may have
    (`MAX_HISTORY` messages, `MAX_HISTORY_CHARS` characters).
    """
    chars = 0
    first = len(messages)
    for message in reversed(messages[-MAX_HISTORY:]):
        chars += len(message.content)
        if chars > MAX_HISTORY_CHARS:
            break
        first -= 1
    return tuple(messages[first:])


class CompletionRequest(Frozen):
    """A conversation that the model of a role is asked to continue."""

    role: RoleName
    messages: tuple[Message, ...]
    stop: tuple[str, ...]
    """Strings at which the output ends."""
    max_tokens: int
    """Max tokens of the output; 0 for the role's own limit."""


_GRAVITY: dict[type[UpstreamError], int] = {
    UpstreamUnavailable: 1,
    UpstreamProtocolError: 1,
    MalformedOutput: 2,
}
"""Ranks of error classes. If several errors have occurred, the client gets the error with the
lowest rank. Classes that are not listed, such as refusals, have rank 0: for them, a later retry
would not help.
"""


class Gateway(Frozen, kw_only=True):
    """Answers questions, fills tables, continues conversations and runs single executors.

    The gRPC and HTTP servers pass requests to it. Each request becomes a run, which is stored with
    its trace before its result is returned. Every model call has a row in the ledger.
    """

    topologies: Mapping[TopologyName, Topology]
    """The topologies (search loops with their roles) for answers, by name; `factorized` must be
    among them.
    """
    executor: Executes
    """The executor that works on the sub-queries of `execute`."""
    roles: Mapping[RoleName, Role]
    """The roles that `complete` may call."""
    lifecycle: RunLifecycle
    condenser: Condenser | None = None
    """Rewrites questions that have a history; None to refuse such questions."""
    tables: WideSearch | None = None
    """Fills tables; None if the gateway fills no tables."""
    table_roles: Mapping[Any, Role] = {}
    """The roles with which `tables` fills tables."""
    max_question_chars: int = 4000
    vocabulary: Vocabulary | None = None
    """The only words that questions may use, for models that were trained on a small language, such
    as the demo's; None if all words may be used.
    """
    style: AnswerStyle = DEFAULT_STYLE
    """Style of answers; a request may override it."""
    on_answered: Callable[[Run], None] = lambda _run: None
    """Called with each finished run for an answer, if its texts are stored and may be used for
    training.
    """

    async def answer(
        self,
        asked: AnswerRequest | str,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
        *,
        streamed: bool = False,
    ) -> Run:
        """Answer a question and return the stored run, whose result is a `Trajectory`.

        `asked`: the question as a string, or a request with further options. A question with a
        history is first rewritten so that it can be understood without the history. If that is
        impossible, the run's answer is a question to the user, and the run's outcome is `clarify`.

        `on_event`: called with each event of the run. `streamed`: True to also emit the parts of
        the answer as events while it is being written. Raises `BadRequest` for an invalid question,
        history, style or option, `BadConfig` for a topology that is not configured, and
        `UpstreamError` if there is no answer because a model or the retrieval failed. Also raises
        the errors of `RunLifecycle.open`.
        """
        request = AnswerRequest(asked) if isinstance(asked, str) else asked
        request, options = await self.lifecycle.resumed("answer", request, options)
        request.check()
        question = self.readable("question", request.question)
        request = replace(request, question=question)
        chosen = self._topology(request.topology)
        roles = dict(chosen.roles)
        if request.history:
            if self.condenser is None:
                raise BadConfig(
                    "history: this gateway has no condenser, the role that rewrites questions with "
                    "a history; send the question without history."
                )
            roles["condense"] = self.condenser.role
        self._check_prices(options, roles)
        opened = RunRequest(
            "answer",
            question,
            request,
            settings_of(roles) if request.topology != "factorized" or request.history else None,
            topology=request.topology,
        )
        async with self.lifecycle.open(opened, options, on_event) as run:
            if isinstance(run, Run):
                return run
            style = request.style.over(self.style)
            context = replace(run.context, style=style, streamed=streamed)
            await self._answer(request, chosen, context)
        if run.training and not run.private:
            self.on_answered(run.stored)
        return run.stored

    async def _answer(
        self,
        request: AnswerRequest,
        topology: Topology,
        context: RunContext,
    ) -> None:
        """Do the work of `answer`, and put the result into `context.draft`."""
        draft = context.draft
        question = request.question
        ended = Trajectory("", "clarify", topology=request.topology)
        if self._is_out_of_scope(question, ended, draft, named=not request.history):
            return
        if request.history:
            assert self.condenser is not None
            condensing, asked_back = await self.condenser.condense(
                request.history, question, context.ledger
            )
            draft.condensing = condensing
            question = condensing.question
            if asked_back:
                draft.result = replace(ended, answer=asked_back)
                return
            if not question:
                raise self.condenser.role.malformed()
            if self._is_out_of_scope(question, ended, draft):
                return
        style = None if context.style == DEFAULT_STYLE else context.style
        trajectory = replace(await topology.loop.run(question, context), style=style)
        draft.result = trajectory
        supported = await unblocked(trajectory, is_supported, question, trajectory)
        draft.result = trajectory = replace(trajectory, unsupported=not supported)
        if error := _answer_failure(trajectory, context):
            draft.result = replace(trajectory, answer="")
            raise error

    def _is_out_of_scope(
        self,
        question: str,
        ended: Trajectory,
        draft: Draft,
        *,
        named: bool = True,
    ) -> bool:
        """Return True if a question has words outside of the vocabulary. If so, also put the
        trajectory `ended` into `draft`, with an answer that lists these words. `named`: True if a
        question without any name is out of scope too.
        """
        outside = self.vocabulary.outside(question, named=named) if self.vocabulary else []
        if outside:
            draft.result = replace(ended, answer=_out_of_scope(outside), outcome="out_of_scope")
        return bool(outside)

    async def fill_table(
        self,
        request: TableRequest,
        options: RequestOptions,
        on_event: OnEvent = lambda _event: None,
    ) -> Run:
        """Fill a table and return the stored run. The run's result is a `TableRun`, from which
        `table_of` builds the table.

        `on_event`: called with each event of the run. Raises `BadRequest` for an invalid request,
        and `UpstreamError` if the table has no row because a model or the retrieval failed. Also
        raises the errors of `RunLifecycle.open`.
        """
        request, options = await self.lifecycle.resumed("table", request, options)
        question = self.readable("question", request.question)
        assert self.tables is not None
        limits = self.tables.limits
        request = replace(await in_worker(request.checked, limits), question=question)
        self._check_prices(options, self.table_roles)
        opened = RunRequest(
            "table",
            question,
            request,
            settings_of(self.table_roles),
            _FOLDING_SHARE,
            timeout_s=limits.timeout_s,
        )
        async with self.lifecycle.open(opened, options, on_event) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            if self.vocabulary and self.vocabulary.outside(question):
                context.draft.result = TableRun(
                    Schema(request.columns), request.rows, outcome="out_of_scope"
                )
            else:
                table_run = await self.tables.run(request, context)
                if error := _table_failure(table_run, context):
                    raise error
        return run.stored

    async def execute(self, sub_query: str, options: RequestOptions) -> Run:
        """Let an executor work on one sub-query, and return the stored run, whose result is an
        `Execution`.

        Raises `BadRequest` for an invalid sub-query or option, and `UpstreamError` if a model or
        the retrieval failed. Also raises the errors of `RunLifecycle.open`.
        """
        sub_query = self.readable("sub_query", sub_query)
        self._check_prices(options, self.roles)
        if self.vocabulary and (outside := self.vocabulary.outside(sub_query)):
            raise BadRequest(_out_of_scope(outside))
        request = RunRequest("execute", sub_query, sub_query, answering_share=_REPORTING_SHARE)
        async with self.lifecycle.open(request, options) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            execution = await self.executor.run(sub_query, 0, context)
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
        """Continue a conversation by one call of a role's model, and return the stored run, whose
        result is a `Conversation`.

        `on_delta`: called with each piece of the output when it arrives. Raises `BadRequest` for
        invalid messages or options, and `UpstreamError` if the call failed. Also raises the errors
        of `RunLifecycle.open`.
        """
        messages = request.messages
        if not messages or messages[-1].role == "assistant":
            raise BadRequest(
                "messages must end with a message of role `user` or `system`; append one."
            )
        self._check_prices(options, self.roles)
        async with self.lifecycle.open(
            RunRequest("complete", messages[-1].content, request), options
        ) as run:
            if isinstance(run, Run):
                return run
            context = run.context
            if request.role == "execution":
                role = self.executor.role(context)
            else:
                role = self.roles[request.role]
            role = role.limited(request.max_tokens)
            output = await role.ask(
                messages,
                request.stop,
                context.ledger,
                until=context.deadline,
                on_delta=on_delta,
            )
            context.draft.result = Conversation(messages, (output,))
        return run.stored

    async def probe(self, role: RoleName) -> None:
        """Call a role's model for a few tokens, to find out whether the model works. The call has a
        row in the ledger like any other call. Raises the errors of `complete`.
        """
        request = CompletionRequest(role, (Message("user", "Hello."),), (), _PROBE_TOKENS)
        await self.complete(request, RequestOptions(SHADOW, _PROBE_S))

    async def settled(self) -> None:
        """Wait until every run under way has ended and is stored."""
        await self.lifecycle.live.ended()

    def _topology(self, name: TopologyName) -> Topology:
        if name not in self.topologies:
            raise BadConfig(
                f"topology {name}: this gateway has no managers; use another topology, or add "
                "[managers.NAME] to the config."
            )
        return self.topologies[name]

    def _check_prices(self, options: RequestOptions, roles: Mapping[Any, Role]) -> None:
        """Raise `BadRequest` if the request has a limit in money although the price of one of the
        models is unknown.
        """
        unpriced = [role.model.name for role in roles.values() if role.price is None]
        if options.budget.max_nano_usd is not None and unpriced:
            raise BadRequest(
                f"budget.max_cost_nano_usd: the price of {unpriced[0]} is unknown; set "
                f'[prices."{unpriced[0]}"] in the config, or limit tokens instead.'
            )

    def readable(self, field: str, question: str) -> str:
        """Return a question or sub-query without white space around it. `field`: name of the
        request's field, for error messages. Raises `BadRequest` if the text is empty or too long.
        """
        question = question.strip()
        if not question:
            raise BadRequest(f"{field} is empty; write a question in plain words.")
        if len(question) > self.max_question_chars:
            allowed = self.max_question_chars
            raise BadRequest(
                f"{field} has {len(question)} characters; at most {allowed} are allowed "
                "(server.max_question_chars); shorten it."
            )
        return question


def _answer_failure(trajectory: Trajectory, context: RunContext) -> UpstreamError | None:
    """Return the error that kept a run from finding an answer. Return None if the run has an
    answer, or if it searched without errors and found nothing.
    """
    unanswered = trajectory.answer in (NOT_FOUND, NOT_SEARCHED)
    if not unanswered or trajectory.outcome not in ("not_found", "no_search"):
        return None
    executions = trajectory.executions
    # If any executor followed the protocol, the malformed output of another is not the cause.
    followed = any(execution.every_search or not execution.failed for execution in executions)
    errors = list[UpstreamError]()
    for index, execution in enumerate(executions):
        error = context.failures.get(index)
        if execution.failed and error and not (followed and isinstance(error, MalformedOutput)):
            errors.append(error)
    if None in context.failures:
        errors.append(context.failures[None])
    return _most_lasting(errors)


def _table_failure(run: TableRun, context: RunContext) -> UpstreamError | None:
    """Return the error that kept a table from getting rows. Return None if the request contained
    rows, or if at least one execution did not fail.
    """
    if run.given or any(not execution.failed for execution in run.executions):
        return None
    return _most_lasting(context.failures.values())


def _most_lasting(errors: Iterable[UpstreamError]) -> UpstreamError | None:
    """Return the error that is least likely to disappear on a retry; None if there is no error."""
    return min(errors, key=lambda error: _GRAVITY.get(type(error), 0), default=None)


def _out_of_scope(outside: Sequence[str]) -> str:
    return OUT_OF_SCOPE.format(words=", ".join(f'"{word}"' for word in outside[:5]))
