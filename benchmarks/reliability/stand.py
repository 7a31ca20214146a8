"""Gateways to be asked while all fails, behind them played models or real ones; and checks of
what came of it.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rolegate.client import AsyncClient
from sqlalchemy import Connection, func, select

from benchmarks.gateway import OnePassage, at_once, canned_config, retrieval
from benchmarks.harness import Check
from benchmarks.load import ANSWERED, Ended, Outcomes, ask_until, question
from benchmarks.mini_deployment import mini_deployment
from executor_sft.miniworld.export import export, over, write_config
from executor_sft.miniworld.world import World
from router.background import background_tasks
from router.store import opened
from router.store.schema import CALLS, RUNS, run_of
from router.testing.fault_proxy import (
    FAULTS,
    SEARCH_FAULTS,
    Counted,
    Fault,
    FaultPlan,
    FaultProxy,
    FaultyRetriever,
    fault_proxies,
)
from router.testing.openai_server import ChatRequest, OpenAIServer, Reply, serving, writes
from router.trace import Run
from router.trace.call import WHOLE
from serving.config.file import load_config, preset

Value = TypeVar("Value")
BACKBONES = 2
EXECUTORS = 3
CUT: tuple[Fault, ...] = ("cut",)
"""Leaves the upstream's own count comparable with the ledger."""
_AGAIN_SHARE = 0.5
"""The share of the cut questions that are asked again."""
_HURRIED_SHARE = 0.2
_LEAST_S = 0.5
_PAUSE_S = 0.5
_WORLD = 31
_WORLD_QUESTIONS = 20_000
_WORLD_S = 60.0


class Accounts(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between what clients and upstreams saw and the store; all lists should be
    empty.
    """

    attempts: int
    """That came to an upstream."""
    rows: dict[str, int]
    """Of the ledger, by outcome."""
    unaccounted: list[str]
    """Attempts that came to an upstream, and that the ledger does not have, or has at another
    one.
    """
    again: list[str]
    """Attempts that came more than once."""
    invented: list[str]
    """Rows of attempts that came to an end without having come to any upstream."""
    miscounted: list[str]
    """Completed calls that the upstream counted otherwise."""
    lost: list[str]
    """Runs whose answer a client received, and which are not in the store with all that the
    client was told.
    """
    stuck: list[str]
    """Runs and calls that have not ended."""
    gone_on: int = 0
    """Runs that went on with one that was cut."""
    in_flight: int = 0
    """Calls of theirs that were in flight at a kill, and were made again."""
    repeated: list[str] = []
    """Calls of theirs that had been completed before, and were made again all the same."""
    begun_anew: list[str] = []
    """Runs that should have gone on with one that was cut."""


class PartFigures(msgspec.Struct, frozen=True):
    """Figures of one part."""

    part: str
    ended: Outcomes
    lag_ms: float
    """How late this process itself was at most, as clients, proxies and played models run in it."""
    faults: dict[str, int]
    accounts: Accounts


@dataclass(slots=True)
class Stand:
    """A gateway's config, the proxies before its upstreams, and clients that ask it."""

    config: Path
    deployments: Mapping[str, FaultProxy]
    """By the name that the ledger has for what is behind it."""
    plans: Sequence[FaultPlan]
    timeout_s: float
    chance: random.Random
    store: str
    """The address of its database."""
    questions: Iterator[str]
    """New ones, no two of which have one name."""
    models: Sequence[OpenAIServer] = ()
    """Those that are played."""
    ended: list[Ended] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    """Questions that are to be asked again, as the gateway ended before they did."""
    happened: Counter[str] = field(default_factory=Counter)
    """What was done to gateways and their database."""
    shared: bool = False
    """Whether several gateways have the database, none of which reads another one's log."""
    columns: str = ""
    """Of the tables that are asked for; empty where answers are."""
    tables: dict[str, str] = field(default_factory=dict)
    """The rows of those that came, by their questions."""
    lag_s: float = 0.0

    @property
    def spent(self) -> int:
        """Tokens of all calls that came, as played models count them."""
        return sum(model.tokens.total() for model in self.models)

    def fail(self, share: float) -> None:
        """Let this share of calls go wrong from now on."""
        for plan in self.plans:
            plan.share = share

    async def read(self, query: Callable[[Connection], Value]) -> Value:
        """Read the gateway's store."""
        async with opened(self.store) as database:
            return await database.read(query)

    async def watch(self) -> None:
        """See how late this process is, for ever."""
        while True:
            due = time.perf_counter() + 0.05
            await asyncio.sleep(0.05)
            self.lag_s = max(self.lag_s, time.perf_counter() - due)

    async def ask(
        self, client: AsyncClient, text: str, *, hurried_share: float = _HURRIED_SHARE
    ) -> Ended | None:
        """Ask a question, sometimes with less time than the gateway gives; None where the
        gateway is gone.
        """
        hurried = not self.columns and self.chance.random() < hurried_share
        deadline_s = self.chance.uniform(_LEAST_S, self.timeout_s) if hurried else self.timeout_s
        ended = await ask_until(client, text, deadline_s, hurried=hurried, columns=self.columns)
        if ended.outcome.startswith("UNAVAILABLE,"):
            if self.columns or self.chance.random() < _AGAIN_SHARE:
                self.cut.append(text)
            return None
        self.ended.append(ended)
        if ended.rows:
            self.tables[text] = ended.rows
        return ended

    async def keep_asking(self, address: str, texts: Iterator[str], at_once: int) -> None:
        """Ask, until there is nothing to ask or the gateway is gone."""

        async def work(client: AsyncClient) -> None:
            for text in texts:
                if (ended := await self.ask(client, text)) is None:
                    return
                if ended.outcome != ANSWERED:
                    await asyncio.sleep(_PAUSE_S)

        async with AsyncClient(address) as client, asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work(client))

    async def figures(self) -> PartFigures:
        """Sum up, once the gateway has ended."""
        faults = sum((plan.seen for plan in self.plans), self.happened)
        seen = {name: proxy.attempts for name, proxy in self.deployments.items()}
        counted = {
            name: usage
            for proxy in self.deployments.values()
            for name, usage in proxy.counted.items()
        }
        shown = {
            name: told
            for proxy in self.deployments.values()
            for name, told in proxy.conversations.items()
        }
        found = await self.read(
            lambda connection: compared(connection, self.ended, seen, counted, shown)
        )
        name = self.config.parent.name
        ended = Outcomes.of(self.ended)
        return PartFigures(name, ended, self.lag_s * 1000, dict(faults.most_common()), found)


