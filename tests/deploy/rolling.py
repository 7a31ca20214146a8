"""Gateways behind HAProxy that are restarted one after the other while clients ask: `python -m
tests.deploy.rolling [--questions N] [--gateways N] [--every SECONDS] [--in-flight N]`.

HAProxy runs `deploy/proxies/haproxy.cfg`, with ports of the loopback interface instead of the names
of hosts. The models are simulated, and a proxy in front of them counts what reaches them. Half of
the questions are asked by gRPC, a quarter is streamed, and a quarter comes over HTTP.
"""

import argparse
import asyncio
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path

import aiohttp
from rolegate.client import AsyncClient, GatewayError
from sqlalchemy import Connection, func, select

from benchmarks.gateway import at_once, canned_config, played
from benchmarks.load import ANSWERED, LoadResult, ask_until, quantile, question
from benchmarks.reliability.audit import compared
from router.access import Tenant, new_key
from router.background import background_tasks
from router.store import Database, SQLAccounts, opened
from router.store.schema import CALLS, GATEWAYS, LEASES, RUNS
from router.testing.fault_proxy import Attempt, fault_proxies
from router.testing.postgres import running_postgres
from tests.openai_server import ChatRequest, Reply, writes
from tests.ports import free_port

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin")
CONFIG = Path(__file__).parents[2] / "deploy/proxies/haproxy.cfg"
_SERVE = "import sys; from serving.cli.main import main; sys.exit(main())"
_TOKENS_PER_S = 100.0
_FIRST_TOKEN_S = 0.05
_DEADLINE_S = 60.0
_LOOK_S = 0.01
_HTTP = "answered over HTTP"
_ASKING = "acme"
_CAPPED = "capped"
"""A tenant that asks until its quota of tokens is used up."""


@dataclass(frozen=True)
class Options:
    """Size of the measurement."""

    questions: int = 2000
    gateways: int = 3
    every: float = 10.0
    """Seconds from the beginning of a restart to that of the next, which waits until the gateway is
    ready again.
    """
    in_flight: int = 16
    quota: int = 200_000
    """Tokens that the capped tenant may use."""


@dataclass
class Figures:
    """Everything that was seen."""

    ended: list[LoadResult] = field(default_factory=list)
    """How each question ended."""
    looks: int = 0
    """Number of lists of runs, which are short calls that no client repeats."""
    looks_failed: int = 0
    restarts: int = 0
    seconds: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    """Number of runs of the asking tenant, by status."""
    capped: int = 0
    """Tokens that the capped tenant used, by the models' own count."""
    overshoot: int = 0
    """Those beyond its quota."""
    seen: int = 0
    """Tokens of all calls, by the models' own count."""
    booked: int = 0
    """Tokens of the same calls in the ledger."""
    wrong: dict[str, list[str]] = field(default_factory=dict)
    """See `Audit.wrong`."""
    left: int = 0
    """Number of gateways and leases that are in the database after all gateways have stopped."""

    @property
    def failed(self) -> Counter[str]:
        """Number of questions without an answer, by the reason."""
        answered = ANSWERED, _HTTP
        return Counter(result.outcome for result in self.ended if result.outcome not in answered)

    def lines(self) -> Iterator[str]:
        """Yield the figures as text."""
        took = [result.took_s for result in self.ended]
        yield f"{len(self.ended)} questions in {self.seconds:.0f} s, {self.restarts} restarts"
        yield f"failed {self.failed.total()} {dict(self.failed) or ''}".rstrip()
        yield f"p50 {quantile(took, 0.5):.2f} s, p99 {quantile(took, 0.99):.2f} s"
        yield f"runs {self.statuses}"
        yield f"lists of runs {self.looks}, failed {self.looks_failed}"
        yield f"overshoot {self.overshoot} of {self.capped:,} tokens of the capped tenant"
        yield f"gateways and leases left {self.left}"
        yield f"booked {self.booked:,} tokens, seen upstream {self.seen:,}"
        for condition, names in self.wrong.items():
            yield f"{condition}: {f'no, {len(names)}: {names[:3]}' if names else 'yes'}"


