"""A world of cities with registers that list them, and models that read its pages by their
patterns.
"""

import asyncio
import html
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.calls import Role
from router.errors import UpstreamRefused
from router.models import Completion, Prompt, Sampling
from router.protocol import Passage
from router.runs import Gateway, RunLifecycle
from router.runs.live import LiveRuns
from router.search import Answerer, Delegator, Executor, FactorizedSearch, ReportCache, Topology
from router.search.agent import Agent, ExecutorLimits
from router.search.executor import Executes
from router.search.indexes import Indexes
from router.search.managers import Managers
from router.store import Database, LogJournal, SQLArchive
from router.table import TableLimits, TableRequest, WideSearch
from router.table.filling import EXECUTOR_OF_TABLES, TABLE_FORM
from router.table.table_delegation import STOP
from router.trace import RoleName
from router.trace.run import RoleSetting
from router.trace.table import Column
from router.versions import VersionRouting
from tests.router.unfiltered import Unfiltered
from tests.scripted_model import ScriptedModel

QUESTION = "List all cities of the register."
COLUMNS = (Column("city", key=True), Column("founder"), Column("founded", "integer"))
REQUEST = TableRequest(QUESTION, COLUMNS)
ENOUGH = "<stop/>Enough evidence<stop>"
_ASKS = (
    '<ask column="founder">Who founded {city}?</ask><ask column="founded">When was {city} '
    "founded?</ask>"
)
_OF_PART = re.compile(r"part (\d+)")