@asynccontextmanager
async def canned(
    folder: Path,
    store: str,
    seed: int,
    faults: Sequence[Fault],
    *,
    timeout_s: float = 8.0,
    pace: float = 0.0,
    columns: str = "",
) -> AsyncIterator[Stand]:
    """Played models with replicas, and a retrieval, behind fault proxies. `folder` is named after
    the part; `store`: the address of its database; `pace`: tokens a second; 0 for all at once;
    `columns`: as of `Stand`.
    """

    def reply(asked: ChatRequest) -> Reply:
        whole = Reply.of(tabular(asked)) if columns else at_once(asked)
        return Reply(whole.tokens, (), 0.05, lambda: 1 / pace) if pace else whole

    searching = FaultPlan(f"{seed} retrieval", 0.0, SEARCH_FAULTS)
    async with AsyncExitStack() as stack:
        models = [
            await stack.enter_async_context(serving(recording=False))
            for _ in range(BACKBONES + EXECUTORS)
        ]
        for model in models:
            model.plays(writes(reply))
        address = await stack.enter_async_context(
            retrieval(FaultyRetriever(OnePassage(), searching))
        )
        upstreams = [model.base_url for model in models]
        proxies = await stack.enter_async_context(fault_proxies(upstreams, seed, faults))
        urls = [proxy.base_url for proxy in proxies]
        waits = {"first_token_timeout_s": timeout_s / 8, "call_timeout_s": timeout_s / 2}
        # A table without a call that failed for good is another one
        waits |= {"attempts": 6} if columns else {}
        executors = {
            "base_url": urls[BACKBONES],
            "replicas": urls[BACKBONES + 1 :],
            "fallbacks": ["delegation"],
        }
        roles: dict[str, dict[str, Any]] = {
            "delegation": waits,
            "execution": waits | executors,
            "answer": waits,
        }
        settings = {"timeout_s": timeout_s, **_kept(folder, store)}
        table = {"timeout_s": timeout_s}
        config = canned_config(
            folder, urls[:BACKBONES], address, roles, server=settings, table=table
        )
        plans = [*([searching] if faults == FAULTS else []), *(proxy.plan for proxy in proxies)]
        deployments = dict(zip(urls, proxies, strict=True))
        texts = map(question, count())
        chance = random.Random(seed)
        stand = Stand(
            config, deployments, plans, timeout_s, chance, store, texts, models, columns=columns
        )
        await stack.enter_async_context(background_tasks(stand.watch()))
        yield stand