class Served:
    """A gateway in a process, which is restarted at the same addresses."""

    def __init__(self, config: Path, number: int, folder: Path) -> None:
        self.grpc = free_port()
        self.http = free_port()
        self._config = config
        self._log = folder / f"gateway-{number}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start the process, and wait until it is ready."""
        addresses = ("--address", f"127.0.0.1:{self.grpc}", "--http", f"127.0.0.1:{self.http}")
        arguments = ("serve", "--config", str(self._config), *addresses)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _SERVE, *arguments, stdout=log, stderr=log
            )
        async with asyncio.timeout(120), aiohttp.ClientSession() as session:
            while not await self._ready(session):
                assert self._process.returncode is None, self._log.read_text("utf-8")[-3000:]
                await asyncio.sleep(0.05)

    async def _ready(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"http://127.0.0.1:{self.http}/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def stop(self) -> None:
        """Send SIGTERM to the process, and wait until it has ended."""
        if self._process and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            await self._process.wait()


def haproxy_config(gateways: Sequence[Served], grpc: int, http: int) -> str:
    """Return HAProxy's file for these gateways, with the ports `grpc` and `http` to listen at."""
    text = CONFIG.read_text("utf-8")
    for address, bound in ((":50551", grpc), (":50580", http), ("127.0.0.1:8404", free_port())):
        text = text.replace(f"bind {address}", f"bind 127.0.0.1:{bound}")
    lines = []
    for line in text.splitlines():
        if not re.match(r"\s+server ", line):
            lines.append(line)
        elif "server gateway-1 " in line:
            for number, gateway in enumerate(gateways, 1):
                port = gateway.grpc if ":50551" in line else gateway.http
                moved = re.sub(r"gateway-1:\d+", f"127.0.0.1:{port}", line)
                lines.append(moved.replace("gateway-1", f"gateway-{number}"))
    return "\n".join(lines) + "\n"


@asynccontextmanager
async def haproxy(folder: Path, gateways: Sequence[Served]) -> AsyncIterator[tuple[str, str]]:
    """Run HAProxy in front of these gateways; yield its addresses for gRPC and HTTP."""
    assert HAPROXY, "HAProxy is not installed (Debian: apt-get install haproxy)"
    grpc = free_port()
    http = free_port()
    file = folder / "haproxy.cfg"
    file.write_text(haproxy_config(gateways, grpc, http), "utf-8")
    with (folder / "haproxy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            HAPROXY, "-db", "-f", str(file), stdout=log, stderr=log
        )
        try:
            await _listening(grpc)
            yield f"127.0.0.1:{grpc}", f"127.0.0.1:{http}"
        finally:
            process.terminate()
            await process.wait()


async def _listening(port: int) -> None:
    """Wait until a program listens at a port of the loopback interface."""
    async with asyncio.timeout(30):
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.05)


def paced(asked: ChatRequest) -> Reply:
    """Return the reply of the requested role, at the pace of a small model."""
    return Reply(at_once(asked).tokens, _FIRST_TOKEN_S, lambda: 1 / _TOKENS_PER_S)


@dataclass(frozen=True)
class Caller:
    """A client of a tenant, by gRPC and HTTP."""

    client: AsyncClient
    session: aiohttp.ClientSession

    async def ask(self, number: int) -> LoadResult:
        """Ask the question with a number, in one of three ways, and return how that ended."""
        text = question(number)
        match number % 4:
            case 0:
                return await self._streamed(text)
            case 1:
                return await self._over_http(text)
        return await ask_until(self.client, text, _DEADLINE_S)

    async def _streamed(self, text: str) -> LoadResult:
        begun = time.perf_counter()
        done = None
        outcome = "the stream ended early"
        try:
            async for event in self.client.stream(text, _DEADLINE_S, request_id=text):
                if event.HasField("done"):
                    done = event.done
        except GatewayError as error:
            outcome = error.reason or f"{error.code.name}, by the client: {error}"
        took_s = time.perf_counter() - begun
        if done is None:
            return LoadResult(outcome, False, took_s, _DEADLINE_S)
        return LoadResult(
            ANSWERED,
            True,
            took_s,
            _DEADLINE_S,
            done.run_id,
            sum(row.attempts for row in done.usage),
            sum(row.prompt_tokens + row.completion_tokens for row in done.usage),
        )

    async def _over_http(self, text: str) -> LoadResult:
        begun = time.perf_counter()
        body = {"model": "rolegate", "messages": [{"role": "user", "content": text}]}
        try:
            async with self.session.post("/v1/chat/completions", json=body) as response:
                outcome = _HTTP
                if response.status != 200:
                    outcome = f"HTTP {response.status}: {(await response.text())[:200]}"
                await response.read()
        except aiohttp.ClientError as error:
            outcome = f"{type(error).__name__} over HTTP: {error}"
        return LoadResult(outcome, True, time.perf_counter() - begun, _DEADLINE_S)


@asynccontextmanager
async def callers(grpc: str, http: str, key: str, number: int) -> AsyncIterator[list[Caller]]:
    """Connect this many clients to HAProxy's addresses."""
    async with AsyncExitStack() as stack:
        headers = {"Authorization": f"Bearer {key}"}
        connected = []
        for _ in range(number):
            session = aiohttp.ClientSession(f"http://{http}", headers=headers)
            client = AsyncClient(grpc, api_key=key)
            await stack.enter_async_context(session)
            connected.append(Caller(await stack.enter_async_context(client), session))
        yield connected


