"""A whole deployment of doubles: roles, a search and a gateway around scripted models."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from router.answerer import Answerer
from router.context import RunContext
from router.delegator import Delegator
from router.errors import NotFound, StoreFailed
from router.events import Event
from router.executor import Executor, ExecutorLimits
from router.feedback import Feedback
from router.gateway import Gateway, GatewayLimits
from router.ledger import RoleName, totals
from router.model import Completion, Delta, Model, Prompt, Sampling
from router.passage import Passage
from router.retrieval import FixedRetriever, Retriever
from router.role import Role
from router.run import RoleSetting, Run
from router.scope import Scope
from router.scripted_model import ScriptedModel
from router.search import Search
from router.usage_report import UsageReport

STOP = "<stop/>Enough evidence<stop>"
PASSAGE = Passage("p1", "Heat", "Heat is a film by Michael Mann.", 0.9)
SYSTEMS: Mapping[RoleName, str] = {"delegation": "delegate", "execution": "execute", "answer": "answer"}


def block(*sub_queries: str) -> str:
    """A delegator's search block."""
    return f"<search>{json.dumps(sub_queries)}</search>"


def report(answer: str, *evidence: str) -> str:
    """An executor's report."""
    return f"<answer>{answer}</answer>\n<evidence>{chr(10).join(evidence)}</evidence>"


def finds(prompt: Prompt) -> str:
    """An executor that searches for its sub-query as it is, and then reports about it."""
    sub_query = prompt.messages[1].content
    if len(prompt.messages) == 2:
        return f"<search>{sub_query}</search>"
    return report(f"the answer to {sub_query}", f"It is so: {sub_query}")


def role(name: RoleName, model: Model, attempts: int = 1) -> Role:
    """A role with a system prompt of one word."""
    return Role(name, model, SYSTEMS[name], Sampling(max_tokens=64), attempts)


def lasting(time_s: float = 60.0, events: list[Event] | None = None) -> RunContext:
    """A run that begins now."""
    told: list[Event] = [] if events is None else events
    return RunContext.lasting(time_s, told.append)


@dataclass
class Deployment:
    """Three models and a retriever, each of which may be replaced."""

    delegator: Model = field(default_factory=lambda: ScriptedModel([block("Who directed Heat?"), STOP], "backbone"))
    executor: Model = field(default_factory=lambda: ScriptedModel(finds, "small"))
    answerer: Model = field(default_factory=lambda: ScriptedModel(["<answer>Michael Mann</answer>"], "fixed"))
    retriever: Retriever = field(default_factory=lambda: FixedRetriever({"Who directed Heat?": [PASSAGE]}))
    attempts: int = 1

    def roles(self) -> dict[RoleName, Role]:
        """The three roles."""
        models: dict[RoleName, Model] = {
            "delegation": self.delegator,
            "execution": self.executor,
            "answer": self.answerer,
        }
        return {name: role(name, model, self.attempts) for name, model in models.items()}

    def search(self, *, max_rounds: int = 4, max_sub_queries: int = 8, require_evidence: bool = True) -> Search:
        """The search loop."""
        roles = self.roles()
        return Search(
            Delegator(roles["delegation"], max_sub_queries),
            Executor(roles["execution"], self.retriever, ExecutorLimits()),
            Answerer(roles["answer"]),
            max_rounds=max_rounds,
            require_evidence=require_evidence,
        )

    def gateway(
        self,
        store: "Kept | None" = None,
        limits: GatewayLimits = GatewayLimits(),  # noqa: B008 - a frozen value
        scope: Scope | None = None,
    ) -> Gateway:
        """The gateway."""
        roles = self.roles()
        return Gateway(
            search=self.search(),
            executor=Executor(roles["execution"], self.retriever, ExecutorLimits()),
            roles=roles,
            settings={name: RoleSetting(role.model.name, "0" * 64) for name, role in roles.items()},
            store=store or Kept(),
            limits=limits,
            scope=scope,
        )


class Kept:
    """A store in memory; `full` makes it fail, and without `open` it keeps its callers waiting."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.feedback: list[Feedback] = []
        self.full = False
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        """Set once a run is to be saved."""
        self._arrived = asyncio.Queue[Run]()

    async def save(self, run: Run) -> None:
        self.asked.set()
        await self.open.wait()
        if self.full:
            raise StoreFailed("the disk is full")
        self.runs.append(run)
        self._arrived.put_nowait(run)

    async def add_feedback(self, feedback: Feedback) -> str:
        if feedback.run_id not in [run.id for run in self.runs]:
            raise NotFound(f"run_id {feedback.run_id!r}: no such run is stored here.")
        self.feedback.append(feedback)
        return f"feedback-{len(self.feedback)}"

    async def usage(self, start: float, end: float) -> UsageReport:
        runs = [run for run in self.runs if start <= run.started_at < end]
        return UsageReport(len(runs), tuple(totals(tuple(call for run in runs for call in run.calls))))

    async def next(self) -> Run:
        """The next run that arrives."""
        async with asyncio.timeout(10):
            return await self._arrived.get()


class HeldModel:
    """Says what `model` says: the first `free` times at once, then only once it is let."""

    def __init__(self, model: ScriptedModel, free: int = 0) -> None:
        self._model, self._free = model, free
        self.name, self.endpoint = model.name, model.endpoint
        self.called, self.let, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

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

    @asynccontextmanager
    async def stream(self, prompt: Prompt) -> AsyncIterator[AsyncIterator[Delta]]:
        async with self._model.stream(prompt) as deltas:
            yield self._held_back(deltas)

    async def _held_back(self, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        """The first delta at once, the others held back."""
        yield await anext(deltas)
        await self._held()
        async for delta in deltas:
            yield delta


class Meeting:
    """A retriever that answers nobody before `parties` have asked."""

    def __init__(self, parties: int) -> None:
        self._barrier = asyncio.Barrier(parties)

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Passage]]:
        await self._barrier.wait()
        return [[PASSAGE][:top_k] for _ in queries]