COLUMNS = "part*, maker, made:integer"
_ASKS = '<ask column="maker">Who made {part}?</ask><ask column="made">When was {part} made?</ask>'


def tabular(asked: ChatRequest) -> str:
    """The text of a turn on a table of `COLUMNS`; names and values repeat the numbers of what
    is asked.
    """
    about = asked.texts[1]
    turns = len(asked.texts)
    numbers = re.findall(r"\d+", about)[:4]
    name = "-".join(numbers)
    if "<columns>" in about and turns > 4:
        return "<stop/>Enough evidence<stop>"
    if "<columns>" in about:
        shelves = [f"Which parts are on shelf {name}-{turns}-{number}?" for number in range(2)]
        return f"<search>{json.dumps(shelves)}</search>{_ASKS}"
    if turns == 2:
        return f"<search>{about}</search>"
    answer = (
        f"maker: {'Michael Mann' if int(numbers[-1]) % 3 else 'not found'}\nmade: "
        f"{1943 + int(numbers[-1])}"
    )
    if "shelf" in about:
        answer = "\n".join(f"Part {name}-{number}" for number in range(4))
    return f"<answer>{answer}</answer>\n<evidence>Heat is a film by Michael Mann</evidence>"


@asynccontextmanager
async def deployed(folder: Path, store: str, seed: int) -> AsyncIterator[Stand]:
    """The demo's models on real vLLM over a world that they have not seen, behind fault proxies."""
    world = folder / "world"
    replace = msgspec.structs.replace
    texts = dict.fromkeys(
        one.text for one in export(World(_WORLD, "test"), world, _WORLD_QUESTIONS)
    )
    async with (
        mini_deployment(over(load_config(preset("mini")), world)) as mini,
        fault_proxies(list(mini.engines.values()), seed, CUT) as proxies,
    ):
        deployments = {proxy.base_url: proxy for proxy in proxies}
        plans = [proxy.plan for proxy in proxies]
        engines = dict(zip(mini.engines, deployments, strict=True))
        config = replace(mini, engines=engines).config(file := folder / "rolegate.toml")
        write_config(
            replace(
                config, server=replace(config.server, timeout_s=_WORLD_S, **_kept(folder, store))
            ),
            file,
        )
        stand = Stand(file, deployments, plans, _WORLD_S, random.Random(seed), store, iter(texts))
        async with background_tasks(stand.watch()):
            yield stand


def _kept(folder: Path, store: str) -> dict[str, str]:
    return {"store": store} | ({} if store.startswith("sqlite") else {"log": f"{folder}/logs"})


def ended_and_booked(
    ended: Sequence[Ended], late: Sequence[Ended], found: Accounts, *, shared: bool = False
) -> Iterator[Check]:
    """Checks that hold wherever questions are asked. `shared`: as for `Stand`."""
    untyped = [one.outcome for one in ended if not one.typed]
    answered = sum(one.outcome == ANSWERED for one in ended)
    yield Check("none ends 100 ms after its deadline", not late, f"{len(late)} of {len(ended)}")
    yield Check("each ends in an answer or a typed error", not untyped, named(untyped))
    yield Check("some are answered", answered > 0, f"{answered} of {len(ended)}")
    yield Check("there are attempts", found.attempts > 0, f"{found.attempts:,}")
    completed = f"{found.rows.get('completed', 0):,}"
    went_on = f"{found.gone_on:,} that went on"
    for text, names, of in (
        ("every attempt is booked", found.unaccounted, f"{found.attempts:,}"),
        ("no attempt comes twice", found.again, f"{found.attempts:,}"),
        ("no row is invented", found.invented, f"{sum(found.rows.values()):,}"),
        ("completed calls are booked as upstreams counted them", found.miscounted, completed),
        ("no answer is lost", found.lost, f"{answered:,}"),
        ("nothing is left open", found.stuck, ""),
        (
            "no completed call is made again",
            found.repeated,
            f"{went_on}; {found.in_flight:,} had been in flight",
        ),
        *([] if shared else [("who asks again goes on", found.begun_anew, went_on)]),
    ):
        yield Check(text, not names, named(names, of))