async def _keys(url: str, quota: int) -> dict[str, str]:
    """Create the two tenants, and return a key of each."""
    keys = {}
    async with opened(url) as database:
        accounts = SQLAccounts(database)
        await accounts.set_tenant(Tenant(_CAPPED, tokens_per_day=quota))
        for tenant in (_ASKING, _CAPPED):
            keys[tenant], key = new_key(tenant, frozenset(("ask",)))
            await accounts.add_key(key)
    return keys


async def rolling(options: Options, folder: Path, url: str) -> Figures:
    """Ask all questions while gateways are restarted. `url`: an empty PostgreSQL database."""
    await (await Database.open(url)).close()
    keys = await _keys(url, options.quota)
    figures = Figures()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        models, retrieval = await enter(played(writes(paced)))
        (proxy,) = await enter(fault_proxies([models.base_url], 0))
        server = {"store": url, "log": f"{folder}/logs", "drain_s": 3.0}
        config = canned_config(folder, [proxy.base_url], retrieval, server=server)
        gateways = [Served(config, number, folder) for number in range(1, options.gateways + 1)]
        for gateway in gateways:
            stack.push_async_callback(gateway.stop)
        await asyncio.gather(*(gateway.start() for gateway in gateways))
        grpc, http = await enter(haproxy(folder, gateways))
        asking = await enter(callers(grpc, http, keys[_ASKING], options.in_flight + 1))
        capped = await enter(callers(grpc, http, keys[_CAPPED], 2))

        begun = time.monotonic()
        numbers = iter(range(options.questions))
        async with (
            background_tasks(
                _restart(gateways, options.every, figures),
                _look(asking.pop().client, figures),
                *(_use_up(caller) for caller in capped),
            ),
            asyncio.TaskGroup() as group,
        ):
            for caller in asking:
                group.create_task(_ask(caller, numbers, figures))
        figures.seconds = time.monotonic() - begun

    async with opened(url) as database:
        await database.read(lambda connection: _audit(connection, figures, proxy.attempts))
    figures.overshoot = max(0, figures.capped - options.quota)
    return figures


async def _restart(gateways: Sequence[Served], every: float, figures: Figures) -> None:
    due = time.monotonic()
    for gateway in cycle(gateways):
        due = max(time.monotonic(), due + every)
        await asyncio.sleep(due - time.monotonic())
        await gateway.stop()
        await gateway.start()
        figures.restarts += 1


async def _ask(caller: Caller, numbers: Iterator[int], figures: Figures) -> None:
    for number in numbers:
        figures.ended.append(await caller.ask(number))


async def _look(client: AsyncClient, figures: Figures) -> None:
    while True:
        figures.looks += 1
        try:
            await anext(client.runs(), None)
        except GatewayError:
            figures.looks_failed += 1
        await asyncio.sleep(_LOOK_S)


async def _use_up(caller: Caller) -> None:
    for number in count(10**6):
        with suppress(GatewayError):
            await caller.client.ask(question(number), _DEADLINE_S)
        await asyncio.sleep(0.2)


def _audit(connection: Connection, figures: Figures, attempts: Sequence[Attempt]) -> None:
    """Compare the store with what clients and models have seen."""
    figures.wrong = compared(connection, figures.ended, attempts).wrong
    by_status = select(RUNS.c.status, func.count()).where(RUNS.c.tenant == _ASKING)
    statuses = connection.execute(by_status.group_by(RUNS.c.status)).all()
    figures.statuses = {row[0]: row[1] for row in statuses}
    figures.left = len(connection.execute(select(GATEWAYS.c.log)).all())
    figures.left += len(connection.execute(select(LEASES.c.log)).all())
    counts = {attempt.request_id: attempt.counted for attempt in attempts if attempt.counted}
    for call in connection.execute(select(CALLS)):
        if counted := counts.get(f"{call.run_id}-{call.number}"):
            tokens = counted.prompt_tokens + counted.completion_tokens
            figures.seen += tokens
            figures.booked += (call.prompt_tokens or 0) + (call.completion_tokens or 0)
            figures.capped += tokens if call.tenant == _CAPPED else 0


def main() -> None:
    """Run the measurement, and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in vars(Options()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    parser.add_argument("--folder", type=Path)
    given = vars(parser.parse_args())
    folder = given.pop("folder") or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    with running_postgres() as server:
        figures = asyncio.run(rolling(Options(**given), folder, server.url))
    print("\n".join(figures.lines()))


if __name__ == "__main__":
    main()
