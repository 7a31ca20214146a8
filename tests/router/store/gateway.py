"""A gateway's journal in a separate process, which runs the expressions that it reads: `python
-m tests.router.store.gateway URL`.
"""

import asyncio
import inspect
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from router.amount import Amount
from router.errors import QuotaExhausted, RolegateError
from router.models import Usage
from router.store import Database, LogJournal
from router.store import journal as journal_module
from router.trace import Call
from tests.router.store.entries import NOW, ended, opened, start
from tests.router.store.stored import run

WORST = Amount(10, 10)
LONG_S = 10 * 365 * 86400.0
"""Time after which a gateway of the tests deletes the sums of a minute: `NOW` is long past."""


async def spend(journal: LogJournal, name: str, most_calls: int) -> int:
    """Make calls in runs until the quota is used up, or others hold it for long.

    Return the number of calls.
    """
    made = 0

    async def granted(call: Call, luck: random.Random) -> bool:
        until = time.monotonic() + 1
        while True:
            try:
                await journal.open(opened(call))
                return True
            except QuotaExhausted as error:
                if not error.contended or time.monotonic() > until:
                    return False
                await asyncio.sleep(luck.random() / 10)

    async def work(run_id: str, luck: random.Random) -> None:
        nonlocal made
        calls: list[Call] = []
        await journal.begin(start(run_id, "acme"))
        for number in range(most_calls):
            call = ended(
                run_id, number, WORST, tenant="acme", usage=Usage(luck.randint(1, 9), 1), nano_usd=1
            )
            if not await granted(call, luck):
                break
            await asyncio.sleep(luck.random() / 100)
            journal.settle(call)
            calls.append(call)
        made += len(calls)
        await journal.finish(run(run_id, NOW, calls, tenant="acme"))

    await asyncio.gather(*(work(f"{name}-{number}", random.Random(number)) for number in range(50)))
    return made


def dies(*_: Any, **_options: Any) -> None:
    """Kill this process: in place of a function, to end the gateway where it is called."""
    os.kill(os.getpid(), signal.SIGKILL)


_KNOWN: dict[str, Any] = {
    "NOW": NOW,
    **{known.__name__: known for known in (Amount, dies, ended, opened, start, run, spend)},
}


class Gateway:
    """The parent's side of such a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def do(self, expression: str) -> str:
        """Return the value of an expression in the process, such as
        `journal.begin(start("run-1"))`, or the name of its error.
        """
        self.tell(expression)
        return await self.outcome()

    def tell(self, expression: str) -> None:
        """Send an expression, whose outcome `outcome` returns later."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{expression}\n".encode())

    async def outcome(self) -> str:
        """Return the next outcome."""
        assert self.process.stdout is not None
        while not (line := (await self.process.stdout.readline()).decode()).startswith("> "):
            assert line, "the gateway has ended"
        return line[2:].rstrip()

    async def kill(self) -> None:
        """Kill the process immediately."""
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@asynccontextmanager
async def gateway(url: str) -> AsyncIterator[Gateway]:
    """Run a gateway while the context is open."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.router.store.gateway", url, stdin=pipe, stdout=pipe
    )
    child = Gateway(process)
    try:
        assert await child.outcome() == "ready"
        yield child
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        await process.communicate(b"")


async def _main(url: str) -> None:
    journal_module._OVER_FOR_ALL_S = LONG_S
    database = await Database.open(url)
    async with LogJournal.writing(database) as journal:
        print("> ready", flush=True)
        names: dict[str, Any] = {**_KNOWN, "journal": journal}
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                outcome = eval(line, names)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
            except RolegateError as error:
                outcome = type(error).__name__
            print(f"> {outcome}", flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