def named(names: Sequence[str], of: str = "") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more}" if names else "none") + (of and f" of {of}")


def compared(
    connection: Connection,
    ended: Iterable[Ended],
    seen: Mapping[str, Sequence[str]],
    counted: Mapping[str, Counted],
    shown: Mapping[str, bytes],
) -> Accounts:
    """`seen`: request ids by deployment, as the ledger names it. By those, `counted` and
    `shown` to upstreams.
    """
    came = Counter(chain.from_iterable(seen.values()))
    whole = (*WHOLE, "refused", "content_refused", "protocol_error")
    rows = {f"{row.run_id}-{row.number}": row for row in connection.execute(select(CALLS))}
    runs = {
        run.id: run
        for run in map(run_of, connection.execute(select(RUNS).order_by(RUNS.c.started_at)))
    }
    again = [pair for run in runs.values() for pair in _made_again(run, runs, shown)]
    return Accounts(
        attempts=came.total(),
        rows=dict(Counter(row.outcome for row in rows.values()).most_common()),
        unaccounted=[
            f"{name or 'one without a name'} at {deployment}"
            for deployment, names in seen.items()
            for name in names
            if name not in rows or rows[name].deployment != deployment
        ],
        again=[name for name, times in came.items() if times > 1],
        invented=[name for name, row in rows.items() if name not in came and row.outcome in whole],
        miscounted=[
            name
            for name, row in rows.items()
            if row.outcome == "completed"
            and name in counted
            and counted[name] != Counted(row.prompt_tokens, row.completion_tokens)
        ],
        lost=_lost(connection, ended),
        stuck=[
            *connection.scalars(select(RUNS.c.run_id).where(RUNS.c.status == "running")),
            *(name for name, row in rows.items() if row.outcome == "open"),
        ],
        gone_on=sum(bool(run.resumed_from) for run in runs.values()),
        in_flight=sum(not completed for _, completed in again),
        repeated=[name for name, completed in again if completed],
        begun_anew=[
            later.id
            for earlier, later in pairwise(sorted(runs.values(), key=lambda run: run.request))
            if earlier.request == later.request
            and earlier.status == "interrupted"
            and not later.resumed_from
        ],
    )


def _lost(connection: Connection, ended: Iterable[Ended]) -> list[str]:
    """The runs of answers that are not in the store with all that clients were told."""
    tokens = func.coalesce(func.sum(CALLS.c.prompt_tokens + CALLS.c.completion_tokens), 0)
    summed = select(
        RUNS.c.run_id, RUNS.c.status, func.count(CALLS.c.number), tokens
    ).outerjoin_from(RUNS, CALLS)
    stored = {
        run_id: told
        for run_id, *told in connection.execute(summed.group_by(RUNS.c.run_id, RUNS.c.status))
    }
    answered = [one for one in ended if one.outcome == ANSWERED]
    return [
        one.run_id
        for one in answered
        if stored.get(one.run_id) != ["finished", one.attempts, one.tokens]
    ]


def _made_again(
    run: Run, runs: Mapping[str, Run], shown: Mapping[str, bytes]
) -> Iterator[tuple[str, bool]]:
    """The calls of a run that show a model what one was shown in a run that it goes on with, and
    whether that call had been completed.
    """
    completed = dict[bytes, bool]()
    earlier = runs.get(run.resumed_from)
    while earlier:
        for call in earlier.calls:
            if told := shown.get(call.request_id):
                completed[told] = completed.get(told, False) or call.outcome == "completed"
        earlier = runs.get(earlier.resumed_from)
    for call in run.calls:
        if (told := shown.get(call.request_id)) in completed:
            yield call.request_id, completed[told]