class World:
    """Cities and their pages.

    Some pages do not state the founder; some cities have an old name, whose page names another
    founder.
    """

    def __init__(
        self, cities: int = 24, *, unstated: int = 0, renamed: int = 0, a_part: int = 4
    ) -> None:
        self.cities = [f"Kru{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(cities)]
        self.founder = {city: f"Ana {city}son" for city in self.cities[unstated:]}
        self.founded = {city: str(1000 + number) for number, city in enumerate(self.cities)}
        self.old = {f"Old {city}": city for city in self.cities[unstated : unstated + renamed]}
        named = [*self.cities, *self.old]
        self.parts = [named[at : at + a_part] for at in range(0, len(named), a_part)]

    def page(self, city: str) -> Passage:
        """Return a city's own page."""
        founder = f" {city} was founded by {self.founder[city]}." if city in self.founder else ""
        former = "".join(
            f" {city} was once called {old}." for old, name in self.old.items() if name == city
        )
        text = f"{city} is a city. {city} was founded in {self.founded[city]}.{founder}{former}"
        return Passage(city, city, text, document=city)

    def old_page(self, old: str) -> Passage:
        """Return the page of an old name."""
        text = f"{old} is the former name of {self.old[old]}. {old} was founded by Bo Otherson."
        return Passage(old, old, text, document=old)

    def register(self, number: int) -> Passage:
        """Return a part of the register, counted from 1."""
        title = f"Register, part {number}"
        cities = self.parts[number - 1]
        return Passage(
            title, title, "\n".join(f"{city} is listed." for city in cities), document=title
        )

    def rows(self) -> list[tuple[str, ...]]:
        """Return the correct table."""
        return [(city, self.founder.get(city, ""), self.founded[city]) for city in self.cities]

    async def search(
        self, queries: Sequence[str], top_k: int, document: str | None = None
    ) -> list[list[Passage]]:
        """Return the pages that the queries name."""
        await asyncio.sleep(0)
        return [self._named(query)[:top_k] for query in queries]

    def _named(self, query: str) -> list[Passage]:
        if part := _OF_PART.search(query):
            return [self.register(int(part[1]))]
        pages = [self.old_page(old) for old in self.old if old in query]
        return [*pages, *(self.page(city) for city in self.cities if city in query)]


class Reader(ScriptedModel):
    """A model of executors that takes a random time for each turn, and fails and invents at the
    given rates.
    """

    def __init__(
        self, *, seed: int = 0, fails: float = 0.0, invents: float = 0.0, slow: int = 30
    ) -> None:
        super().__init__(self._write, "small")
        self._luck = random.Random(seed)
        self._seed = seed
        self._fails = fails
        self._invents = invents
        self._slow = slow
        self.under_way = self.most = 0
        self.asked = Counter[str]()

    async def complete(self, prompt: Prompt) -> Completion:
        """Return the next turn."""
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            for _ in range(self._luck.randrange(self._slow + 1)):
                await asyncio.sleep(0)
            return await super().complete(prompt)
        finally:
            self.under_way -= 1

    def _write(self, prompt: Prompt) -> Any:
        asked = html.unescape(prompt.messages[1].content)
        if len(prompt.messages) == 2:
            self.asked[asked] += 1
            if random.Random(f"{self._seed}/{asked}/{self.asked[asked]}").random() < self._fails:
                return UpstreamRefused("no", endpoint=self.endpoint)
            return f"<search>{prompt.messages[1].content}</search>"
        return self.report(asked, "\n".join(message.content for message in prompt.messages[2:]))

    def report(self, asked: str, shown: str) -> str:
        """Read the requested values from the pages."""
        if "part" in asked:
            return written("\n".join(re.findall(r"([\w ]+) is listed\.", shown)))
        if ":\n" in asked:
            wanted = re.findall(r"^- (\w+): ", asked, re.MULTILINE)
            lines = [
                f"{name}: {value}" for name in wanted if (value := self._value(asked, name, shown))
            ]
            return written("\n".join(lines) or "not found")
        name = "founder" if re.search("Who|founder", asked) else "founded"
        return written(self._value(asked, name, shown) or "not found")

    def _value(self, asked: str, name: str, shown: str) -> str:
        if random.Random(f"{self._seed}/{asked}/{name}").random() < self._invents:
            return "1066" if name == "founded" else "Nobody Inventedson"
        match = re.search(
            r"was founded in (\d+)" if name == "founded" else r"was founded by ([\w ]+)\.", shown
        )
        return match[1] if match else ""


def written(answer: str, evidence: str = "as it is stated") -> str:
    """Return a report with some evidence."""
    return f"<answer>{answer}</answer><evidence>{evidence}</evidence>"


def lead(world: World, a_turn: int = 4, *, first: int = 0) -> ScriptedModel:
    """Return a delegator that asks for some parts of the register in each turn from `first` on,
    and stops after the last.
    """

    return ScriptedModel(
        lambda prompt: lead_turn(world, len(prompt.messages), a_turn, first=first), "backbone"
    )


def lead_turn(world: World, messages: int, a_turn: int, *, first: int = 0) -> str:
    """Return its turn after this many messages."""
    turn = messages // 2 - 1
    parts = range(1 + first, len(world.parts) + 1)[turn * a_turn : (turn + 1) * a_turn]
    if not parts:
        return ENOUGH
    asked = ", ".join(f'"Which cities does part {part} list?"' for part in parts)
    return f"<search>[{asked}]</search>{_ASKS if turn == 0 else ''}"


async def _never(*_: object) -> Any:
    raise NotImplementedError


@asynccontextmanager
async def gateway(
    store: Path | str,
    world: Any,
    executor: Any = None,
    delegator: Any = None,
    answerer: Any = None,
    *,
    limits: TableLimits | None = None,
    early: bool = True,
    shared: bool = False,
    around: Callable[[Executes], Executes] = lambda executes: executes,
    max_tokens: int = 256,
    report_chars: int = 2000,
) -> AsyncIterator[tuple[Gateway, SQLArchive]]:
    """Open a gateway on the store in a folder or at a URL.

    `world` may be any retriever if both models are given. `around` wraps the executors of
    tables.
    """
    if isinstance(store, Path):
        store.mkdir(exist_ok=True)
    database = await Database.open(
        store if isinstance(store, str) else f"sqlite:///{store}/runs.db"
    )
    models: Mapping[RoleName, Any] = {
        "delegation": delegator or lead(world),
        "execution": executor or Reader(),
        "answer": answerer or ScriptedModel(["<answer>no</answer>"]),
    }
    sampling = Sampling(max_tokens=max_tokens)
    roles: dict[RoleName, Role] = {
        name: Role(
            name,
            model,
            name,
            sampling,
            1,
            executor_version="small" if name == "execution" else None,
        )
        for name, model in models.items()
    }
    limits = limits or TableLimits()
    long = ExecutorLimits(report_chars=report_chars)
    searched = Unfiltered(world)
    agent = Agent(roles["execution"], searched, long, EXECUTOR_OF_TABLES)
    executes: Any = Executor(
        roles["execution"], searched, ExecutorLimits(), forms={TABLE_FORM: agent}
    )
    if shared:
        versioned: Executor = executes
        executes = ReportCache(
            VersionRouting(lambda _: versioned, "small", _never, _never), lambda _scope: "index"
        )
    search = FactorizedSearch(Delegator(roles["delegation"]), executes, Answerer(roles["answer"]))
    outer = around(executes)
    lead_role = Delegator(
        roles["delegation"], limits.discoveries, STOP, managed=isinstance(outer, Managers)
    )
    names = outer.names if isinstance(outer, Managers) else ()
    wide = WideSearch(
        lead_role,
        outer,
        limits,
        early_dispatch=early,
        managers=names,
        indexes=Indexes.of(searched),
    )
    settings = {name: RoleSetting(name, "0" * 64) for name in roles}
    try:
        async with LogJournal.writing(database) as journal:
            archive = SQLArchive(database, journal.calls)
            lifecycle = RunLifecycle(
                journal,
                archive,
                LiveRuns(),
                settings,
                60.0,
                conditions=lambda _scope: {"index": "one"},
            )
            yield (
                Gateway(
                    topologies={"factorized": Topology(search, roles)},
                    executor=executes,
                    roles=roles,
                    lifecycle=lifecycle,
                    tables=wide,
                    table_roles=roles,
                ),
                archive,
            )
    finally:
        await database.close()
