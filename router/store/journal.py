"""The journal, in a database."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

from router.amount import Amount
from router.call import Call, OpenedCall
from router.errors import RolegateError, StoreFailed
from router.journal import Began, Earlier, RunStart
from router.run import Run
from router.store.database import Database
from router.store.gateways import Beat, Leave, Seen, ThisGateway
from router.store.group_commit import GroupCommit
from router.store.interrupted import Interrupt
from router.store.operations import Begin, Discard, Finish, Forget, Hold, Open, Operation, Settle
from router.store.retention import Retention

_BEAT_S = 2.0
_BEATING_S = 5.0
"""How long one may take until the store counts as down."""
_RETENTION_S = 600.0


class SQLJournal:
    """Writes what happens in groups, one transaction each; closes what dead gateways left, and deletes what is old."""

    def __init__(
        self,
        database: Database,
        on_cancel: Callable[[str], None],
        retention: Retention,
        say: Callable[[str | None], None],
    ) -> None:
        self._gateway = ThisGateway.new()
        self._commits = GroupCommit(database, self._gateway.gateway_id, self._late_beat)
        self._on_cancel, self._retention, self._say = on_cancel, retention, say
        self._begun: dict[str, RunStart] = {}
        self._seen = 0.0

    @classmethod
    @asynccontextmanager
    async def writing(
        cls,
        database: Database,
        *,
        on_cancel: Callable[[str], None] = lambda _run_id: None,
        keep_days: float | None = None,
        keep_gb: float | None = None,
        say: Callable[[str | None], None] = lambda _why: None,
    ) -> AsyncIterator["SQLJournal"]:
        """A journal that writes until the context is left, and then what is still to be written.

        `on_cancel` gets the identifiers of runs that are to be cancelled, perhaps more than once. `keep_days` and
        `keep_gb` are those of `Retention`. `say` hears now and then why nothing can be written; None where it can.
        Raises `StoreFailed`.
        """
        journal = cls(database, on_cancel, Retention(database, keep_days, keep_gb), say)
        writing = asyncio.create_task(journal._commits.run())
        others: list[asyncio.Task[None]] = []
        try:
            await journal._beat()
            others += asyncio.create_task(journal._keep_beating()), asyncio.create_task(journal._keep_deleting())
            yield journal
        finally:
            for task in others:
                task.cancel()
            journal._commits.tell(Leave(journal._gateway))
            journal._commits.close()
            await asyncio.gather(*others, return_exceptions=True)
            await writing

    async def begin(self, start: RunStart) -> Began | Earlier:
        """Put a run on record and count it against its tenant's quotas. Raises `BudgetExhausted` and `StoreFailed`."""
        self._begun[start.id] = start
        try:
            began = cast(Began | Earlier, await self._commits.ask(Begin(start)))
        except RolegateError:
            del self._begun[start.id]
            raise
        if isinstance(began, Earlier):
            del self._begun[start.id]
        return began

    async def open(self, call: OpenedCall) -> None:
        """Put a call on record and reserve its worst case. Raises `BudgetExhausted` and `StoreFailed`."""
        await self._commits.ask(Open(call))

    async def hold(self, run_id: str, amount: Amount) -> None:
        """Keep `amount` for the run's answer. Raises `BudgetExhausted` and `StoreFailed`."""
        start = self._begun[run_id]
        await self._commits.ask(Hold(start.tenant, run_id, amount, start.started_at))

    def settle(self, call: Call) -> None:
        """Replace an opened call by how it ended."""
        self._commits.tell(Settle(call))

    def discard(self, call: OpenedCall) -> None:
        """Take back a call that was never made."""
        self._commits.tell(Discard(call))

    def forget(self, run_id: str) -> None:
        """Take back a run that never began."""
        if start := self._begun.pop(run_id, None):
            self._commits.tell(Forget(start.tenant, run_id))

    async def finish(self, run: Run) -> None:
        """Write how the run ended, its trace and all its calls. Raises `StoreFailed`."""
        await self._commits.ask(Finish(run, self._begun.pop(run.id, None)))

    async def _beat(self) -> None:
        """Say that this gateway lives, and do what is to be done."""
        seen = cast(Seen, await self._commits.ask(Beat(self._gateway)))
        self._seen = time.monotonic()
        for run_id in seen.to_cancel:
            self._on_cancel(run_id)
        for tenant, run_id in seen.orphans:
            self._commits.tell(Interrupt(tenant, run_id))
        if seen.orphans:
            await self._commits.ask(Beat(self._gateway))  # they are closed by then

    def _late_beat(self) -> Operation | None:
        """What a gateway that stood still says before anything else, so that its new runs are not taken for orphans."""
        if time.monotonic() - self._seen < 2 * _BEAT_S:
            return None
        self._seen = time.monotonic()
        return Beat(self._gateway)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            why: str | None = None
            try:
                async with asyncio.timeout(_BEATING_S):
                    await self._beat()
            except (StoreFailed, TimeoutError) as error:
                why = str(error) or f"nothing was written within {_BEATING_S:g} s"
            self._say(why)

    async def _keep_deleting(self) -> None:
        while True:
            with suppress(StoreFailed):
                await self._retention.run()
            await asyncio.sleep(_RETENTION_S)
