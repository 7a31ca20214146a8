"""A deployment of doubles: roles, a search and a gateway around scripted models."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from router.calls import Role
from router.errors import BadRequest, NotFound, StoreFailed
from router.ledger import Ledger, RunStart
from router.ledger.journal import Admitted, EarlierRun, NoJournal
from router.models import Completion, Delta, Model, OnDelta, Prompt, Sampling, Usage
from router.protocol import Passage, Vocabulary
from router.protocol.style import DEFAULT_STYLE, AnswerStyle
from router.runs import Admission, Gateway, RunFilter, RunLifecycle
from router.runs.archive import ExportedRun, Progress, RunFigures, RunPage, RunSummary
from router.runs.live import LiveRuns
from router.search import (
    Answerer,
    Delegator,
    Executor,
    FactorizedSearch,
    RunContext,
    Topology,
)
from router.search.agent import ExecutorLimits
from router.search.condenser import Condenser
from router.search.executor import Executes
from router.trace import Call, Event, RoleName, Run
from router.trace.redaction import redacted
from router.trace.run import Feedback, RoleSetting, RunStatus
from router.trace.values import TopologyName
from tests.router.retriever import FixedRetriever
from tests.router.unfiltered import PlainRetriever, Unfiltered
from tests.scripted_model import ScriptedModel

STOP = "<stop/>Enough evidence<stop>"
PASSAGE = Passage("p1", "Heat", "Heat is a film by Michael Mann.", 0.9)
SYSTEMS: Mapping[RoleName, str] = {
    "delegation": "delegate",
    "execution": "execute",
    "answer": "answer",
    "judge": "judge",
}


def block(*sub_queries: str) -> str:
    """Return a search block of the delegator."""
    return f"<search>{json.dumps(sub_queries)}</search>"


def report(answer: str, *evidence: str) -> str:
    """Return a report of an executor."""
    return f"<answer>{answer}</answer>\n<evidence>{chr(10).join(evidence)}</evidence>"


def finds(prompt: Prompt) -> str:
    """Search for the sub-query unchanged, then report on it."""
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    return report(f"the answer to {sub_query}", f"It is so: {sub_query}")


def role(name: RoleName, model: Model, attempts: int = 1, max_tokens: int = 64) -> Role:
    """Return a role with a system prompt of one word."""
    return Role(name, model, SYSTEMS[name], Sampling(max_tokens=max_tokens), attempts)


def lasting(time_s: float = 60.0, events: list[Event] | None = None) -> RunContext:
    """Return a run that begins now."""
    noted: list[Event] = [] if events is None else events
    return RunContext.lasting(time_s, noted.append, Ledger())


@dataclass
class Deployment:
    """Three models and a retriever, each of which can be replaced."""

    delegator: Model = field(
        default_factory=lambda: ScriptedModel([block("Who directed Heat?"), STOP], "backbone")
    )
    executor: Model = field(default_factory=lambda: ScriptedModel(finds, "small"))
    answerer: Model = field(
        default_factory=lambda: ScriptedModel(["<answer>Michael Mann</answer>"], "fixed")
    )
    retriever: PlainRetriever = field(
        default_factory=lambda: FixedRetriever({"Who directed Heat?": [PASSAGE]})
    )
    condenser: Model = field(default_factory=lambda: ScriptedModel([], "backbone"))
    attempts: int = 1
    max_tokens: int = 64

    def roles(self) -> dict[RoleName, Role]:
        """Return the three roles."""
        models: dict[RoleName, Model] = {
            "delegation": self.delegator,
            "execution": self.executor,
            "answer": self.answerer,
        }
        return {
            name: role(name, model, self.attempts, self.max_tokens)
            for name, model in models.items()
        }

    def search(
        self,
        *,
        max_rounds: int = 4,
        max_sub_queries: int = 8,
        require_evidence: bool = True,
        early_dispatch: bool = True,
        executor: Executes | None = None,
        topology: TopologyName = "factorized",
    ) -> FactorizedSearch:
        """Return the search loop."""
        roles = self.roles()
        return FactorizedSearch(
            Delegator(roles["delegation"], max_sub_queries),
            executor or Executor(roles["execution"], Unfiltered(self.retriever), ExecutorLimits()),
            Answerer(roles["answer"]),
            max_rounds=max_rounds,
            require_evidence=require_evidence,
            early_dispatch=early_dispatch,
            topology=topology,
        )

    def gateway(
        self,
        store: "Kept | None" = None,
        *,
        max_question_chars: int = 4000,
        timeout_s: float = 120.0,
        vocabulary: Vocabulary | None = None,
        live: LiveRuns | None = None,
        on_answered: Callable[[Run], None] = lambda _run: None,
        admission: Admission | None = None,
        topologies: Mapping[TopologyName, Topology] = {},
        style: AnswerStyle = DEFAULT_STYLE,
    ) -> Gateway:
        """Return the gateway."""
        roles = self.roles()
        store = store or Kept()
        settings = {name: RoleSetting(role.model.name, "0" * 64) for name, role in roles.items()}
        return Gateway(
            topologies={"factorized": Topology(self.search(), roles), **topologies},
            executor=Executor(roles["execution"], Unfiltered(self.retriever), ExecutorLimits()),
            roles=roles,
            condenser=Condenser(replace(role("delegation", self.condenser), system="condense")),
            lifecycle=RunLifecycle(
                store,
                store,
                live or LiveRuns(),
                settings,
                timeout_s,
                admission=admission or Admission(),
            ),
            max_question_chars=max_question_chars,
            vocabulary=vocabulary,
            style=style,
            on_answered=on_answered,
        )


_RUNNING: RunStatus = "running"


class Kept(NoJournal):
    """A journal and an archive in memory.

    `full` makes storing fail; clearing `let` makes it wait. `redact` drops the texts of runs.
    """

    def __init__(self) -> None:
        self.starts: dict[str, RunStart] = {}
        self.runs: list[Run] = []
        self.settled: list[Call] = []
        self.given: list[Feedback] = []
        self.full = False
        self.redact = False
        self.let = asyncio.Event()
        self.let.set()
        self.asked = asyncio.Event()
        """Event of a run about to be stored."""
        self._arrived = asyncio.Queue[Run]()

    async def begin(self, start: RunStart) -> Admitted | EarlierRun:
        for earlier in self.starts.values():
            ended = next((run.status for run in self.runs if run.id == earlier.id), _RUNNING)
            named = start.request_id and (earlier.tenant, earlier.request_id) == (
                start.tenant,
                start.request_id,
            )
            if named and ended in ("running", "finished"):
                return EarlierRun(earlier.id, ended, earlier.fingerprint == start.fingerprint)
        self.starts[start.id] = start
        return Admitted()

    def settle(self, call: Call) -> None:
        self.settled.append(call)

    def forget(self, run_id: str) -> None:
        self.starts.pop(run_id, None)

    async def finish(self, run: Run) -> None:
        self.asked.set()
        await self.let.wait()
        if self.full:
            raise StoreFailed("the disk is full")
        self.runs.append(redacted(run) if self.redact else run)
        self._arrived.put_nowait(run)

    async def load(self, run_id: str, tenant: str | None = None) -> Run:
        if tenant not in (None, self.starts[run_id].tenant if run_id in self.starts else ""):
            raise NotFound(f"run_id {run_id!r}: no such run is stored here; check the identifier.")
        for run in self.runs:
            if run.id == run_id:
                return run
        if (start := self.starts.get(run_id)) is None:
            raise NotFound(f"run_id {run_id!r}: no such run is stored here; check the identifier.")
        return Run(
            run_id,
            start.kind,
            start.request,
            "running",
            "",
            None,
            {},
            (),
            start.started_at,
            0.0,
            start.tenant,
        )

    async def list(self, wanted: RunFilter, size: int, page: str = "") -> RunPage:
        summaries = [
            RunSummary(
                run.id,
                run.tenant,
                run.kind,
                run.request_id,
                run.request,
                run.status,
                None,
                run.started_at,
                0.0,
                unsupported=run.unsupported,
            )
            for run in reversed(self.runs)
            if wanted.tenant in (None, run.tenant)
            and wanted.kind in (None, run.kind)
            and wanted.unsupported <= run.unsupported
            and wanted.key_id in ("", run.key_id)
        ]
        if not page.isdecimal() and page:
            raise BadRequest("page_token is none of ours.")
        first = int(page or 0)
        more = first + size < len(summaries)
        return RunPage(tuple(summaries[first : first + size]), str(first + size) if more else "")

    async def figures(self, wanted: RunFilter, starts: Sequence[float]) -> Sequence[RunFigures]:
        listed = (await self.list(wanted, len(self.runs))).runs
        return [RunFigures(len(listed)), *(RunFigures() for _ in starts[1:])]

    async def export(self, wanted: RunFilter) -> AsyncIterator[ExportedRun]:
        for run in self.runs:
            if wanted.tenant in (None, run.tenant):
                yield ExportedRun(run, await self.feedback(run.id))

    async def add_feedback(self, feedback: Feedback) -> str:
        await self.load(feedback.run_id, feedback.tenant)
        self.given.append(feedback)
        return f"feedback-{len(self.given)}"

    async def feedback(self, run_id: str) -> tuple[Feedback, ...]:
        return tuple(feedback for feedback in self.given if feedback.run_id == run_id)

    async def request_cancel(self, run_id: str) -> None:
        """Refuse, as no other gateway works on its runs."""

    async def progress(self, run_id: str, after: int = 0) -> Progress | None:
        return None

    async def next(self) -> Run:
        """Wait for the next run and return it."""
        async with asyncio.timeout(10):
            return await self._arrived.get()


class HeldModel:
    """A model that says what `model` says: the first `free` times immediately, then only when
    released.
    """

    def __init__(self, model: ScriptedModel, free: int = 0) -> None:
        self._model = model
        self._free = free
        self.name = model.name
        self.endpoint = model.endpoint
        self.called = asyncio.Event()
        self.let = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def _held(self) -> None:
        if self._free:
            self._free -= 1
            return
        self.called.set()
        try:
            await self.let.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def complete(self, prompt: Prompt) -> Completion:
        await self._held()
        return await self._model.complete(prompt)

    async def count(self, prompt: Prompt, text: str) -> Usage | None:
        return await self._model.count(prompt, text)

    async def stream(self, prompt: Prompt, on_delta: OnDelta, *, live: bool = True) -> Completion:
        """Yield the first delta immediately, if there is one, and hold back the others."""
        try:
            whole = await self._model.complete(prompt)
        except RuntimeError:  # the script has ended
            await self._held()
            raise
        deltas = list[Delta]()
        completion = await ScriptedModel([whole]).stream(prompt, deltas.append)
        on_delta(deltas[0])
        await self._held()
        for delta in deltas[1:]:
            on_delta(delta)
        return completion


class Meeting:
    """A retriever that answers only after `parties` calls have come."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        await self._barrier.wait()
        return [[PASSAGE][:top_k] for _ in queries]
